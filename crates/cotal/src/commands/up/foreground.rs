//! `up` in the foreground: it stays until a signal or the broker's end, then takes all down.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use cotal_broker::Broker;
use cotal_manager::Authority;
use cotal_manager::Liveness;
use cotal_manager::launch::WhileStopping;
use cotal_wire::Space;
use cotal_workspace::Reservation;
use cotal_workspace::lock::LockError;
use futures_util::future::join_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::daemon::{self, Launched};
use super::mesh::Up;
use super::{manager, supervise};
use crate::commands::down;
use crate::exit::Exit;
use crate::notify::{self, Notifier};

const STOP_POLL_EVERY: Duration = Duration::from_millis(50);

/// Somebody's wish that the mesh be taken down again, heard from before anything can be left
/// behind.
pub(super) struct StopRequest {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl StopRequest {
    /// Takes SIGINT, SIGTERM and SIGHUP from now on; the last one, which a terminal sends when it
    /// is closed, not under `nohup`.
    pub(super) fn listen() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt, terminate, hangup })
    }

    /// Waits for it. Cancel-safe.
    pub(super) async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hung_up(self.hangup.as_mut()) => {}
        }
    }
}

async fn hung_up(hangup: Option<&mut Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process had SIGHUP ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit n of the mask is signal n + 1, and SIGHUP is the first.
    ignored.is_some_and(|mask| mask & 1 == 1)
}

/// Restarts the daemons it started when they die (LIF-9). Waits for a [`StopRequest`] or the
/// broker's end, then stops what `down` would stop.
pub(super) async fn stay(
    up: &Up<'_>,
    mut broker: Broker,
    authorities: &[Authority],
    launched: Vec<Launched<'_>>,
    mut stop_request: StopRequest,
) -> anyhow::Result<Exit> {
    // Daemons that somebody stopped on purpose; nobody waits for those to serve.
    let stopped = RefCell::new(BTreeSet::new());
    let supervised = join_all(launched.into_iter().map(async |daemon| {
        let space = daemon.authority.space();
        supervise::watch(up, daemon).await;
        stopped.borrow_mut().insert(space.clone());
    }));
    let exit = tokio::select! {
        // A daemon that died with the broker is not restarted, so the broker is asked first.
        biased;
        ended = broker.wait() => {
            up.ctx.out.warn(format!("the broker ended ({})", ended?));
            Exit::Failure
        }
        () = stop_request.told() => Exit::Ok,
        () = managed(up, authorities), if !up.hosted => Exit::Failure,
        () = attend(up, authorities, &stopped) => Exit::Failure,
        _ = async { supervised.await; std::future::pending::<()>().await } => Exit::Failure,
    };
    notify::stopping("stopping the mesh");
    let left = take_down(up).await?;
    Ok(if exit == Exit::Ok { left } else { exit })
}

/// Tells the service manager whether the mesh serves, for as long as this process stays.
async fn attend(up: &Up<'_>, authorities: &[Authority], stopped: &RefCell<BTreeSet<Space>>) {
    let Some(mut notifier) = Notifier::from_process() else {
        return std::future::pending().await;
    };
    let mut due = interval(notifier.every());
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        // Hosts that serve the spaces tell their own service managers.
        let own = authorities.iter().filter(|_| !up.hosted);
        let wanted = own.filter(|a| !stopped.borrow().contains(a.space()));
        let wanted: Vec<&Authority> = wanted.collect();
        notifier.proven(served(up, &wanted).await);
    }
}

/// Asks the broker and every daemon that is wanted.
async fn served(up: &Up<'_>, wanted: &[&Authority]) -> Result<String, String> {
    let server = &up.mesh.server;
    cotal_broker::probe(server).await.map_err(|error| format!("the broker: {error}"))?;
    for authority in wanted {
        let space = authority.space();
        let answer = daemon::probed(up, authority).await;
        let answer = answer.map_err(|error| format!("space {space}: {error}"))?;
        if answer != Liveness::Bound {
            return Err(format!("space {space}: {}", daemon::said(&answer)));
        }
    }
    Ok(format!("serving {} of {} spaces at {server}", wanted.len(), up.mesh.spaces.len()))
}

/// Starts the managers, says that all is up, and keeps the managers from then on.
async fn managed(up: &Up<'_>, authorities: &[Authority]) {
    manager::start_missing(up, authorities).await;
    up.ctx.out.note("The mesh is up. Ctrl-C stops it.");
    manager::keep(up, authorities).await;
}

/// Stops the daemons, then the broker, exactly as `down` does and under the same reservation; a
/// `down` that runs already is waited for (LIF-10).
pub(super) async fn take_down(up: &Up<'_>) -> anyhow::Result<Exit> {
    let _held = reserve(up).await?;
    down::everything(up.ctx, &up.root, Some(&up.mesh), WhileStopping::Wait).await
}

/// The kernel tells nobody that a file lock is free, so this looks again and again.
async fn reserve(up: &Up<'_>) -> Result<Reservation, LockError> {
    let path = up.root.up_lock();
    let mut said = false;
    loop {
        match Reservation::try_acquire(&path) {
            Err(error @ LockError::Held { .. }) => {
                if !said {
                    up.ctx.out.note(format!("  {error}; this command waits for it"));
                    said = true;
                }
                sleep(STOP_POLL_EVERY).await;
            }
            taken => return taken,
        }
    }
}
