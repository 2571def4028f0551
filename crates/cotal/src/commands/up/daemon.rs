//! The delivery daemon of a space, as `up` starts it and proves it (LIF-6).

use std::process::ExitStatus;
use std::time::Duration;

use cotal_manager::launch::{Daemon, Launch, Started, dead_daemon, running_daemon};
use cotal_manager::{Authority, Liveness, Office, Rail};
use cotal_nats::{Bucket, Connection, Entry};
use cotal_wire::creds::Creds;
use cotal_wire::names::{self, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Principal, Space};
use cotal_workspace::{FileStore, SecretKey, SecretKind, SecretStore as _, Segment};
use tokio::time::{Instant, sleep};

use super::mesh::Up;
use crate::context::own_program;
use crate::exit::Exit;

/// The lease of a daemon that crashed stands for 30 s; the broker takes about a second to notice
/// that a row has expired.
pub(super) const LEASE_GONE_WITHIN: Duration = Duration::from_secs(32);
const PROBE_EVERY: Duration = Duration::from_millis(250);

/// A daemon that this process started.
pub(super) struct Launched<'a> {
    pub(super) authority: &'a Authority,
    pub(super) daemon: Daemon,
}

/// What was said of a daemon that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Serving,
    NotBound,
    Ended(ExitStatus),
}

/// Sees to it that the space's daemon serves, and says whether it does.
pub(super) async fn ensure<'a>(
    up: &Up<'_>,
    authority: &'a Authority,
) -> anyhow::Result<(Exit, Option<Launched<'a>>)> {
    let space = authority.space();
    let (own, connection) = authority.connect(Office::Operator, &up.address).await?;
    let rail = Rail::new(&connection, space, &own);
    let outcome = if let Some(exit) = attached(up, space, &rail).await? {
        (exit, None)
    } else {
        outlive_the_dead(up, space, &connection).await?;
        let mut daemon = launch(up, space)?.start_daemon().await?;
        match report(up, space, &mut daemon, &rail).await? {
            Report::Serving => (Exit::Ok, Some(Launched { authority, daemon })),
            Report::NotBound | Report::Ended(_) => (Exit::NotServing, None),
        }
    };
    connection.close(crate::context::CLOSE_WITHIN).await;
    Ok(outcome)
}

/// The lease of a daemon that died on this machine stands until it expires, and refuses its
/// successor until then. Only such a one is waited for: of any other holder nothing is known.
async fn outlive_the_dead(
    up: &Up<'_>,
    space: &Space,
    connection: &Connection,
) -> anyhow::Result<()> {
    let Some(died) = dead_daemon(&up.root, space)? else {
        return Ok(());
    };
    let key = SecretKey::new(space, SecretKind::Delivery);
    let Some(secret) = FileStore::new(up.root.clone()).get(&key)? else {
        return Ok(());
    };
    let own = Creds::parse(secret.expose())?.claims.principal()?;
    let bucket = Bucket::new(connection, &space.bucket(names::Bucket::Delivery));
    let until = Instant::now() + LEASE_GONE_WITHIN;
    let mut said = false;
    while holder(&bucket).await?.is_some_and(|holder| holder == own) && Instant::now() < until {
        if !std::mem::replace(&mut said, true) {
            up.ctx.out.note(format!(
                "  space {space}: delivery daemon {died} died and its lease still stands; waiting \
                 for it to expire, at most {} s",
                LEASE_GONE_WITHIN.as_secs()
            ));
        }
        sleep(PROBE_EVERY).await;
    }
    Ok(())
}

/// Who holds the lease.
async fn holder(bucket: &Bucket) -> anyhow::Result<Option<Principal>> {
    let entry = bucket.get(LEASE_KEY).await?;
    let row = entry.as_ref().and_then(Entry::live).map(|value| LeaseRow::parse(value));
    // What is no lease is nobody's; the daemon itself says what it thinks of it.
    Ok(row.and_then(Result::ok).map(|row| row.holder))
}

