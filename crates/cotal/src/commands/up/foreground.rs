//! `up` in the foreground: it stays until a signal or the broker's end, then takes all down.

use cotal_broker::Broker;
use cotal_manager::Authority;
use cotal_manager::launch::{stop_broker, stop_daemon};
use tokio::signal::unix::{SignalKind, signal};

use super::Up;
use crate::exit::Exit;

/// Waits for SIGINT, SIGTERM or the broker's end, then stops what `down` would stop.
pub(super) async fn stay(
    up: &Up<'_>,
    mut broker: Broker,
    _authorities: &[Authority],
) -> anyhow::Result<Exit> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    up.ctx.out.note("The mesh is up. Ctrl-C stops it.");
    let exit = tokio::select! {
        _ = interrupt.recv() => Exit::Ok,
        _ = terminate.recv() => Exit::Ok,
        ended = broker.wait() => {
            up.ctx.out.warn(format!("the broker ended ({})", ended?));
            Exit::Failure
        }
    };
    take_down(up).await?;
    Ok(exit)
}

/// Stops the daemons, then the broker: a daemon releases its lease only while the broker answers.
pub(super) async fn take_down(up: &Up<'_>) -> anyhow::Result<()> {
    for space in &up.mesh.spaces {
        let stopped = stop_daemon(&up.root, space).await?;
        super::super::down::report(up.ctx, &format!("space {space}: delivery daemon"), stopped);
    }
    let stopped = stop_broker(&up.root).await?;
    super::super::down::report(up.ctx, "broker", stopped);
    Ok(())
}
