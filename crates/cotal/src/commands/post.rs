//! `cotal post`: a post on a channel.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Posts on a channel.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal post team.backend 'The build is green' --as alice")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal post` is not built yet").into())
}
