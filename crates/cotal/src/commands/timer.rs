//! `cotal timer`: timers of workflow endpoints, for people, tests and scripts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use cotal_client::{Credential, TimerError, Timers};
use cotal_manager::clock::unix_millis;
use cotal_manager::{Authority, provision_endpoint};
use cotal_nats::{Connection, Get, StoredMessage, headers};
use cotal_wire::timers::{Held, LATEST_DEADLINE, Phase, TimerBody};
use cotal_wire::{EndpointName, Space, Timer};
use cotal_workspace::files::{self, Privacy};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep};

use crate::args::{JsonArg, MeshArgs, duration};
use crate::context::{Context, Target};
use crate::exit::{Exit, Failure};

/// How long the credential of one command lives, in seconds.
const ONE_SHOT: i64 = 5 * 60;
/// How long a daemon may take to arm what was asked for.
const ARMED_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at a timer.
const TIMER_POLL_EVERY: Duration = Duration::from_millis(100);
/// Timers that one listing shows; each is a question to the broker.
const LISTED: usize = 1_000;

/// Sets, lists, cancels and awaits timers of workflow endpoints.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A timer is <endpoint>.<instanceId>.<epoch>.<timerId>. It fires on the broker, also while no daemon
runs; a daemon is needed to arm it.

Examples:
  cotal timer set wf.run-7.1.step-3 --in 30s
  cotal timer wait wf.run-7.1.step-3
  cotal timer list --endpoint wf
  cotal timer cancel wf.run-7.1.step-3
  cotal timer creds wf --out wf.creds")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Ask for a timer, and wait until it is armed.
    #[command(after_help = "\
Ends with 7 when the request is stored and no daemon has armed it yet.

Examples:
  cotal timer set wf.run-7.1.step-3 --in 30s
  cotal timer set wf.run-7.1.step-3 --at 2026-12-01T08:00:00Z")]
    Set(Set),
    /// List what is armed, or what has fired.
    #[command(after_help = "\
Example:
  cotal timer list --endpoint wf --json")]
    List(List),
    /// Cancel a timer.
    #[command(after_help = "\
Ends with 8 when the timer has fired already.

Example:
  cotal timer cancel wf.run-7.1.step-3")]
    Cancel(One),
    /// Wait until what was asked for last has fired; it is not taken from the endpoint.
    #[command(after_help = "\
Ends with 5 when it does not fire in time.

Example:
  cotal timer wait wf.run-7.1.step-3 --within 2m")]
    Wait(Wait),
    /// Write the credential of an endpoint, which asks for its timers by itself.
    #[command(after_help = "\
The credential asks for timers of this endpoint and reads when they fire, and may do nothing else.

Example:
  cotal timer creds wf --out wf.creds --days 30")]
    Creds(Creds),
}

#[derive(Debug, clap::Args)]
struct One {
    /// The timer: <endpoint>.<instanceId>.<epoch>.<timerId>.
    #[arg(value_name = "TIMER", value_parser = timer)]
    timer: Timer,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    one: One,
    /// How long from now: a number and ms, s, m, h or d.
    #[arg(long = "in", value_name = "SPAN", value_parser = duration, required_unless_present = "at")]
    after: Option<Duration>,
    /// When, in RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = instant, conflicts_with = "after")]
    at: Option<OffsetDateTime>,
    /// Which request for this timer it is; else the one after the last.
    #[arg(long, value_name = "NUMBER")]
    generation: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only this endpoint's timers.
    #[arg(long, value_name = "NAME", value_parser = endpoint)]
    endpoint: Option<EndpointName>,
    /// List what has fired instead.
    #[arg(long)]
    fired: bool,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

#[derive(Debug, clap::Args)]
struct Wait {
    #[command(flatten)]
    one: One,
    /// How long to wait at most.
    #[arg(long, value_name = "SPAN", value_parser = duration, default_value = "60s")]
    within: Duration,
}

#[derive(Debug, clap::Args)]
struct Creds {
    /// The endpoint: the first token of its timers.
    #[arg(value_name = "NAME", value_parser = endpoint)]
    endpoint: EndpointName,
    /// The file to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How long the credential lives.
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=366))]
    days: u16,
    #[command(flatten)]
    mesh: MeshArgs,
}

fn timer(text: &str) -> Result<Timer, String> {
    Timer::parse(text).map_err(|e| e.to_string())
}

fn endpoint(text: &str) -> Result<EndpointName, String> {
    EndpointName::parse(text).map_err(|e| e.to_string())
}

fn instant(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|e| e.to_string())
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.action {
        Action::Set(args) => set(args, ctx).await,
        Action::List(args) => list(args, ctx).await,
        Action::Cancel(one) => cancel(one, ctx).await,
        Action::Wait(args) => wait(args, ctx).await,
        Action::Creds(args) => creds(args, ctx).await,
    }
}

