//! `cargo xtask bench`: the product against the limit of the broker, alternating in one run.

/// What to measure and how to report it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the measurements.
pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`cargo xtask bench` is not built yet")
}
