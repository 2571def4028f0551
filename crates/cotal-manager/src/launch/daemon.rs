//! The delivery daemon of a space, as a process.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use cotal_wire::Space;
use cotal_workspace::lock::LockError;
use cotal_workspace::record::Stale;
use cotal_workspace::{
    Component, Identity, PidFile, RecordState, Reservation, Root, Segment, Share,
};
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::process::{Process, Stop};
use super::program::{Launch, RunLog};
use crate::authority::Authority;
use crate::credentials::{renew_daemon_credentials, set_aside_credential};
use crate::error::ManagerError;
use crate::rail::{Liveness, Rail};

/// A daemon that has not ended this long after SIGTERM is killed (LIF-10).
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(15);
/// A probe costs one message, and a daemon is bound within a fraction of a second.
const PROBE_EVERY: Duration = Duration::from_millis(50);
/// A launch holds the reservation no longer, so whoever holds it longer is stopping the daemon.
const LAUNCH_TAKES: Duration = Duration::from_secs(1);
const EXIT_POLL_EVERY: Duration = Duration::from_millis(20);

/// What a stop does while another stop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhileStopping {
    /// It is refused.
    Refuse,
    /// It waits, and then finds what is left to do.
    Wait,
}

/// A daemon that this process started. Dropping it leaves it running.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    record: PidFile,
    log: RunLog,
}

/// What became of a daemon that was started.
#[derive(Debug)]
pub enum Started {
    /// Its responder answered that it serves.
    Serving,
    /// It ended, with the reason that its log gives.
    Ended {
        /// How.
        status: ExitStatus,
        /// The end of its log.
        reason: String,
    },
    /// It runs, and its responder is not bound.
    NotBound {
        /// What the last probe said.
        last: Liveness,
        /// The end of its log.
        reason: String,
    },
}

impl Launch {
    /// Starts the delivery daemon once no stop of it runs. A stop finds it by its lock before it
    /// holds the lease and records itself.
    ///
    /// # Errors
    /// When its log cannot be opened, or the program does not start.
    pub async fn start_daemon(&self) -> Result<Daemon, ManagerError> {
        let _held = reserve(&self.root, &self.space, None).await?;
        self.spawn_daemon()
    }

    /// Starts the daemon anew after it died, on credentials that are good; `None` when a stop has
    /// taken its credential away meanwhile (LIF-9).
    ///
    /// # Errors
    /// As [`Self::start_daemon`], and when a credential cannot be renewed.
    pub async fn restart_daemon(
        &self,
        authority: &Authority,
    ) -> Result<Option<Daemon>, ManagerError> {
        let _held = reserve(&self.root, &self.space, None).await?;
        match renew_daemon_credentials(authority)? {
            Some(_) => self.spawn_daemon().map(Some),
            None => Ok(None),
        }
    }

    fn spawn_daemon(&self) -> Result<Daemon, ManagerError> {
        let log = self.root.delivery_log(&Segment::from(&self.space));
        let record = daemon_record(&self.root, &self.space);
        let identity = Identity::take(&record.run_lock(), Share::Together)?;
        let (child, log) = self.spawn("deliver", log, identity)?;
        Ok(Daemon { child, record, log })
    }
}

impl Daemon {
    /// Its process id, until it has been waited for.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it serves, it ends, or `within` is over (LIF-6).
    ///
    /// A responder that answers may be another daemon's, so this process counts as serving only
    /// once the lease names it and it has recorded itself, which it does when it holds the lease
    /// (LIF-11).
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn serving(
        &mut self,
        rail: &Rail,
        within: Duration,
    ) -> Result<Started, ManagerError> {
        let deadline = Instant::now() + within;
        let pid = self.child.id().unwrap_or_default();
        loop {
            let probed = tokio::select! {
                status = self.child.wait() => {
                    let status = status.map_err(|e| self.failed(e))?;
                    return Ok(Started::Ended { status, reason: self.reason() });
                }
                probed = rail.probe_process(pid) => probed,
            };
            match probed {
                Liveness::Bound if self.is_recorded()? => return Ok(Started::Serving),
                last if Instant::now() >= deadline => {
                    let reason = self.reason();
                    return Ok(Started::NotBound { last, reason });
                }
                _ => sleep(PROBE_EVERY).await,
            }
        }
    }

    fn is_recorded(&self) -> Result<bool, ManagerError> {
        let standing = self.record.verify()?;
        Ok(matches!(standing, RecordState::Live { pid } if Some(pid) == self.child.id()))
    }

    /// Waits until it ends. Cancel-safe.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn wait(&mut self) -> Result<ExitStatus, ManagerError> {
        let status = self.child.wait().await;
        status.map_err(|e| self.failed(e))
    }

    /// The last lines that this run wrote to its log.
    #[must_use]
    pub fn reason(&self) -> String {
        self.log.tail()
    }

    fn failed(&self, source: io::Error) -> ManagerError {
        ManagerError::Process {
            operation: "wait for",
            pid: self.child.id().unwrap_or_default(),
            source,
        }
    }
}

/// The record of a space's daemon.
#[must_use]
pub fn daemon_record(root: &Root, space: &Space) -> PidFile {
    let path = root.delivery_pid(&Segment::from(space));
    PidFile::new(path, Component::Delivery, space)
}

