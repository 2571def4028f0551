//! `cotal status`: what runs, who is there and what was missed.
//!
//! Invariant: a thing is called serving only when a responder answered just now. What could not be
//! asked is said to be unknown, never guessed.

mod collect;
mod components;
mod host;
mod report;

use cotal_wire::anycast::{ListedRequest, Standing};
use cotal_wire::control::{DeliveryStatus, UnroutedPosts};

use crate::args::{self, JsonArg};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{age, plain};

use self::report::{SpaceStatus, Status};

/// Shows what runs, who is there and what was missed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with 0 when every space of the root is served, 7 when one is not, 9 when the broker cannot be
reached. On a root that only runs a host (`cotal deliver --spaces`) it shows the host's lanes: 0
when each serves or stands by, 7 otherwise.

With --components a monitor asks: each component is probed, and the worst state is the exit code: 0
serving, 1 absent, 2 not serving, 3 refused, 4 when nothing could be asked (no root, unreadable
files).

Examples:
  cotal status
  cotal status --json
  cotal status --components --space main")]
pub struct Args {
    /// Only probe whether broker and daemons serve; ends with codes of its own, see below.
    #[arg(long)]
    components: bool,
    /// Probe the daemon of this space alone.
    #[arg(long, value_name = "SPACE", requires = "components", value_parser = args::space)]
    space: Option<cotal_wire::Space>,
    #[command(flatten)]
    output: JsonArg,
}

/// The oldest requests say enough to a person.
const REQUESTS_SHOWN: usize = 10;

const BROKER_NOT_ASKED: &str = "unknown: the broker could not be asked";
const DAEMON_NOT_ASKED: &str = "unknown: the daemon could not be asked";

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    if args.components {
        return components::run(args.space.as_ref(), args.output.json, ctx).await;
    }
    let root = ctx.root()?;
    if let Some(host) = host::alone(&root)? {
        return host.print(&root, args.output.json, ctx);
    }
    let mesh = ctx.mesh(&root)?;
    let status = collect::status(&root, &mesh).await?;
    let exit = verdict(&status);
    if args.output.json {
        ctx.out.json(&status)?;
    } else {
        print(&status, ctx)?;
    }
    Ok(exit)
}

fn verdict(status: &Status) -> Exit {
    let serves = |space: &SpaceStatus| matches!(space.delivery, None | Some("bound"));
    if status.broker.version.is_none() {
        Exit::Unreachable
    } else if status.disk.problem.is_none()
        && status.certificate.as_ref().is_none_or(|one| one.problem.is_none())
        && status.spaces.iter().all(serves)
    {
        Exit::Ok
    } else {
        Exit::NotServing
    }
}

fn print(status: &Status, ctx: &Context) -> anyhow::Result<()> {
    let out = &ctx.out;
    out.data(format_args!("root      {}", status.root.display()))?;
    let broker = &status.broker;
    let pid = broker.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
    match (&broker.version, &broker.error) {
        (Some(version), _) => {
            let server = &broker.server;
            out.data(format_args!("broker    nats-server {version} at {server}{pid}"))?;
        }
        (None, why) => {
            let why = why.as_deref().unwrap_or("it does not answer");
            out.data(format_args!("broker    not reached: {why}"))?;
        }
    }
    out.data(format_args!("disk      {}", status.disk))?;
    if let Some(warning) = status.disk.warning() {
        out.warn(warning);
    }
    if let Some(certificate) = &status.certificate {
        out.data(format_args!("tls       {}", certificate.told()))?;
    }
    for space in &status.spaces {
        print_space(space, ctx)?;
    }
    match &status.host {
        Some(host) => host::print(host, ctx),
        None => Ok(()),
    }
}

fn print_space(space: &SpaceStatus, ctx: &Context) -> anyhow::Result<()> {
    let out = &ctx.out;
    out.data("")?;
    out.data(format_args!("space     {}", space.space))?;
    let pid = space.pid.map_or(String::new(), |pid| format!(", pid {pid}"));
    match space.delivery {
        None => out.data("delivery  none: an open mesh is live-only")?,
        Some("bound") => out.data(format_args!("delivery  serving{pid}"))?,
        Some("unbound") => out.data(format_args!("delivery  not serving{pid}"))?,
        Some(_) => out.data(format_args!("delivery  unknown{pid}"))?,
    }
    match (space.delivery, space.manager) {
        (None, _) => {}
        (Some(_), Some(pid)) => out.data(format_args!("manager   pid {pid}"))?,
        (Some(_), None) => out.data("manager   does not run: nobody renews credentials")?,
    }
    if space.isolated == Some(false) {
        let name = &space.space;
        out.data(format_args!("accounts  one, not isolated: `cotal space isolate {name}`"))?;
    }
    if let Some(reason) = &space.gate {
        out.data(format_args!("gate      frozen: {}", plain(reason)))?;
    }
    // An open mesh has none of the rest.
    if space.delivery.is_some() {
        print_stored(space, ctx)?;
        print_counted(space, ctx)?;
    }
    for error in &space.errors {
        out.warn(plain(error));
    }
    Ok(())
}

