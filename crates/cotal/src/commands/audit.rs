//! `cotal audit`: whether the broker refuses an agent what it must not do.

use std::time::Duration;

use cotal_nats::{Bytes, Connection, Denial, Listener, NatsError, Operation};
use cotal_wire::Space;
use cotal_wire::attempts::{Attempt, harmless};
use serde_json::json;
use tokio::time::timeout;

use super::as_agent::AgentArgs;
use crate::args::JsonArg;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// A space that nobody has: what is refused there is refused in every other.
const OTHER: &str = "another-space";
/// How long the broker may take to refuse.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// How long the connection may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Tries, as an agent, what the broker must refuse it; nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It subscribes to what others hear and calls what others may read, in this space and in another. Each
attempt is followed by one that nobody may make, so every refusal is seen and none is guessed. It
ends with 1 when anything was allowed.

Example:
  cotal audit --as bob")]
pub struct Args {
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let (creds, options) = args.agent.seat(ctx)?.bare("cotal audit")?;
    let attempts = harmless(&creds, &Space::parse(OTHER)?)?;
    let connection = Connection::connect(options).await?;
    let mut audit = Audit { denials: connection.denials(), connection, marks: 0 };
    let mut allowed = Vec::new();
    for attempt in &attempts {
        if !audit.is_refused(attempt).await? {
            allowed.push(match attempt {
                Attempt::Call(subject) => format!("call {subject}"),
                Attempt::Subscribe(subject) => format!("subscribe to {subject}"),
            });
        }
    }
    audit.connection.close(CLOSE_WITHIN).await;
    if args.output.json {
        ctx.out.json(&json!({ "attempts": attempts.len(), "allowed": allowed }))?;
    } else {
        for attempt in &allowed {
            ctx.out.warn(format!("the broker lets it {attempt}"));
        }
    }
    let (tried, through) = (attempts.len(), allowed.len());
    if through > 0 {
        let message = format!("{through} of {tried} attempts are not refused");
        return Err(Failure::new(Exit::Failure, message).into());
    }
    ctx.out.proven(format!("the broker refuses all {tried} attempts"));
    Ok(Exit::Ok)
}

/// A connection whose every attempt is judged by what the broker says about it.
struct Audit {
    connection: Connection,
    denials: Listener<Denial>,
    marks: u64,
}

impl Audit {
    /// The broker works off a connection's lines in order: what it says about an attempt stands
    /// before what it says about the mark behind it, which nobody may publish.
    async fn is_refused(&mut self, attempt: &Attempt) -> anyhow::Result<bool> {
        let mut refused = false;
        let wanted = match attempt {
            Attempt::Call(subject) => {
                let reply = format!("{}.audit", self.connection.inbox_prefix());
                let call = subject.as_str();
                self.connection.publish_with_reply(call, reply, None, Bytes::new()).await?;
                (Operation::Publish, subject)
            }
            Attempt::Subscribe(subject) => {
                match self.connection.subscribe(subject.as_str(), None).await {
                    Ok(_) => {}
                    Err(NatsError::Denied { .. }) => refused = true,
                    Err(error) => return Err(error.into()),
                }
                (Operation::Subscribe, subject)
            }
        };
        self.marks += 1;
        let mark = format!("nobody.may.publish.this.{}", self.marks);
        self.connection.publish(mark.as_str(), None, Bytes::new()).await?;
        loop {
            let denial = timeout(REFUSED_WITHIN, self.denials.recv()).await;
            let denial = denial.map_err(|_| {
                let message = "the broker did not refuse a subject that nobody may use";
                Failure::new(Exit::Failure, message)
            })??;
            if denial.subject == mark {
                return Ok(refused);
            }
            refused |= (denial.operation, &denial.subject) == wanted;
        }
    }
}
