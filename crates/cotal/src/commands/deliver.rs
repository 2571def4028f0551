//! `cotal deliver`: the delivery daemon of one space.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Runs the delivery daemon of a space.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal deliver --space main")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal deliver` is not built yet").into())
}