/// What the broker tells.
fn print_stored(space: &SpaceStatus, ctx: &Context) -> anyhow::Result<()> {
    let out = &ctx.out;
    match &space.lease {
        None => out.data(format_args!("lease     {BROKER_NOT_ASKED}"))?,
        Some(None) => out.data("lease     nobody holds it")?,
        Some(Some(lease)) => {
            let ready = if lease.ready { "ready" } else { "not ready" };
            // The holder's name is a key, which tells a person nothing where the process is known.
            let holder = match (space.pid, space.delivery) {
                (Some(pid), Some("bound")) => format!("held by process {pid}"),
                _ => format!("held by {}", lease.holder),
            };
            out.data(format_args!("lease     {holder}, {ready}"))?;
        }
    }
    match space.agents {
        None => out.data(format_args!("agents    {BROKER_NOT_ASKED}"))?,
        Some(agents) => out.data(format_args!("agents    {agents}"))?,
    }
    let Some(streams) = &space.streams else {
        return Ok(out.data(format_args!("streams   {BROKER_NOT_ASKED}"))?);
    };
    for stream in streams {
        out.data(format_args!(
            "stream    {}: {} messages, {} bytes, {} consumers",
            stream.name, stream.messages, stream.bytes, stream.consumers
        ))?;
    }
    Ok(())
}

/// What the daemon tells.
fn print_counted(space: &SpaceStatus, ctx: &Context) -> anyhow::Result<()> {
    match &space.counters {
        None => ctx.out.data(format_args!("counted   {DAEMON_NOT_ASKED}"))?,
        Some(counters) => print_counters(counters, ctx)?,
    }
    match &space.requests {
        None => ctx.out.data(format_args!("requests  {DAEMON_NOT_ASKED}"))?,
        Some(requests) => print_requests(requests, ctx)?,
    }
    Ok(())
}

/// A request that nobody takes, or that every holder gives back, is old and still here.
fn print_requests(requests: &[ListedRequest], ctx: &Context) -> anyhow::Result<()> {
    for request in requests.iter().take(REQUESTS_SHOWN) {
        let ListedRequest { seq, role, sender, .. } = request;
        let state = match (&request.holder, request.state) {
            (Some(holder), Standing::Taken) => {
                let delivery = request.delivery.unwrap_or_default();
                format!("not finished, last taken by {holder} at delivery {delivery}")
            }
            (Some(holder), Standing::Queued) => format!("given back by {holder}"),
            (_, Standing::Cancelled) => "being cancelled".to_owned(),
            _ => "nobody has taken it".to_owned(),
        };
        let age = age(request.since);
        ctx.out.data(format_args!("request   {seq} to {role} from {sender}: {age}, {state}"))?;
    }
    if requests.len() > REQUESTS_SHOWN {
        ctx.out.data(format_args!("request   more are younger; --json shows up to 100"))?;
    }
    Ok(())
}

/// Posts that nobody got, in one line.
fn unrouted(miss: &UnroutedPosts) -> String {
    let UnroutedPosts { first, last, at_least, at_most, .. } = miss;
    let count = if at_least == at_most {
        format!("{at_most} posts")
    } else {
        format!("{at_least} to {at_most} posts")
    };
    match (&miss.sender, &miss.channel) {
        (Some(sender), Some(channel)) => format!(
            "{sender} on {channel}: {count} of {first} to {last} were posted faster than they were \
             routed, and reached nobody"
        ),
        _ => format!("{count} of {first} to {last} were deleted before they were routed"),
    }
}

fn print_counters(counters: &DeliveryStatus, ctx: &Context) -> anyhow::Result<()> {
    let out = &ctx.out;
    out.data(format_args!(
        "counted   {} posts, {} copies, {} delivered, {} denied, {} refused, {} waiting, \
         {} parked, {} given up",
        counters.posts,
        counters.copies,
        counters.delivered,
        counters.denied,
        counters.refused_posts,
        counters.waiting,
        counters.parked,
        counters.given_up
    ))?;
    out.data(format_args!(
        "timers    {} armed, {} requests refused",
        counters.armed_timers, counters.refused_timers
    ))?;
    for down in &counters.down {
        let (component, reason) = (plain(&down.component), plain(&down.reason));
        out.data(format_args!("down      {component}: {reason}"))?;
    }
    for miss in &counters.missed {
        out.data(format_args!(
            "missed    {}: {} unread posts were lost, because more waited than are kept",
            miss.member, miss.missed
        ))?;
    }
    for miss in &counters.unrouted {
        out.data(format_args!("unrouted  {}", unrouted(miss)))?;
    }
    Ok(())
}
