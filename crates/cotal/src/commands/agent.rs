//! `cotal agent`: the agents of a space.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Provisions or lists agents.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal agent list")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal agent` is not built yet").into())
}
