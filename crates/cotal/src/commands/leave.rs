//! `cotal leave`: the end of a durable membership.

use cotal_client::{Channel, Departure, EndpointOptions, LeaveState};
use serde_json::json;

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, advice, channel, exit_of};
use crate::context::Context;
use crate::exit::Exit;

/// Leaves a channel: nothing posted from now on is delivered.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What was posted before still arrives. Leaving what was not joined is no error.

Example:
  cotal leave team.backend --as bob")]
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
    let state = endpoint.leave(&args.channel).await;
    endpoint.close().await;
    if args.json.json {
        ctx.out.json(&as_json(&state))?;
    } else {
        ctx.out.data(&state)?;
    }
    Ok(match &state.durable {
        Departure::Durable { .. } | Departure::NotMember => Exit::Ok,
        Departure::Standing(why) => {
            ctx.out.warn(format_args!("{}: {}", state.channel, advice(why)));
            exit_of(why)
        }
    })
}

fn as_json(state: &LeaveState) -> serde_json::Value {
    let (left, generation, reason) = match &state.durable {
        Departure::Durable { generation } => (true, Some(*generation), None),
        Departure::NotMember => (false, None, None),
        Departure::Standing(why) => (false, None, Some(why.to_string())),
    };
    json!({
        "channel": state.channel,
        "left": left,
        "generation": generation,
        "reason": reason,
    })
}
