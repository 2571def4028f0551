//! `cotal post`: a post on a channel.

use cotal_client::{Channel, Draft, EndpointOptions, Posted, SendError};

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, channel, denied, not_sent};
use crate::commands::message;
use crate::commands::reach::Reach;
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
    #[command(flatten)]
    text: message::TextArgs,
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
    let draft = args.text.draft().await?;
    let seat = args.agent.seat(ctx)?;
    if !args.mention.is_empty()
        && let Some(reach) = Reach::of(&seat).await
    {
        reach.mentions(&args.mention, &args.channel, ctx)?;
    }
    let endpoint = seat.connect(EndpointOptions::send_only).await?;
    let draft = args.mention.iter().fold(draft, Draft::mention);
    let posted = endpoint.post(&args.channel, draft).await;
    endpoint.close().await;
    let posted = posted.map_err(|error| match &error {
        SendError::Refused { source, .. } if source.is_denied() => {
            denied(endpoint.principal(), "--post", &args.channel)
        }
        _ => not_sent(error),
    })?;
    print(&posted, args.json, ctx)
}

/// Prints what was stored.
pub fn print(posted: &Posted, json: JsonArg, ctx: &Context) -> anyhow::Result<Exit> {
    let Posted { id, seq } = posted;
    message::print_stored((id, *seq), format_args!("{id} {seq}"), json, ctx)
}