/// The running daemon of a space, whoever started it: the one that recorded itself, or else one
/// that runs and may not hold the lease yet.
///
/// # Errors
/// When the record cannot be read.
pub fn running_daemon(root: &Root, space: &Space) -> Result<Option<Process>, ManagerError> {
    Ok(running(&daemon_record(root, space))?.into_iter().next())
}

/// The process that last recorded itself as the space's daemon, when it is provably gone.
///
/// # Errors
/// When the record cannot be read.
pub fn dead_daemon(root: &Root, space: &Space) -> Result<Option<u32>, ManagerError> {
    Ok(match daemon_record(root, space).verify()? {
        RecordState::Stale(Stale::Gone(pid) | Stale::Reused(pid)) => Some(pid),
        RecordState::Stale(_) | RecordState::Live { .. } | RecordState::Absent => None,
    })
}

/// The processes of a component, the recorded one first.
pub(super) fn running(record: &PidFile) -> Result<Vec<Process>, ManagerError> {
    let mut running = Vec::new();
    for pid in record.processes()? {
        // Judged again with the process in hand: the number may have been reused before it was.
        if let Some(process) = Process::open(pid)?
            && record.processes()?.contains(&pid)
        {
            running.push(process);
        }
    }
    Ok(running)
}

/// Stops the daemon of a space as LIF-10 says, one that is still starting included. A record that
/// is provably of another program is cleared and nobody is signalled (LIF-11). Once it is dead its
/// credential is taken away, so that nobody restarts it.
///
/// A daemon that released its lease removed its own record. The record of one that could not stays,
/// so that the next start knows of whom the lease that still stands is (see [`dead_daemon`]).
///
/// # Errors
/// When another process is stopping it and does not finish in time, or it cannot be stopped.
pub async fn stop_daemon(
    root: &Root,
    space: &Space,
    while_stopping: WhileStopping,
) -> Result<Stop, ManagerError> {
    let within = match while_stopping {
        WhileStopping::Refuse => Some(LAUNCH_TAKES),
        WhileStopping::Wait => None,
    };
    let _held = match reserve(root, space, within).await {
        // Where the disk takes no file to lock, nothing can be started either.
        Err(ManagerError::Lock(LockError::Io { .. })) => None,
        held => Some(held?),
    };
    let record = daemon_record(root, space);
    let mut stopped = None;
    for daemon in running(&record)? {
        let how = daemon.stop(STOP_WITHIN).await?;
        stopped = stopped.max(Some(how));
    }
    let cleaned = record.remove_if_foreign().map_err(ManagerError::from);
    let cleaned = set_aside_credential(root, space).and(cleaned);
    Ok(Stop::new(stopped, cleaned.map(drop)))
}

/// Takes the right to start or stop the daemon of a space; without `within` it waits for its turn.
/// The kernel tells nobody that a file lock is free, so this looks again and again.
async fn reserve(
    root: &Root,
    space: &Space,
    within: Option<Duration>,
) -> Result<Reservation, ManagerError> {
    let path = root.delivery_stop_lock(&Segment::from(space));
    let until = within.map(|within| Instant::now() + within);
    loop {
        match Reservation::try_acquire(&path) {
            Err(LockError::Held { .. }) if until.is_none_or(|until| Instant::now() < until) => {
                sleep(EXIT_POLL_EVERY).await;
            }
            taken => return Ok(taken?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lif_11_a_record_of_another_program_is_cleared_and_nobody_is_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let space = Space::parse("main").unwrap();
        let record = daemon_record(&root, &space);
        record.write(std::process::id()).unwrap();
        let stop = stop_daemon(&root, &space, WhileStopping::Refuse).await.unwrap();
        assert!(stop.stopped.is_none() && stop.left.is_none(), "{stop:?}");
        assert_eq!(record.verify().unwrap(), RecordState::Absent);
    }

    #[tokio::test]
    async fn lif_11_the_record_of_a_daemon_that_is_gone_outlives_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let space = Space::parse("main").unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id();
        ended.wait().unwrap();
        daemon_record(&root, &space).write(pid).unwrap();
        let stop = stop_daemon(&root, &space, WhileStopping::Refuse).await.unwrap();
        assert!(stop.stopped.is_none() && stop.left.is_none(), "{stop:?}");
        assert_eq!(dead_daemon(&root, &space).unwrap(), Some(pid));
    }

    #[tokio::test]
    async fn lif_10_one_stop_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let space = Space::parse("main").unwrap();
        let path = root.delivery_stop_lock(&Segment::from(&space));
        let held = Reservation::try_acquire(&path).unwrap();
        let stop = |while_stopping| stop_daemon(&root, &space, while_stopping);
        assert!(matches!(stop(WhileStopping::Refuse).await, Err(ManagerError::Lock(_))));
        let mut waiting = std::pin::pin!(stop(WhileStopping::Wait));
        assert!(tokio::time::timeout(LAUNCH_TAKES * 2, &mut waiting).await.is_err());
        drop(held);
        assert!(waiting.await.unwrap().stopped.is_none());
    }
}
