//! `cotal members`: who is durably on a channel.

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Lists the durable members of a channel.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cotal members team.backend")]
pub struct Args {}

/// Runs the command.
pub async fn run(_args: Args, _ctx: &Context) -> anyhow::Result<Exit> {
    Err(Failure::new(Exit::Failure, "`cotal members` is not built yet").into())
}
