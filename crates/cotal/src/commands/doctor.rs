//! `cotal doctor`: what is wrong with this root.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Checks this root.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal doctor")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal doctor` is not built yet").into())
}
