//! `cargo xtask soak`: credentials that live for seconds, under traffic, while the daemon, the
//! manager and the broker are stopped and killed in turn.
//!
//! It holds when every message that was taken arrives, and no log tells of a credential that
//! expired although somebody was there to renew it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::Signal;

use super::bounded::until;
use super::mesh::Mesh;
use super::stage::say;
use super::{built, processes};

const TEAM: &str = "team.soak";
/// Less than the 1,000 that a store keeps of a member, by far.
const READ_EVERY: usize = 40;
/// Between the repair of one disturbance and the next.
const CALM: Duration = Duration::from_secs(12);
/// A killed daemon's lease runs out after 30 s, and a credential lives on meanwhile.
const UP_WITHIN: Duration = Duration::from_secs(90);
/// What a log says when a credential ran out, of the broker, the daemon or the manager.
const EXPIRED: [&str; 3] = ["expired", "awaiting proved renewal", "due for renewal"];

/// How long, and on what.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this binary instead of building one.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// How long it lasts, in seconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How long a credential lives, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    lifetime: u64,
}

/// What is stopped or killed, in turn.
const DISTURBANCES: [(&str, &str, Signal); 5] = [
    ("the daemon", "/spaces/0/pid", Signal::TERM),
    ("the manager", "/spaces/0/manager", Signal::TERM),
    ("the broker", "/broker/pid", Signal::KILL),
    ("the manager", "/spaces/0/manager", Signal::KILL),
    ("the daemon", "/spaces/0/pid", Signal::KILL),
];

/// Runs the soak.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cotal = match &args.binary {
        Some(path) => std::path::absolute(path)?,
        None => built()?,
    };
    let mut mesh = Mesh::new(&cotal)?;
    mesh.set_env("COTAL_CREDENTIAL_LIFETIME", &args.lifetime.to_string());
    let soaked = soak(&mesh, Duration::from_secs(args.seconds));
    if soaked.is_err() {
        mesh.tell_logs();
    }
    soaked?;
    mesh.down()
}

fn soak(mesh: &Mesh, lasts: Duration) -> anyhow::Result<()> {
    say(mesh.find_broker()?);
    mesh.cotal(&["up", "--detach", "--server-port", "0"])?;
    for name in ["Alice", "Bob"] {
        mesh.cotal(&["agent", "add", name, "--read", "team.>", "--post", "team.>"])?;
    }
    mesh.cotal(&["join", TEAM, "--as", "Bob"])?;
    let (began, mut calm_since) = (Instant::now(), Instant::now());
    let mut next = DISTURBANCES.iter().cycle();
    let (mut sent, mut got) = (0, BTreeSet::new());
    while began.elapsed() < lasts {
        mesh.cotal(&["post", TEAM, &format!("m{sent}"), "--as", "Alice"])?;
        sent += 1;
        if sent % READ_EVERY == 0 {
            read(mesh, 0, &mut got)?;
        }
        if calm_since.elapsed() >= CALM
            && let Some(disturbance) = next.next()
        {
            disturb(mesh, disturbance)?;
            calm_since = Instant::now();
        }
    }
    let missing = |got: &BTreeSet<String>| sent - got.len();
    let arrived = until(UP_WITHIN, Duration::from_millis(500), || {
        read(mesh, 0, &mut got)?;
        Ok((missing(&got) == 0).then_some(()))
    })?;
    if arrived.is_none() {
        bail!("expected all of {sent} messages to arrive, {} did not", missing(&got));
    }
    say(format_args!("{sent} messages were posted, and each of them arrived."));
    nothing_expired(mesh)
}

/// Reads what Bob has; a message that comes again after a crash counts once.
fn read(mesh: &Mesh, expected: usize, got: &mut BTreeSet<String>) -> anyhow::Result<()> {
    got.extend(mesh.inbox("Bob", expected)?.into_iter().map(|message| message.text));
    Ok(())
}

/// Ends one process and has `up` mend it, as a person or a service manager would.
fn disturb(mesh: &Mesh, &(what, pointer, signal): &(&str, &str, Signal)) -> anyhow::Result<()> {
    let pid = u32::try_from(mesh.number(pointer)?)?;
    processes::signal(pid, mesh.root(), signal)?;
    let gone = until(Duration::from_secs(20), Duration::from_millis(20), || {
        Ok((!processes::names(pid, mesh.root())).then_some(()))
    })?;
    gone.with_context(|| format!("expected process {pid} to end by {signal:?}, saw it running"))?;
    let began = Instant::now();
    let mut last = String::new();
    let mended = until(UP_WITHIN, Duration::from_secs(1), || {
        let ended = mesh.run(&["up", "--detach"], UP_WITHIN)?;
        last = ended.stderr.trim().to_owned();
        Ok((ended.code() == Some(0)).then_some(()))
    })?;
    mended.with_context(|| format!("expected `cotal up` to mend {what}, saw: {last}"))?;
    let took = began.elapsed().as_secs_f64();
    say(format_args!("{what}, process {pid}, ended by {signal:?}; mended in {took:.1} s."));
    Ok(())
}

/// Looks for a credential that expired, in every log of the mesh.
fn nothing_expired(mesh: &Mesh) -> anyhow::Result<()> {
    let dot = mesh.root().join(".cotal");
    for name in ["delivery.main.log", "manager.main.log", "broker/nats-server.log"] {
        let path = dot.join(name);
        let log = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
        let told = log.lines().find(|line| EXPIRED.iter().any(|text| line.contains(text)));
        if let Some(line) = told {
            bail!("expected no credential to expire, {name} says: {line}");
        }
    }
    say("No log tells of a credential that expired.");
    Ok(())
}