/// A timer as the broker holds it.
struct Stands {
    body: TimerBody,
    has_fired: bool,
}

/// Looks at timers with an operator's rights.
struct Look {
    target: Target,
    operator: Connection,
}

impl Look {
    async fn at(mesh: &MeshArgs, ctx: &Context) -> anyhow::Result<Self> {
        let target = ctx.target(mesh)?;
        target.demand_authenticated("timers")?;
        let (_, operator) = target.operator().await?;
        Ok(Self { target, operator })
    }

    async fn last(&self, stream: &str, subject: &str) -> anyhow::Result<Option<StoredMessage>> {
        Ok(self.operator.get_message(stream, Get::LastBySubject(subject)).await?)
    }

    /// What stands of a timer: what is armed, else what has fired.
    async fn stands(&self, timer: &Timer) -> anyhow::Result<Option<Stands>> {
        let space = &self.target.space;
        for subject in [space.ept_armed(timer), space.ept_fire(timer)] {
            let message = self.last(&space.ept_stream(), &subject).await?;
            if let Some(stands) = message.and_then(|message| read(space, &message)) {
                return Ok(Some(stands.1));
            }
        }
        Ok(None)
    }

    /// The last generation that was asked for, armed or not.
    async fn asked(&self, timer: &Timer) -> anyhow::Result<u64> {
        let space = &self.target.space;
        let request = self.last(&space.ept_req_stream(), &space.ept_schedule(timer)).await?;
        let request = request.and_then(|request| TimerBody::parse(&request.payload).ok());
        let asked = request.map_or(0, |request| request.generation);
        let stands = self.stands(timer).await?.map_or(0, |stands| stands.body.generation);
        Ok(asked.max(stands))
    }

    /// Asks as the timer's endpoint, and waits until the broker shows what became of it.
    async fn ask(&self, timer: &Timer, generation: u64, deadline: i64) -> anyhow::Result<Stands> {
        let authority = Authority::open(&self.target.root, &self.target.space)?;
        let (endpoint, address) = (EndpointName::parse(timer.endpoint())?, self.target.address());
        let creds = provision_endpoint(&authority, &address, &endpoint, ONE_SHOT).await?;
        let creds = Credential::Text(creds.expose().to_owned());
        let timers = Timers::connect(address.url, creds, address.tls).await?;
        let asked = timers.set(timer, generation, deadline).await;
        timers.close().await;
        asked.map_err(not_stored)?;
        let until = Instant::now() + ARMED_WITHIN;
        loop {
            match self.stands(timer).await? {
                Some(stands) if stands.body.generation >= generation => return Ok(stands),
                _ if Instant::now() >= until => {
                    let message = "the request is stored and not armed: `cotal status` shows whether \
                                   the daemon and its timer writer run, and it is armed when they do";
                    return Err(Failure::new(Exit::NotServing, message).into());
                }
                _ => sleep(TIMER_POLL_EVERY).await,
            }
        }
    }
}

/// A request that was not stored; what the broker said decides the code where it said something.
fn not_stored(error: TimerError) -> anyhow::Error {
    match error {
        TimerError::Deadline(_) => Failure::new(Exit::Usage, error.to_string()).into(),
        other => other.into(),
    }
}

fn read(space: &Space, message: &StoredMessage) -> Option<(Timer, Stands)> {
    let header = |name| headers::get(message.headers.as_ref(), name);
    let held = Held::new(&message.subject, message.seq, header, &message.payload);
    let (timer, phase) = space.read_timer(&held)?;
    let (body, has_fired) = match phase {
        Phase::Armed(body) => (body, false),
        Phase::Fired(body) => (body, true),
    };
    Some((timer, Stands { body, has_fired }))
}

async fn set(args: Set, ctx: &Context) -> anyhow::Result<Exit> {
    let look = Look::at(&args.one.mesh, ctx).await?;
    let timer = &args.one.timer;
    let asked = look.asked(timer).await?;
    let generation = args.generation.unwrap_or(asked.saturating_add(1));
    if generation <= asked {
        let message = format!(
            "generation {asked} of {timer} was asked for already: give a higher one, or none"
        );
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    let deadline = match (args.at, args.after) {
        (Some(at), _) => i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX),
        (None, after) => {
            let after = after.unwrap_or_default().as_millis();
            unix_millis().saturating_add(i64::try_from(after).unwrap_or(i64::MAX))
        }
    };
    let stands = look.ask(timer, generation, deadline).await?;
    if args.one.output.json {
        ctx.out.json(&as_json(timer, &stands))?;
    } else {
        let state = if stands.has_fired { "has fired" } else { "is armed" };
        ctx.out.data(format_args!("{timer} {state} for {}", due(stands.body.deadline)))?;
    }
    Ok(Exit::Ok)
}