/// Asks the daemon of a space whether it serves.
pub(super) async fn probed(up: &Up<'_>, authority: &Authority) -> anyhow::Result<Liveness> {
    let (own, connection) = authority.connect(Office::Operator, &up.address).await?;
    let probed = Rail::new(&connection, authority.space(), &own).probe().await;
    connection.close(crate::context::CLOSE_WITHIN).await;
    Ok(probed)
}

/// Waits until a daemon that runs already serves: one whose broker was away needs a moment to be
/// back. `None` when none runs, or it ended meanwhile.
async fn attached(up: &Up<'_>, space: &Space, rail: &Rail) -> anyhow::Result<Option<Exit>> {
    let within = up.ctx.serving_within;
    let until = Instant::now() + within;
    let mut told = false;
    while let Some(daemon) = running_daemon(&up.root, space)? {
        let pid = daemon.pid();
        let probed = rail.probe_process(pid).await;
        if probed == Liveness::Bound {
            serving(up, space, pid);
            return Ok(Some(Exit::Ok));
        }
        let how = said(&probed);
        if Instant::now() >= until {
            let log = up.root.delivery_log(&Segment::from(space));
            up.ctx.out.warn(format!(
                "space {space}: delivery daemon {pid} runs, and does not serve ({how}): its log, \
                 {}, says why; `kill -CONT {pid}` wakes one that was paused, and `cotal down`, \
                 then `cotal up`, replaces it",
                log.display()
            ));
            return Ok(Some(Exit::NotServing));
        }
        if !std::mem::replace(&mut told, true) {
            up.ctx.out.note(format!(
                "  space {space}: delivery daemon {pid} runs, and does not serve yet ({how}); \
                 waiting for it, at most {} s",
                within.as_secs_f32().ceil()
            ));
        }
        sleep(PROBE_EVERY).await;
    }
    Ok(None)
}

/// Waits until a daemon that was started serves, and says what came of it (LIF-6).
pub(super) async fn report(
    up: &Up<'_>,
    space: &Space,
    daemon: &mut Daemon,
    rail: &Rail,
) -> anyhow::Result<Report> {
    let pid = daemon.pid().unwrap_or_default();
    Ok(match daemon.serving(rail, up.ctx.serving_within).await? {
        Started::Serving => {
            serving(up, space, pid);
            Report::Serving
        }
        Started::Ended { status, reason } => {
            not_there(up, space, &format!("exited ({status})"), &reason);
            Report::Ended(status)
        }
        Started::NotBound { last, reason } => {
            not_there(up, space, &format!("runs, and does not serve ({})", said(&last)), &reason);
            Report::NotBound
        }
    })
}

/// How a process of a space is started. It dials the broker that the registry records (LIF-13),
/// and another root with a space of this name may have recorded itself since; so this root, which
/// is the one that serves the space here, records itself anew.
pub(super) fn launch(up: &Up<'_>, space: &Space) -> anyhow::Result<Launch> {
    up.register(space)?;
    Ok(Launch {
        program: own_program()?,
        root: up.root.clone(),
        space: space.clone(),
        server: up.address.url.clone(),
        log_format: up.log_format.as_str().to_owned(),
    })
}

fn serving(up: &Up<'_>, space: &Space, pid: u32) {
    let line = format!("space {space}: delivery daemon serving (pid {pid})");
    up.ctx.out.proven(line);
}

pub(super) fn not_there(up: &Up<'_>, space: &Space, how: &str, reason: &str) {
    let log = up.root.delivery_log(&Segment::from(space));
    let log = log.display();
    up.ctx.out.warn(format!("space {space}: the delivery daemon {how}; its log, {log}, says:"));
    for line in reason.lines() {
        up.ctx.out.note(format_args!("    {}", crate::output::plain(line)));
    }
}

/// What a probe said, for a person.
pub(super) fn said(probed: &Liveness) -> String {
    match probed {
        Liveness::Bound => "its responder answered".to_owned(),
        Liveness::Unbound => "its responder is not bound".to_owned(),
        Liveness::Quiet => "its responder answered that it does not serve at the moment".to_owned(),
        Liveness::Elsewhere(holder) => {
            format!("another daemon answers, and holds the lease as {holder}")
        }
        Liveness::Unknown(why) | Liveness::Denied(why) => {
            format!("the probe proved nothing: {why}")
        }
    }
}
