//! `cotal status`: what runs and what was missed.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Shows what runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal status --json")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal status` is not built yet").into())
}
