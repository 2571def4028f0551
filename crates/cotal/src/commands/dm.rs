//! `cotal dm`: a direct message.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Sends a direct message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal dm bob 'Are you there?' --as alice")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal dm` is not built yet").into())
}
