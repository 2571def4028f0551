//! `cotal space`: the spaces of this root.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Adds or lists spaces.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal space add research")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal space` is not built yet").into())
}
