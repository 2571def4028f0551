//! `cotal join`: a durable membership.

use cotal_client::{Backstop, Channel, EndpointOptions, JoinState, Live};
use serde_json::json;

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, advice, channel, denied, exit_of};
use crate::context::Context;
use crate::exit::Exit;

/// Joins a channel, so that its posts are kept while the agent is away.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A durable membership outlives this command; its live half ends with it. Read with `cotal inbox`.
Exit code 0 says that all of what the channel offers was established, 10 that the durable backstop
was not.

Example:
  cotal join team.backend --as bob")]
pub struct Args {
    /// The channel.
    #[arg(value_name = "CHANNEL", value_parser = channel)]
    channel: Channel,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let endpoint = args.agent.connect(ctx, EndpointOptions::send_only).await?;
    let state = endpoint.join(&args.channel).await;
    endpoint.close().await;
    if args.json.json {
        ctx.out.json(&as_json(&state))?;
    } else {
        ctx.out.data(&state)?;
    }
    comment(&state, ctx);
    judge(state)
}

fn as_json(state: &JoinState) -> serde_json::Value {
    let (durable, generation, reason) = match &state.backstop {
        Backstop::Durable { generation } => (true, Some(*generation), None),
        Backstop::Unestablished(why) => (false, None, Some(why.to_string())),
        Backstop::NotDurable => (false, None, None),
    };
    let backstop = match &state.backstop {
        Backstop::Durable { .. } => "established",
        Backstop::Unestablished(_) => "unestablished",
        Backstop::NotDurable => "none",
    };
    json!({
        "channel": state.channel,
        "live": matches!(state.live, Live::Active),
        "durable": durable,
        "backstop": backstop,
        "generation": generation,
        "reason": reason,
    })
}

fn comment(state: &JoinState, ctx: &Context) {
    if matches!(state.live, Live::Refused(_)) {
        return;
    }
    match &state.backstop {
        Backstop::Durable { .. } => {}
        Backstop::Unestablished(why) => ctx.out.warn(format_args!(
            "this join of {} is not durable: {why}; what an earlier join established stands; {}",
            state.channel,
            advice(why)
        )),
        Backstop::NotDurable => ctx.out.note(format_args!(
            "{0} is a live channel, and the live half ended with this command: listen with \
             `cotal inbox --follow --channel {0}`",
            state.channel
        )),
    }
}

fn judge(state: JoinState) -> anyhow::Result<Exit> {
    match (state.live, state.backstop) {
        (Live::Active, Backstop::Durable { .. } | Backstop::NotDurable) => Ok(Exit::Ok),
        (Live::Active, Backstop::Unestablished(_))
        | (Live::Refused(_), Backstop::Durable { .. }) => Ok(Exit::Partial),
        (Live::Refused(error), Backstop::NotDurable) if error.is_denied() => Err(denied(error)),
        (Live::Refused(error), Backstop::NotDurable) => Err(error.into()),
        (Live::Refused(error), Backstop::Unestablished(why)) => {
            // Neither half: the broker's own answer is the nearer cause.
            if error.is_denied() {
                return Err(denied(error));
            }
            Ok(exit_of(&why))
        }
    }
}
