//! `cotal leave`: a channel left.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Leaves a channel.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal leave team.backend --as bob")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal leave` is not built yet").into())
}
