//! `cotal history`: what was posted on a channel.

use std::time::Duration;

use cotal_client::{Channel, EndpointOptions, HistoryError, Replay};

use crate::args::{JsonArg, duration};
use crate::commands::as_agent::{AgentArgs, channel, denied};
use crate::commands::inbox;
use crate::context::Context;
use crate::exit::Exit;

/// Prints what was posted on a channel, the oldest first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Of each sender the last 1,000 posts of a channel are kept. Nothing is acknowledged: what waits in
the agent's inbox still comes. With --json each post is a line of its own.

Examples:
  cotal history team.backend --as bob
  cotal history team.backend --as bob --since 24h --ids
  cotal history team.backend --as bob --json | jq -r .text")]
pub struct Args {
    /// The channel.
    #[arg(value_name = "CHANNEL", value_parser = channel)]
    channel: Channel,
    /// Only what is not older: a number and ms, s, m, h or d.
    #[arg(long, value_name = "SPAN", value_parser = duration)]
    since: Option<Duration>,
    /// Print each post's id as well.
    #[arg(long)]
    ids: bool,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let quiet = |options: EndpointOptions| options.send_only().without_backfill();
    let endpoint = args.agent.connect(ctx, quiet).await?;
    let replay = args.since.map_or(Replay::All, Replay::Last);
    let (mut posts, mut printed) = (0_u64, Ok(()));
    let read = endpoint.history(&args.channel, replay, |post| {
        posts += 1;
        if printed.is_ok() {
            printed = inbox::print((&post, args.ids), args.json, ctx);
        }
    });
    let read = read.await;
    endpoint.close().await;
    printed?;
    match read {
        Err(HistoryError::Nats(error)) if error.is_denied() => {
            return Err(denied(endpoint.principal(), "--read", &args.channel));
        }
        read => read?,
    }
    if posts == 0 && !args.json.json {
        ctx.out.note(format_args!("no posts of {} are kept", args.channel));
    }
    Ok(Exit::Ok)
}
