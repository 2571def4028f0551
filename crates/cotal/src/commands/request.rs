//! `cotal request`: where one role request stands, and taking it back.

use clap::Subcommand;
use cotal_client::{
    Cancel, EndpointOptions, Outcome, Part, RequestResult, RequestRow, RequestState,
};
use serde_json::{Value, json};

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, not_asked};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::plain_lines;

/// Shows the state of a role request, or cancels it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal request status 12 --as alice
  cotal request cancel 12 --as alice")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the state of a request (queued, taken, returned, done, failed, cancelled or unknown),
    /// and its answer.
    #[command(after_help = "\
Ends with 4 for a number that is none of the agent's requests.

Example:
  cotal request status 12 --as alice")]
    Status(One),
    /// Cancel a request, as long as no holder has it.
    #[command(after_help = "\
Ends with 8 when a holder has it already, and with 4 for a number that is none of the agent's
requests.

Example:
  cotal request cancel 12 --as alice")]
    Cancel(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// The request's number, as `cotal ask` printed it.
    #[arg(value_name = "SEQ")]
    seq: u64,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.action {
        Action::Status(one) => status(one, ctx).await,
        Action::Cancel(one) => cancel(one, ctx).await,
    }
}

async fn status(one: One, ctx: &Context) -> anyhow::Result<Exit> {
    let endpoint = one.agent.connect(ctx, EndpointOptions::send_only).await?;
    let state = endpoint.request_status(one.seq).await;
    endpoint.close().await;
    let state = state.map_err(not_asked)?;
    if one.json.json {
        ctx.out.json(&as_json(one.seq, &state))?;
    } else if state != RequestState::Unknown {
        ctx.out.data(&state)?;
        let answer = result_of(&state).map(|result| Part::texts(&result.parts));
        if let Some(answer) = answer.filter(|answer| !answer.is_empty()) {
            ctx.out.data(plain_lines(&answer))?;
        }
    }
    match state {
        RequestState::Unknown => Err(unknown(one.seq)),
        _ => Ok(Exit::Ok),
    }
}

async fn cancel(one: One, ctx: &Context) -> anyhow::Result<Exit> {
    let endpoint = one.agent.connect(ctx, EndpointOptions::send_only).await?;
    let cancelled = endpoint.cancel_request(one.seq).await;
    endpoint.close().await;
    let cancelled = cancelled.map_err(not_asked)?;
    if one.json.json {
        let holder = match &cancelled {
            Cancel::Held(holder) => Some(holder),
            _ => None,
        };
        let done = cancelled == Cancel::Cancelled;
        ctx.out.json(&json!({ "seq": one.seq, "cancelled": done, "holder": holder }))?;
    }
    match cancelled {
        Cancel::Unknown => Err(unknown(one.seq)),
        Cancel::Cancelled => {
            if !one.json.json {
                ctx.out.data("cancelled")?;
            }
            Ok(Exit::Ok)
        }
        Cancel::Held(holder) => {
            let message = format!("{holder} has request {} already: ask them", one.seq);
            Err(Failure::new(Exit::Conflict, message).into())
        }
        _ => Err(anyhow::anyhow!("the state of request {} is not known", one.seq)),
    }
}

fn unknown(seq: u64) -> anyhow::Error {
    let message = format!("this agent has no request {seq}: `cotal requests` lists what it has");
    Failure::new(Exit::Absent, message).into()
}

/// The word for a request that a holder took.
fn taken(row: &RequestRow) -> &'static str {
    match row.result.as_ref().map(|result| result.outcome) {
        Some(Outcome::Failed) => "failed",
        Some(Outcome::Done) => "done",
        _ if row.gone > 0 => "done",
        Some(Outcome::Returned) => "returned",
        _ => "taken",
    }
}

fn result_of(state: &RequestState) -> Option<&RequestResult> {
    match state {
        RequestState::Taken(row) => row.result.as_ref(),
        _ => None,
    }
}

fn as_json(seq: u64, state: &RequestState) -> Value {
    let (name, row) = match state {
        RequestState::Queued => ("queued", None),
        RequestState::Unknown => ("unknown", None),
        RequestState::Cancelled(row) => ("cancelled", Some(row)),
        RequestState::Taken(row) => (taken(row), Some(row)),
        _ => ("of a later version", None),
    };
    let result = result_of(state);
    json!({
        "seq": seq,
        "state": name,
        "holder": row.and_then(|row| row.holder.as_ref()),
        "delivery": row.and_then(|row| row.delivery),
        "at": row.map(|row| row.at),
        "outcome": result.map(|result| result.outcome),
        "text": result.map(|result| Part::texts(&result.parts)),
        "parts": result.map(|result| &result.parts),
    })
}
