//! `cotal channel`: the channels of a space.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Configures or lists channels.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal channel set team.backend --class durable")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal channel` is not built yet").into())
}
