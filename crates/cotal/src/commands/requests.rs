//! `cotal requests`: what an agent has asked of roles.

use cotal_client::{EndpointOptions, ListedRequest, Standing};

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, not_asked};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::age;

/// Lists the role requests of an agent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Listed are the requests on the queue, and those that left it within the last day.

queued     nobody has it
taken      a holder has it and has not finished it
done       it has left the queue after a holder took it
failed     its holder could not do it
cancelled  its sender took it back

Examples:
  cotal requests --as alice
  cotal requests --as alice --json")]
pub struct Args {
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let endpoint = args.agent.connect(ctx, EndpointOptions::send_only).await?;
    let requests = endpoint.requests().await;
    endpoint.close().await;
    let requests = requests.map_err(not_asked)?;
    if args.json.json {
        ctx.out.json(&requests)?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = requests.iter().map(as_row).collect();
    let heading = ["REQUEST", "ROLE", "STATE", "HOLDER", "DELIVERY", "AGE"];
    ctx.out.table(&heading, &rows, "no requests")?;
    Ok(Exit::Ok)
}

fn as_row(request: &ListedRequest) -> Vec<String> {
    let none = || "-".to_owned();
    vec![
        request.seq.to_string(),
        request.role.to_string(),
        state(request.state).to_owned(),
        request.holder.as_ref().map_or_else(none, ToString::to_string),
        request.delivery.map_or_else(none, |delivery| delivery.to_string()),
        age(request.since),
    ]
}

fn state(state: Standing) -> &'static str {
    match state {
        Standing::Queued => "queued",
        Standing::Taken => "taken",
        Standing::Done => "done",
        Standing::Cancelled => "cancelled",
        Standing::Failed => "failed",
        _ => "of a later version",
    }
}
