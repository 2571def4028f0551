//! `cotal unread`: how much waits for an agent.

use cotal_client::EndpointOptions;
use serde_json::json;

use crate::args::JsonArg;
use crate::commands::as_agent::AgentArgs;
use crate::context::Context;
use crate::exit::Exit;

/// Prints how many messages wait in an agent's inbox.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nothing is read. Messages that a reader was handed and has not acknowledged count as well; they come
again within 60 s if it is gone.

Examples:
  cotal unread --as bob
  cotal unread --as bob --json")]
pub struct Args {
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let endpoint = args.agent.connect(ctx, EndpointOptions::send_only).await?;
    let waiting = endpoint.waiting().await;
    endpoint.close().await;
    let waiting = waiting?;
    let unread = waiting.undelivered + waiting.unacked;
    if args.json.json {
        ctx.out.json(&json!({ "unread": unread, "beingRead": waiting.unacked }))?;
    } else {
        ctx.out.data(unread)?;
    }
    Ok(Exit::Ok)
}
