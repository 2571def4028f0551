//! A process that somebody else may have started, held so that its number cannot be mistaken.
//!
//! Invariant: a signal goes to the very process that was looked at. The kernel's handle is opened
//! first and the process is judged through its records afterwards, so a number that is reused in
//! between reaches nobody.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::task::spawn_blocking;

use crate::error::ManagerError;

/// How long the kernel gets to bury a killed process.
const BURIAL: Duration = Duration::from_secs(5);
/// The longest that one wait holds a blocking thread, so that a wait that was dropped ends soon.
const SLICE: Duration = Duration::from_secs(1);

/// How a process ended that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stopped {
    /// By itself.
    Gracefully,
    /// It had to be killed.
    Killed,
}

/// What a stop came to. Processes end also where the disk takes no writes; what could then not be
/// cleaned up behind them is told.
#[derive(Debug)]
pub struct Stop {
    /// How the process ended; `None` when there was none.
    pub stopped: Option<Stopped>,
    /// Why a file of it was left behind.
    pub left: Option<ManagerError>,
}

impl Stop {
    pub(super) fn new(stopped: Option<Stopped>, cleaned: Result<(), ManagerError>) -> Self {
        Self { stopped, left: cleaned.err() }
    }
}

/// A process of this machine.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    fd: Arc<OwnedFd>,
}

impl Process {
    /// The process with this number; `None` when there is none.
    ///
    /// # Errors
    /// When the system refuses for another reason.
    pub fn open(pid: u32) -> Result<Option<Self>, ManagerError> {
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self { pid, fd: Arc::new(fd) })),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(errno) => {
                Err(ManagerError::Process { operation: "look at", pid, source: errno.into() })
            }
        }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn has_ended(&self) -> Result<bool, ManagerError> {
        has_ended_within(&self.fd, Duration::ZERO).map_err(|e| self.failed("look at", e))
    }

    /// Waits until it has ended. Cancel-safe.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn ended(&self) -> Result<(), ManagerError> {
        while !self.ended_within(SLICE).await? {}
        Ok(())
    }

    /// Waits for its end in a blocking thread, because the runtime takes no foreign descriptor
    /// without unsafe code; the kernel wakes it at once.
    async fn ended_within(&self, within: Duration) -> Result<bool, ManagerError> {
        let fd = Arc::clone(&self.fd);
        let waited = spawn_blocking(move || has_ended_within(&fd, within));
        let waited = waited.await.map_err(io::Error::other).flatten();
        waited.map_err(|e| self.failed("wait for", e))
    }

    /// Sends a signal; one that has ended already is no error.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&self, signal: Signal) -> Result<(), ManagerError> {
        match pidfd_send_signal(&*self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(self.failed("signal", errno.into())),
        }
    }

    /// Asks it to end, and kills it when it has not within `grace`.
    ///
    /// # Errors
    /// When the system refuses, or it does not even end when killed.
    pub async fn stop(&self, grace: Duration) -> Result<Stopped, ManagerError> {
        self.signal(Signal::TERM)?;
        // A paused process would take the signal only after it is resumed.
        self.signal(Signal::CONT)?;
        if let Ok(ended) = tokio::time::timeout(grace, self.ended()).await {
            return ended.map(|()| Stopped::Gracefully);
        }
        self.signal(Signal::KILL)?;
        match tokio::time::timeout(BURIAL, self.ended()).await {
            Ok(ended) => ended.map(|()| Stopped::Killed),
            Err(_) => Err(ManagerError::Immortal { pid: self.pid }),
        }
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> ManagerError {
        let pid = self.pid;
        ManagerError::Process { operation, pid, source }
    }
}

fn has_ended_within(fd: &OwnedFd, within: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(within).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn a_process_is_stopped_and_one_that_ignores_it_is_killed() {
        for (script, wanted) in [
            ("echo up; exec sleep 60", Stopped::Gracefully),
            ("trap '' TERM; echo up; while :; do sleep 0.05; done", Stopped::Killed),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut line = [0; 3];
            io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut line).unwrap();
            let process = Process::open(child.id()).unwrap().unwrap();
            let stopped = process.stop(Duration::from_millis(200)).await.unwrap();
            assert_eq!(stopped, wanted, "{script}");
            child.wait().unwrap();
            assert!(Process::open(child.id()).unwrap().is_none());
            process.signal(Signal::KILL).unwrap();
        }
    }

    #[test]
    fn no_number_outside_the_range_is_a_process() {
        assert!(Process::open(0).unwrap().is_none());
        assert!(Process::open(u32::MAX).unwrap().is_none());
    }
}
