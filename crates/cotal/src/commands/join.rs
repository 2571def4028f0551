//! `cotal join`: a durable membership.

use cotal_client::{
    Backstop, Channel, Endpoint, EndpointOptions, Incoming, JoinState, Live, Principal, Replay,
};
use serde_json::json;

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, advice, channel, denied, exit_of};
use crate::commands::inbox;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{told, told_after};

/// Joins a channel, so that its posts are kept while the agent is away.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A durable membership outlives this command; its live half ends with it. Read with `cotal inbox`.
What the channel's settings show to whoever joins it, its history and its instructions, is printed.
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
    let quiet = |options: EndpointOptions| options.send_only().without_backfill();
    let endpoint = args.agent.connect(ctx, quiet).await?;
    let state = endpoint.join(&args.channel).await;
    let history = history(&endpoint, &state, args.json, ctx).await;
    endpoint.close().await;
    if args.json.json {
        ctx.out.json(&as_json(&state, &history))?;
    } else {
        ctx.out.data(&state)?;
        for post in &history {
            ctx.out.data(inbox::line(post))?;
        }
    }
    comment(&state, ctx);
    judge(state, endpoint.principal())
}

/// The posts that the channel shows to whoever joins it.
async fn history(
    endpoint: &Endpoint,
    state: &JoinState,
    json: JsonArg,
    ctx: &Context,
) -> Vec<Incoming> {
    let mut posts = Vec::new();
    if matches!(state.live, Live::Refused(_)) || state.replay == Replay::Off {
        return posts;
    }
    let read = endpoint.history(&state.channel, state.replay.clone(), |post| posts.push(post));
    if let Err(error) = read.await {
        let told = told(&error.into());
        ctx.out.warn(format_args!("the history of {} is not all shown: {told}", state.channel));
    } else if posts.is_empty() && !json.json {
        ctx.out.note(format_args!("{} shows its history, and there is none yet", state.channel));
    }
    posts
}

fn as_json(state: &JoinState, history: &[Incoming]) -> serde_json::Value {
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
        "instructions": state.instructions,
        "history": history.iter().map(inbox::as_json).collect::<Vec<_>>(),
    })
}

fn comment(state: &JoinState, ctx: &Context) {
    if matches!(state.live, Live::Refused(_)) {
        return;
    }
    if let Some(instructions) = &state.instructions {
        ctx.out.note(told_after("members are asked:", instructions));
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

fn judge(state: JoinState, who: &Principal) -> anyhow::Result<Exit> {
    match (state.live, state.backstop) {
        (Live::Active, Backstop::Durable { .. } | Backstop::NotDurable) => Ok(Exit::Ok),
        (Live::Active, Backstop::Unestablished(_))
        | (Live::Refused(_), Backstop::Durable { .. }) => Ok(Exit::Partial),
        (Live::Refused(error), Backstop::NotDurable) if error.is_denied() => {
            Err(denied(who, "--read", &state.channel))
        }
        (Live::Refused(error), Backstop::NotDurable) => Err(error.into()),
        (Live::Refused(error), Backstop::Unestablished(why)) => {
            // Neither half: the broker's own answer is the nearer cause.
            if error.is_denied() {
                return Err(denied(who, "--read", &state.channel));
            }
            Ok(exit_of(&why))
        }
    }
}
