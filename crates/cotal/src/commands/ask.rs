//! `cotal ask`: a request to whoever holds a role.

use std::time::Duration;

use cotal_client::{EndpointOptions, Outcome, Posted, RequestOutcome, Role, WaitError};
use serde_json::json;

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, not_asked, not_sent, role};
use crate::commands::message;
use crate::commands::reach::Reach;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::plain_lines;

/// A year: nobody waits longer, and an instant beyond the clock's end has no name.
const LONGEST_WAIT: u64 = 365 * 86_400;

/// Asks whoever holds a role, and prints the request's number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`cotal request` takes that number. One holder gets the request; a direct message says which.
With --wait the answer is printed instead, and the exit code is 1 when the holder could not do it, 5
when no answer came in time; it can still be read with `cotal request status`.

Examples:
  cotal ask reviewer 'Please review branch x' --as alice
  git diff | cotal ask reviewer - --as alice
  cotal ask reviewer 'Please review branch x' --as alice --wait=600
  cotal request status 12 --as alice")]
pub struct Args {
    /// The role.
    #[arg(value_name = "ROLE", value_parser = role)]
    role: Role,
    #[command(flatten)]
    text: message::TextArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// Wait for the answer and print it; at most this many seconds, an hour where none are given.
    #[arg(long, value_name = "SECS", num_args = 0..=1, require_equals = true,
          default_missing_value = "3600",
          value_parser = clap::value_parser!(u64).range(..=LONGEST_WAIT))]
    wait: Option<u64>,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let draft = args.text.draft().await?;
    let seat = args.agent.seat(ctx)?;
    if let Some(reach) = Reach::of(&seat).await {
        reach.role(&args.role, ctx).await?;
    }
    let endpoint = seat.connect(EndpointOptions::send_only).await?;
    let asked = endpoint.ask(&args.role, draft).await;
    let (Ok(sent), Some(wait)) = (&asked, args.wait) else {
        endpoint.close().await;
        let asked = asked.map_err(not_sent)?;
        return message::print_stored((&asked.id, asked.seq), asked.seq, args.json, ctx);
    };
    ctx.out.note(format_args!("request {} is sent, waiting for its answer", sent.seq));
    let outcome = endpoint.wait_for_result(sent.seq, Duration::from_secs(wait)).await;
    endpoint.close().await;
    answered(sent, outcome.map_err(not_answered)?, args.json, ctx)
}

/// Prints an answer; that the request failed is the command's failure.
fn answered(
    asked: &Posted,
    outcome: RequestOutcome,
    json: JsonArg,
    ctx: &Context,
) -> anyhow::Result<Exit> {
    let failed = outcome.outcome == Outcome::Failed;
    if json.json {
        ctx.out.json(&json!({
            "id": asked.id,
            "seq": asked.seq,
            "outcome": outcome.outcome,
            "holder": outcome.holder,
            "text": outcome.text(),
            "parts": outcome.parts,
        }))?;
    } else {
        ctx.out.data(plain_lines(&outcome.text()))?;
    }
    if !failed {
        return Ok(Exit::Ok);
    }
    let holder = outcome.holder.map_or_else(|| "its holder".to_owned(), |h| h.to_string());
    let message = format!("request {} failed at {holder}", asked.seq);
    Err(Failure::new(Exit::Failure, message).into())
}

fn not_answered(error: WaitError) -> anyhow::Error {
    let exit = match error {
        WaitError::Control { source, .. } => return not_asked(source),
        WaitError::TimedOut { seq, .. } => {
            let message = format!("{error}; `cotal request status {seq}` shows a later answer");
            return Failure::new(Exit::TimedOut, message).into();
        }
        WaitError::Cancelled(_) => Exit::Conflict,
        WaitError::Unknown(_) => Exit::Absent,
        _ => Exit::Failure,
    };
    Failure::new(exit, error.to_string()).into()
}
