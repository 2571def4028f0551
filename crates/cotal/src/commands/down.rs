//! `cotal down`: nothing is left running.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Stops the daemon and the broker of this root.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal down")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal down` is not built yet").into())
}
