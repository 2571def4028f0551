//! `cargo xtask demo`: the main job, played with real processes.

/// The demo takes no choices.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the demo.
pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`cargo xtask demo` is not built yet")
}
