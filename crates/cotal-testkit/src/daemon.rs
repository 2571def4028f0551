//! The daemon as a process of its own: the real `cotal` binary, with real signals.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::mesh::Mesh;

/// How long a line of the daemon's log may take.
const LINE_WITHIN: Duration = Duration::from_secs(60);

/// A running `cotal deliver`.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    seen: Vec<String>,
}

impl DaemonProcess {
    /// Starts `cotal deliver` for the first space of `mesh`. `binary` is the test's
    /// `env!("CARGO_BIN_EXE_cotal")`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(binary: impl Into<PathBuf>, mesh: &Mesh) -> Self {
        Self::start_at(binary, mesh, mesh.url(), &[])
    }

    /// The same, dialling `server`, such as a proxy, with more in its environment.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_at(
        binary: impl Into<PathBuf>,
        mesh: &Mesh,
        server: &str,
        env: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(binary.into());
        command
            .args(["deliver", "--space", mesh.space().as_str(), "--root"])
            .arg(mesh.dir())
            .args(["--server", server])
            .envs(env.iter().copied())
            .env("XDG_CONFIG_HOME", mesh.dir().join("config"));
        Self::spawn(command)
    }

    /// Starts `cotal deliver --spaces`: a host of the spaces of `manifest`, on the root `dir`, with
    /// `more` arguments and `env` added.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn host(
        binary: impl Into<PathBuf>,
        dir: &Path,
        manifest: &Path,
        server: &str,
        more: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(binary.into());
        command
            .args(["deliver", "--spaces"])
            .arg(manifest)
            .arg("--root")
            .arg(dir)
            .args(["--server", server])
            .args(more)
            .envs(env.iter().copied())
            .env_remove("COTAL_SPACE")
            .env("XDG_CONFIG_HOME", dir.join("config"));
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a running daemon");
        let stderr = child.stderr.take().expect("a pipe");
        let (sender, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut reader = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for a line that contains `text`.
    ///
    /// # Panics
    /// When the daemon ends or 60 s pass without it; what it said is shown.
    pub async fn says(&mut self, text: &str) -> String {
        loop {
            match timeout(LINE_WITHIN, self.lines.recv()).await {
                Ok(Some(line)) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                _ => panic!("the daemon never said {text:?}:\n{}", self.seen.join("\n")),
            }
        }
    }

    /// Waits until it serves.
    pub async fn serves(&mut self) {
        self.says("serving").await;
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id().expect("a running daemon")
    }

    /// Sends a signal, and waits for the stop that SIGSTOP asks for: on a busy machine some threads
    /// run on for a while after the signal is sent, and what reaches the daemon then is still
    /// served.
    ///
    /// # Panics
    /// When it has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        let pid = Pid::from_raw(pid).expect("a pid");
        kill_process(pid, signal).expect("a delivered signal");
        if signal == Signal::STOP {
            let reports = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            retry_on_intr(|| waitid(WaitId::Pid(pid), reports)).expect("a stopped daemon");
        }
    }

    /// Ends it with SIGKILL and waits until it is gone.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("a killed daemon");
    }

    /// Waits for its end: the exit code, if it was not ended by a signal.
    ///
    /// # Panics
    /// When it does not end within 60 s.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = timeout(LINE_WITHIN, self.child.wait()).await;
        status.expect("the daemon did not end").expect("a status").code()
    }

    /// Everything it has said so far.
    pub fn log(&mut self) -> String {
        while let Ok(line) = self.lines.try_recv() {
            self.seen.push(line);
        }
        self.seen.join("\n")
    }
}
