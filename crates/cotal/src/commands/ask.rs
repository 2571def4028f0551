//! `cotal ask`: a request to whoever holds a role.

use cotal_client::{Draft, EndpointOptions, Role};

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, not_sent, role};
use crate::commands::message;
use crate::context::Context;
use crate::exit::Exit;

/// Asks whoever holds a role, and prints the request's number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The number is what `cotal request` goes by. One holder gets the request; a direct message says which.

Examples:
  cotal ask reviewer 'Please review branch x' --as alice
  git diff | cotal ask reviewer - --as alice
  cotal request status 12 --as alice")]
pub struct Args {
    /// The role.
    #[arg(value_name = "ROLE", value_parser = role)]
    role: Role,
    /// The text, or - for standard input.
    #[arg(value_name = "TEXT")]
    text: String,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let text = message::text(args.text).await?;
    let endpoint = args.agent.connect(ctx, EndpointOptions::send_only).await?;
    let asked = endpoint.ask(&args.role, Draft::text(text)).await;
    endpoint.close().await;
    let asked = asked.map_err(not_sent)?;
    message::print_stored((&asked.id, asked.seq), asked.seq, args.json, ctx)
}
