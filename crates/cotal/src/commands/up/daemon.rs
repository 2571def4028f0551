//! The delivery daemon of a space, as `up` starts it and proves it (LIF-6).

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use cotal_manager::launch::{Daemon, DaemonLaunch, Started, running_daemon};
use cotal_manager::{Authority, Liveness, Office, Rail};
use cotal_wire::Space;
use cotal_workspace::Segment;

use super::Up;
use crate::exit::Exit;

/// A daemon with 100,000 rows is ready in two seconds; a busy machine gets more.
const SERVING_WITHIN: Duration = Duration::from_secs(30);

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
    let outcome = if let Some(daemon) = running_daemon(&up.root, space)? {
        (attached(up, space, daemon.pid(), &rail.probe().await), None)
    } else {
        let mut daemon = launch(up, space)?.start().await?;
        match report(up, space, &mut daemon, &rail).await? {
            Report::Serving => (Exit::Ok, Some(Launched { authority, daemon })),
            Report::NotBound | Report::Ended(_) => (Exit::NotServing, None),
        }
    };
    connection.close(crate::context::CLOSE_WITHIN).await;
    Ok(outcome)
}

fn attached(up: &Up<'_>, space: &Space, pid: u32, probed: &Liveness) -> Exit {
    if *probed == Liveness::Bound {
        serving(up, space, pid);
        return Exit::Ok;
    }
    let line =
        format!("space {space}: delivery daemon {pid} runs, and does not serve ({})", said(probed));
    up.ctx.out.warn(line);
    Exit::NotServing
}

/// Waits until a daemon that was started serves, and says what came of it (LIF-6).
pub(super) async fn report(
    up: &Up<'_>,
    space: &Space,
    daemon: &mut Daemon,
    rail: &Rail,
) -> anyhow::Result<Report> {
    let pid = daemon.pid().unwrap_or_default();
    Ok(match daemon.serving(rail, SERVING_WITHIN).await? {
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

/// How the daemon of a space is started.
pub(super) fn launch(up: &Up<'_>, space: &Space) -> anyhow::Result<DaemonLaunch> {
    Ok(DaemonLaunch {
        program: own_program()?,
        root: up.root.clone(),
        space: space.clone(),
        server: up.address.url.clone(),
        log_format: up.log_format.as_str().to_owned(),
    })
}

/// This binary. The kernel marks the path of one that was replaced while it runs; what stands there
/// now is its successor, and a daemon is better started from that.
fn own_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Ok(replaced.map_or_else(|| path.clone(), PathBuf::from))
}

fn serving(up: &Up<'_>, space: &Space, pid: u32) {
    let line = format!("space {space}: delivery daemon {pid} answered that it serves");
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

fn said(probed: &Liveness) -> String {
    match probed {
        Liveness::Bound => "its responder answered".to_owned(),
        Liveness::Unbound => "its responder is not bound".to_owned(),
        Liveness::Unknown(why) => format!("the probe proved nothing: {why}"),
    }
}
