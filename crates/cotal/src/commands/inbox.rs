//! `cotal inbox`: what has arrived.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Reads what has arrived.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal inbox --as bob --follow")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal inbox` is not built yet").into())
}
