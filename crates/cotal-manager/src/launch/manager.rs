//! The manager of a space, as a process.

use std::process::ExitStatus;
use std::time::Duration;

use cotal_nats::Connection;
use cotal_wire::Space;
use cotal_wire::names::{Bucket, manager_key};
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{Component, Identity, PidFile, RecordState, Root, Segment, Share};
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::daemon::{STOP_WITHIN, running};
use super::process::{Process, Stop};
use super::program::{Launch, RunLog};
use crate::error::{Doing, ManagerError};
use crate::rows::{bucket, read_all};

const LEASE_POLL_EVERY: Duration = Duration::from_millis(50);

/// A manager that this process started. Dropping it leaves it running.
#[derive(Debug)]
pub struct ManagerProcess {
    child: Child,
    record: PidFile,
    space: Space,
    log: RunLog,
}

/// What became of a manager that was started.
#[derive(Debug)]
pub enum Readiness {
    /// It runs, and its row says so.
    Ready,
    /// It ended, with the reason that its log gives.
    Ended {
        /// How.
        status: ExitStatus,
        /// The end of its log.
        reason: String,
    },
    /// It runs, and is not ready in time.
    Starting {
        /// The end of its log.
        reason: String,
    },
}

impl Launch {
    /// Starts the manager.
    ///
    /// # Errors
    /// When a manager of the space runs on this root, its log cannot be opened, or the program
    /// does not start or cannot be recorded.
    pub fn start_manager(&self) -> Result<ManagerProcess, ManagerError> {
        let log = self.root.manager_log(&Segment::from(&self.space));
        let record = manager_record(&self.root, &self.space);
        let identity = Identity::take(&record.run_lock(), Share::Alone)?;
        let (child, log) = self.spawn("manage", log, identity)?;
        // It records itself too; a stop must find it before it has come so far.
        if let Some(pid) = child.id() {
            record.write(pid)?;
        }
        Ok(ManagerProcess { child, record, space: self.space.clone(), log })
    }
}

impl ManagerProcess {
    /// Its process id, until it has been waited for.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it is ready, it ends, or `within` is over. `operator` reads the manager bucket.
    ///
    /// # Errors
    /// When it cannot be waited for, or the broker fails.
    pub async fn ready(
        &mut self,
        operator: &Connection,
        within: Duration,
    ) -> Result<Readiness, ManagerError> {
        let deadline = Instant::now() + within;
        loop {
            tokio::select! {
                status = self.child.wait() => {
                    let pid = self.child.id().unwrap_or_default();
                    let status = status.map_err(|source| {
                        ManagerError::Process { operation: "wait for", pid, source }
                    })?;
                    return Ok(Readiness::Ended { status, reason: self.reason() });
                }
                () = sleep(LEASE_POLL_EVERY) => {}
            }
            if self.is_ready(operator).await? {
                return Ok(Readiness::Ready);
            }
            if Instant::now() >= deadline {
                return Ok(Readiness::Starting { reason: self.reason() });
            }
        }
    }

    /// Its record names this process, and its row in the bucket names its process run.
    async fn is_ready(&self, operator: &Connection) -> Result<bool, ManagerError> {
        let Some(pid) = self.child.id() else { return Ok(false) };
        if self.record.verify()? != (RecordState::Live { pid }) {
            return Ok(false);
        }
        let rows = read_all(&bucket(operator, &self.space, Bucket::Manager)).await;
        let rows = rows.doing(|| format!("read the managers of space {}", self.space))?;
        let own = manager_key(&format!("{pid}-"));
        let is_own = |(key, row): (&String, &crate::rows::RawRow)| {
            key.starts_with(&own) && LeaseRow::parse(&row.value).is_ok_and(|row| row.ready)
        };
        Ok(rows.iter().any(is_own))
    }

    /// The last lines that this run wrote to its log.
    #[must_use]
    pub fn reason(&self) -> String {
        self.log.tail()
    }
}

/// The record of a space's manager.
#[must_use]
pub fn manager_record(root: &Root, space: &Space) -> PidFile {
    let path = root.manager_pid(&Segment::from(space));
    PidFile::new(path, Component::Manager, space)
}

/// The running manager of a space, whoever started it.
///
/// # Errors
/// When its record cannot be read.
pub fn running_manager(root: &Root, space: &Space) -> Result<Option<Process>, ManagerError> {
    Ok(running(&manager_record(root, space))?.into_iter().next())
}

/// Stops the manager of a space.
///
/// # Errors
/// When it cannot be stopped.
pub async fn stop_manager(root: &Root, space: &Space) -> Result<Stop, ManagerError> {
    let record = manager_record(root, space);
    let mut stopped = None;
    for manager in running(&record)? {
        stopped = stopped.max(Some(manager.stop(STOP_WITHIN).await?));
    }
    let cleaned = record.remove_if_stale();
    Ok(Stop::new(stopped, cleaned.map(drop).map_err(ManagerError::from)))
}
