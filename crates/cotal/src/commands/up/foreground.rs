//! `up` in the foreground: it stays until a signal or the broker's end, then takes all down.

use std::time::Duration;

use cotal_broker::Broker;
use cotal_manager::launch::Patience;
use cotal_manager::{Authority, renew_daemon_credentials};
use cotal_workspace::Reservation;
use cotal_workspace::lock::LockError;
use futures_util::future::join_all;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::daemon::Launched;
use super::{Up, supervise};
use crate::commands::down;
use crate::exit::Exit;

/// Credentials live for a day at least and are renewed past half their life.
const RENEW_EVERY: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Restarts the daemons it started when they die (LIF-9). Waits for SIGINT, SIGTERM or the broker's
/// end, then stops what `down` would stop.
pub(super) async fn stay(
    up: &Up<'_>,
    mut broker: Broker,
    authorities: &[Authority],
    launched: Vec<Launched<'_>>,
) -> anyhow::Result<Exit> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    up.ctx.out.note("The mesh is up. Ctrl-C stops it.");
    let supervised = join_all(launched.into_iter().map(|daemon| supervise::watch(up, daemon)));
    let exit = tokio::select! {
        // A daemon that died with the broker is not restarted, so the broker is asked first.
        biased;
        ended = broker.wait() => {
            up.ctx.out.warn(format!("the broker ended ({})", ended?));
            Exit::Failure
        }
        _ = interrupt.recv() => Exit::Ok,
        _ = terminate.recv() => Exit::Ok,
        () = renew(up, authorities) => Exit::Failure,
        _ = async { supervised.await; std::future::pending::<()>().await } => Exit::Failure,
    };
    take_down(up).await?;
    Ok(exit)
}

/// Renews what the daemons run on, for as long as this process stays. They adopt it by themselves.
async fn renew(up: &Up<'_>, authorities: &[Authority]) {
    let mut due = interval(RENEW_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        for authority in authorities {
            if let Err(error) = renew_daemon_credentials(authority) {
                let space = authority.space();
                up.ctx.out.warn(format!("space {space}: a credential was not renewed: {error}"));
            }
        }
    }
}

/// Stops the daemons, then the broker, exactly as `down` does and under the same reservation; a
/// `down` that runs already is waited for (LIF-10).
pub(super) async fn take_down(up: &Up<'_>) -> anyhow::Result<()> {
    let _held = reserve(up).await?;
    down::everything(up.ctx, &up.root, &up.mesh.spaces, Patience::Wait).await
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
                sleep(LOOK_EVERY).await;
            }
            taken => return taken,
        }
    }
}
