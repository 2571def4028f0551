//! `cotal join`: a channel joined.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Joins a channel.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal join team.backend --as bob")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal join` is not built yet").into())
}
