//! `cotal up`: a mesh with one command.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Brings the mesh of this root up.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal up --detach")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal up` is not built yet").into())
}
