//! A process that somebody else may have started, held so that its number cannot be mistaken.
//!
//! Invariant: a signal goes to the very process that was looked at. The kernel's handle is opened
//! first and the process is judged through its records afterwards, so a number that is reused in
//! between reaches nobody.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::ManagerError;

/// How long the kernel gets to bury a killed process.
const BURIAL: Duration = Duration::from_secs(5);

/// How a process ended that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// By itself.
    Gracefully,
    /// It had to be killed.
    Killed,
}

/// A process of this machine.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    fd: AsyncFd<OwnedFd>,
}

impl Process {
    /// The process with this number; `None` when there is none.
    ///
    /// # Errors
    /// When the system refuses for another reason.
    pub fn open(pid: u32) -> Result<Option<Self>, ManagerError> {
        let failed = |source: io::Error| ManagerError::Process {
            operation: "look at",
            pid,
            source,
        };
        let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        let fd = match pidfd_open(raw, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        };
        let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)?;
        Ok(Some(Self { pid, fd }))
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has ended. Cancel-safe.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn ended(&self) -> Result<(), ManagerError> {
        let ready = self.fd.readable().await;
        ready.map(drop).map_err(|e| self.failed("wait for", e))
    }

    /// Sends a signal; one that has ended already is no error.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&self, signal: Signal) -> Result<(), ManagerError> {
        match pidfd_send_signal(&self.fd, signal) {
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
        ManagerError::Process {
            operation,
            pid,
            source,
        }
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
            (
                "trap '' TERM; echo up; while :; do sleep 0.05; done",
                Stopped::Killed,
            ),
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
