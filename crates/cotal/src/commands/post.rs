//! `cotal post`: a post on a channel.

use cotal_client::{Channel, Draft, EndpointOptions, Posted};

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, channel, not_sent};
use crate::commands::message;
use crate::context::Context;
use crate::exit::Exit;

/// Posts on a channel and prints the post's id and number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal post team.backend 'The build is green' --as alice
  cotal post team.backend 'Please look at this' --as alice --mention Bob
  git log -1 | cotal post team.backend - --as alice")]
pub struct Args {
    /// The channel.
    #[arg(value_name = "CHANNEL", value_parser = channel)]
    channel: Channel,
    /// The text, or - for standard input.
    #[arg(value_name = "TEXT")]
    text: String,
    /// Mention a peer by name; on a live channel this reaches a peer who is away.
    #[arg(long, value_name = "NAME")]
    mention: Vec<String>,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let text = message::text(args.text).await?;
    let endpoint = args.agent.connect(ctx, EndpointOptions::send_only).await?;
    let draft = args.mention.iter().fold(Draft::text(text), Draft::mention);
    let posted = endpoint.post(&args.channel, draft).await;
    endpoint.close().await;
    print(&posted.map_err(not_sent)?, args.json, ctx)
}

/// Prints what was stored.
pub fn print(posted: &Posted, json: JsonArg, ctx: &Context) -> anyhow::Result<Exit> {
    let Posted { id, seq } = posted;
    message::print_stored((id, *seq), format_args!("{id} {seq}"), json, ctx)
}
