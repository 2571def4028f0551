//! `cargo xtask standby`: two complete hosts on one broker, and the times of each takeover (STB-5).
//!
//! The suite itself is `cotal/tests/standby`, so that continuous integration plays the same; this
//! plays it with the real life of a lease and shows what it observes.

use crate::{repo, step};

/// Seconds that a lease row lives where nobody shortens it.
const LEASE_TTL: u16 = 30;

/// How to play it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seconds that a lease row lives.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = LEASE_TTL,
        value_parser = clap::value_parser!(u16).range(2..=60)
    )]
    ttl: u16,
}

/// Plays it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut suite = repo::cargo();
    suite.args(["test", "--locked", "--quiet", "-p", "cotal", "--test", "standby", "--"]);
    suite.args(["--nocapture", "stb_5"]).env("COTAL_STANDBY_TTL", args.ttl.to_string());
    step::run(&mut suite)?;
    println!("The times are observations on one machine, not promises.");
    Ok(())
}