async fn cancel(one: One, ctx: &Context) -> anyhow::Result<Exit> {
    let look = Look::at(&one.mesh, ctx).await?;
    let timer = &one.timer;
    let asked = look.asked(timer).await?;
    if asked == 0 {
        return Err(unknown(timer));
    }
    if look.stands(timer).await?.is_some_and(|s| s.has_fired && s.body.generation >= asked) {
        let message = format!("{timer} has fired already");
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    let generation = asked.saturating_add(1);
    let stands = look.ask(timer, generation, LATEST_DEADLINE).await?;
    if one.output.json {
        ctx.out.json(&as_json(timer, &stands))?;
    } else {
        ctx.out.data("cancelled")?;
    }
    Ok(Exit::Ok)
}

async fn wait(args: Wait, ctx: &Context) -> anyhow::Result<Exit> {
    let look = Look::at(&args.one.mesh, ctx).await?;
    let timer = &args.one.timer;
    let asked = look.asked(timer).await?;
    if asked == 0 {
        return Err(unknown(timer));
    }
    let until = Instant::now() + args.within;
    loop {
        match look.stands(timer).await? {
            Some(stands) if stands.has_fired && stands.body.generation >= asked => {
                if args.one.output.json {
                    ctx.out.json(&as_json(timer, &stands))?;
                } else {
                    ctx.out.data("fired")?;
                }
                return Ok(Exit::Ok);
            }
            _ if Instant::now() >= until => {
                let message = format!("{timer} has not fired within {:?}", args.within);
                return Err(Failure::new(Exit::TimedOut, message).into());
            }
            _ => sleep(TIMER_POLL_EVERY).await,
        }
    }
}

fn unknown(timer: &Timer) -> anyhow::Error {
    let message = format!("{timer} was never asked for: `cotal timer list` shows what is armed");
    Failure::new(Exit::Absent, message).into()
}

async fn list(args: List, ctx: &Context) -> anyhow::Result<Exit> {
    let look = Look::at(&args.mesh, ctx).await?;
    let (space, kind) = (&look.target.space, if args.fired { "fire" } else { "armed" });
    let filter = match &args.endpoint {
        Some(endpoint) => space.ept_endpoint(endpoint, kind),
        None => space.ept_all(kind),
    };
    let stream = space.ept_stream();
    let page = look.operator.stream_info_subjects(&stream, &filter, 0).await?;
    let mut found = Vec::new();
    for (subject, _) in page.subjects.iter().take(LISTED) {
        let message = look.last(&stream, subject).await?;
        found.extend(message.and_then(|message| read(space, &message)));
    }
    if page.total > LISTED as u64 {
        let more = page.total - LISTED as u64;
        ctx.out.warn(format!("{more} more are not shown: name an endpoint with --endpoint"));
    }
    found.sort_by(|(a, s), (b, t)| (s.body.deadline, a).cmp(&(t.body.deadline, b)));
    if args.output.json {
        let rows: Vec<_> = found.iter().map(|(timer, stands)| as_json(timer, stands)).collect();
        ctx.out.json(&rows)?;
        return Ok(Exit::Ok);
    }
    let row = |(timer, stands): &(Timer, Stands)| {
        let TimerBody { generation, deadline, .. } = &stands.body;
        vec![timer.to_string(), generation.to_string(), due(*deadline)]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    let none = if args.fired { "nothing has fired" } else { "no timers" };
    ctx.out.table(&["TIMER", "GENERATION", "DUE"], &rows, none)?;
    Ok(Exit::Ok)
}

async fn creds(args: Creds, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("workflow endpoints")?;
    let authority = Authority::open(&target.root, &target.space)?;
    let seconds = i64::from(args.days) * 86_400;
    let made = provision_endpoint(&authority, &target.address(), &args.endpoint, seconds).await?;
    files::create(&args.out, made.expose().as_bytes(), Privacy::Secret)?;
    let (endpoint, days) = (&args.endpoint, args.days);
    ctx.out
        .proven(format!("{} is the credential of {endpoint} for {days} days", args.out.display()));
    Ok(Exit::Ok)
}

fn as_json(timer: &Timer, stands: &Stands) -> serde_json::Value {
    let TimerBody { generation, deadline, .. } = &stands.body;
    let state = match (stands.has_fired, *deadline) {
        (true, _) => "fired",
        (false, LATEST_DEADLINE) => "cancelled",
        (false, _) => "armed",
    };
    json!({ "timer": timer.as_str(), "generation": generation, "deadline": deadline, "state": state })
}

fn due(deadline: i64) -> String {
    if deadline == LATEST_DEADLINE {
        return "never: it is cancelled".to_owned();
    }
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(deadline) * 1_000_000);
    let text = at.ok().and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_else(|| deadline.to_string())
}
