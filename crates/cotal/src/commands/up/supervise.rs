//! A daemon that this `up` started and that is not to stay dead (LIF-9).
//!
//! Invariant: whoever stops a daemon for good takes its credential away, under the reservation that
//! a restart takes as well. So no restart undoes a stop, wherever between two attempts it lands.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use cotal_manager::launch::Daemon;
use cotal_manager::{Authority, Office, Rail};
use rustix::process::Signal;
use tokio::time::sleep;

use super::daemon::{self, Launched, Report};
use super::mesh::Up;
use crate::output::told;

/// Nothing that comes sooner than the dead one's lease is gone may serve.
const RETRY_AFTER: Duration = daemon::LEASE_GONE_WITHIN;

/// Restarts a daemon as often as it dies. Returns once it was stopped.
pub(super) async fn watch(up: &Up<'_>, launched: Launched<'_>) {
    let Launched { authority, mut daemon } = launched;
    let (space, out) = (authority.space(), &up.ctx.out);
    loop {
        let how = match daemon.wait().await {
            Ok(status) if !died(status) => {
                out.note(format!(
                    "  space {space}: the delivery daemon was stopped and is not restarted"
                ));
                return;
            }
            Ok(status) => said(status),
            Err(error) => error.to_string(),
        };
        out.warn(format!(
            "space {space}: delivery daemon exited ({how}) while nats-server is running - \
             restarting it"
        ));
        let Some(replacement) = replace(up, authority).await else {
            out.note(format!(
                "  space {space}: the delivery daemon was stopped and is not restarted"
            ));
            return;
        };
        daemon = replacement;
    }
}

/// Tries until a replacement runs; `None` once the daemon was stopped for good.
async fn replace(up: &Up<'_>, authority: &Authority) -> Option<Daemon> {
    let (space, out) = (authority.space(), &up.ctx.out);
    loop {
        let why = match attempt(up, authority).await {
            Ok(Attempt::Runs(daemon)) => return Some(*daemon),
            Ok(Attempt::Stopped) => return None,
            Ok(Attempt::Died(status)) => format!("it exited ({})", said(status)),
            Err(error) => told(&error),
        };
        let seconds = RETRY_AFTER.as_secs();
        out.warn(format!(
            "space {space}: the delivery daemon could not be restarted: {why}; trying again in \
             {seconds} s"
        ));
        sleep(RETRY_AFTER).await;
    }
}

enum Attempt {
    /// It runs; whether it serves was said.
    Runs(Box<Daemon>),
    /// Somebody stopped it.
    Stopped,
    /// It ended before it served.
    Died(ExitStatus),
}

async fn attempt(up: &Up<'_>, authority: &Authority) -> anyhow::Result<Attempt> {
    let space = authority.space();
    let Some(mut daemon) = daemon::launch(up, space)?.restart_daemon(authority).await? else {
        return Ok(Attempt::Stopped);
    };
    let (own, connection) = match authority.connect(Office::Operator, &up.address).await {
        Ok(connected) => connected,
        Err(error) => {
            // It runs and is watched on; only its responder could not be asked.
            let why = format!("runs, and could not be asked whether it serves: {error}");
            daemon::not_there(up, space, &why, &daemon.reason());
            return Ok(Attempt::Runs(Box::new(daemon)));
        }
    };
    let report = daemon::report(up, space, &mut daemon, &Rail::new(&connection, space, &own)).await;
    connection.close(crate::context::CLOSE_WITHIN).await;
    Ok(match report? {
        Report::Serving => {
            up.ctx.out.proven(format!("space {space}: delivery daemon running again"));
            Attempt::Runs(Box::new(daemon))
        }
        Report::NotBound => Attempt::Runs(Box::new(daemon)),
        Report::Ended(status) if died(status) => Attempt::Died(status),
        Report::Ended(_) => Attempt::Stopped,
    })
}

/// A clean exit, and one on SIGTERM or SIGINT, is somebody's stop_request.
fn died(status: ExitStatus) -> bool {
    let wished = [Signal::TERM, Signal::INT].map(|signal| Some(signal.as_raw()));
    !status.success() && !wished.contains(&status.signal())
}

fn said(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {}", name(signal)),
        (None, None) => status.to_string(),
    }
}

fn name(signal: i32) -> String {
    let known = [
        (Signal::KILL, "SIGKILL"),
        (Signal::TERM, "SIGTERM"),
        (Signal::INT, "SIGINT"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::SEGV, "SIGSEGV"),
    ];
    let named = known.iter().find(|(known, _)| known.as_raw() == signal);
    named.map_or_else(|| signal.to_string(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lif_9_only_what_nobody_wished_is_a_death() {
        for (raw, dead, how) in [
            (0, false, "code 0"),
            (15, false, "signal SIGTERM"),
            (2, false, "signal SIGINT"),
            (9, true, "signal SIGKILL"),
            (9 << 8, true, "code 9"),
            (31, true, "signal 31"),
        ] {
            let status = ExitStatus::from_raw(raw);
            assert_eq!((died(status), said(status).as_str()), (dead, how));
        }
    }
}
