//! A process of one space that runs this very program, and what it writes to its own log.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use cotal_broker::descriptors::keep_from_children;
use cotal_wire::Space;
use cotal_workspace::{Identity, Root, files};
use tokio::process::{Child, Command};

use crate::error::ManagerError;

/// More of a log than one run writes while it starts.
const TAIL_BYTES: u64 = 16 * 1024;
const TAIL_LINES: usize = 4;

/// How the daemon or the manager of a space is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The `cotal` binary.
    pub program: PathBuf,
    /// The root whose credentials it runs on.
    pub root: Root,
    /// The space.
    pub space: Space,
    /// The broker it dials.
    pub server: String,
    /// `human` or `json`.
    pub log_format: String,
}

impl Launch {
    /// Its output goes to its own log (LIF-7), and it has a process group of its own: an interrupt
    /// from the terminal is for whoever decides the order in which things end. What is said to a
    /// service manager is said by whoever that started.
    ///
    /// It is known by `identity` from its first moment on.
    pub(super) fn spawn(
        &self,
        command: &str,
        log: PathBuf,
        identity: Identity,
    ) -> Result<(Child, RunLog), ManagerError> {
        let failed = |source| ManagerError::Spawn { program: self.program.clone(), source };
        let (out, log) = RunLog::open(log).map_err(failed)?;
        keep_from_children();
        let child = Command::new(&self.program)
            .args([command, "--space", self.space.as_str(), "--root"])
            .arg(self.root.dir())
            .args(["--server", &self.server, "--log-format", &self.log_format])
            .stdin(identity.into_stdin())
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(out)
            .process_group(0)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .spawn()
            .map_err(failed)?;
        Ok((child, log))
    }
}

/// The part of a log that one run wrote.
#[derive(Debug)]
pub(super) struct RunLog {
    path: PathBuf,
    start: u64,
}

impl RunLog {
    fn open(path: PathBuf) -> io::Result<(File, Self)> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        let file = files::open_nofollow(&mut options, &path)?;
        let start = file.metadata()?.len();
        Ok((file, Self { path, start }))
    }

    /// Its last lines; nothing when the log cannot be read.
    pub(super) fn tail(&self) -> String {
        self.last_lines().unwrap_or_default()
    }

    /// A log that rotated since is read from its beginning.
    fn last_lines(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        let end = file.metadata()?.len();
        let start = if self.start <= end { self.start } else { 0 };
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lif_7_a_reason_is_what_this_run_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("delivery.main.log");
        std::fs::write(&path, "an earlier run\n").unwrap();
        let (mut file, log) = RunLog::open(path.clone()).unwrap();
        assert_eq!(log.last_lines().unwrap(), "");
        io::Write::write_all(&mut file, b"one\ntwo\n").unwrap();
        assert_eq!(log.last_lines().unwrap(), "one\ntwo");
        std::fs::write(&path, "x\n").unwrap();
        assert_eq!(log.last_lines().unwrap(), "x", "the log rotated");
    }
}
