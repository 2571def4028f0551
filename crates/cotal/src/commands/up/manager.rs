//! The manager of a space, as `up` starts it and proves it.

use std::time::Duration;

use cotal_manager::launch::{ManagerProcess, Readiness, running_manager};
use cotal_manager::{Authority, Office};
use cotal_workspace::lock::LockError;
use cotal_workspace::{FileStore, Reservation, SecretKey, SecretKind, SecretStore as _, Segment};
use tokio::time::sleep;

use super::daemon;
use super::mesh::Up;
use crate::output::told;

/// A manager waits for the daemon's rail for a minute at most (ADM-4), and for its predecessor for
/// a quarter of one.
const READY_WITHIN: Duration = Duration::from_secs(80);
/// A day of life leaves time, and a look is cheap.
const RESTART_CHECK_EVERY: Duration = Duration::from_secs(10);

/// Sees to it that the space's manager runs, and says whether it does.
pub(super) async fn ensure(up: &Up<'_>, authority: &Authority) -> anyhow::Result<bool> {
    let space = authority.space();
    if let Some(manager) = running_manager(&up.root, space)? {
        up.ctx.out.proven(format!("space {space}: manager running (pid {})", manager.pid()));
        return Ok(true);
    }
    report(up, authority, launch(up, authority)?).await
}

fn launch(up: &Up<'_>, authority: &Authority) -> anyhow::Result<ManagerProcess> {
    Ok(daemon::launch(up, authority.space())?.start_manager()?)
}

/// Waits until a manager is ready, and says what came of it.
async fn report(
    up: &Up<'_>,
    authority: &Authority,
    mut manager: ManagerProcess,
) -> anyhow::Result<bool> {
    let (space, out) = (authority.space(), &up.ctx.out);
    let pid = manager.pid().unwrap_or_default();
    let (_, operator) = authority.connect(Office::Operator, &up.address).await?;
    let readiness = manager.ready(&operator, READY_WITHIN).await?;
    operator.close(crate::context::CLOSE_WITHIN).await;
    let (how, reason) = match readiness {
        Readiness::Ready => {
            out.proven(format!(
                "space {space}: manager running (pid {pid}); it renews the daemon's credentials"
            ));
            return Ok(true);
        }
        Readiness::Ended { status, reason } => (format!("exited ({status})"), reason),
        Readiness::Starting { reason } => ("runs, and is not ready".to_owned(), reason),
    };
    let log = up.root.manager_log(&Segment::from(space));
    let log = log.display();
    out.warn(format!("space {space}: the manager {how}; its log, {log}, says:"));
    for line in reason.lines() {
        out.note(format_args!("    {}", crate::output::plain(line)));
    }
    Ok(false)
}

/// Starts each manager that does not run, for as long as this process stays.
pub(super) async fn keep(up: &Up<'_>, authorities: &[Authority]) {
    loop {
        sleep(RESTART_CHECK_EVERY).await;
        start_missing(up, authorities).await;
    }
}

/// Starts each manager that does not run; never one whose daemon was stopped for good, and none
/// while a stop runs.
pub(super) async fn start_missing(up: &Up<'_>, authorities: &[Authority]) {
    for authority in authorities {
        let started = match start_one(up, authority) {
            Ok(None) => continue,
            Ok(Some(manager)) => report(up, authority, manager).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            let space = authority.space();
            up.ctx
                .out
                .warn(format!("space {space}: the manager was not started: {}", told(&error)));
        }
    }
}

fn start_one(up: &Up<'_>, authority: &Authority) -> anyhow::Result<Option<ManagerProcess>> {
    let space = authority.space();
    let _held = match Reservation::try_acquire(&up.root.up_lock()) {
        Err(LockError::Held { .. }) => return Ok(None),
        taken => taken?,
    };
    let delivery = SecretKey::new(space, SecretKind::Delivery);
    let is_stopped = FileStore::new(up.root.clone()).get(&delivery)?.is_none();
    if is_stopped || running_manager(&up.root, space)?.is_some() {
        return Ok(None);
    }
    launch(up, authority).map(Some)
}
