//! A running server: started, proven ready, paused, stopped.
//!
//! Readiness is the server's own word. It is told to write a ports file that carries its process
//! id, which it does once it listens, and is then asked for its INFO line there. A connection
//! alone would prove nothing: with the port taken, it reaches the server that took it.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, test_kill_process, waitid,
};
use serde::Deserialize;
use tokio::process::{Child, Command};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::descriptors;
use crate::locate::BrokerBinary;
use crate::probe::{ProbeError, ServerInfo, probe};

/// The ports file appears without an event that this process could wait on portably.
const READY_CHECK: Duration = Duration::from_millis(10);
const TAIL_LINES: usize = 12;
const TAIL_BYTES: u64 = 16 * 1024;

/// How a server is started.
#[derive(Debug)]
pub struct SpawnOptions {
    /// What it gets as its standard input, which it never reads: a lock that is to live exactly as
    /// long as the server does.
    pub stdin: Option<File>,
    /// The file that its standard streams are appended to; beside the configuration when unset.
    ///
    /// When the configuration names a `log_file`, name the same here: a failed start quotes it.
    pub log: Option<PathBuf>,
    /// Leave it running when the [`Broker`] is dropped.
    pub detach: bool,
    /// How long it may take to become ready: a large store is recovered first.
    pub ready_within: Duration,
    /// How long it may take to end by itself before it is killed.
    pub stop_within: Duration,
}

impl Default for SpawnOptions {
    fn default() -> Self {
        Self {
            stdin: None,
            log: None,
            detach: false,
            ready_within: Duration::from_secs(60),
            stop_within: Duration::from_secs(15),
        }
    }
}

/// What can go wrong between a binary and a server that answers.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// A file or directory beside the configuration cannot be used.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The program cannot be executed.
    #[error("cannot start {path}")]
    Start {
        /// The program.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Somebody else listens on the port.
    #[error(
        "the broker's port is already in use, stop what listens there or choose another: {line}"
    )]
    PortInUse {
        /// The broker's own line, which names the port.
        line: String,
    },
    /// It ended before it was ready.
    #[error("the broker ended while it started ({status}); its last log lines ({log}):\n{tail}")]
    Crashed {
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },
    /// It runs and does not become ready; it was killed.
    #[error("the broker was not ready after {} s; its last log lines ({log}):\n{tail}", within.as_secs())]
    NotReady {
        /// How long was waited.
        within: Duration,
        /// Its log.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },
    /// It wrote down where it listens and does not answer there.
    #[error("the broker reports that it is ready and does not answer")]
    Probe(#[from] ProbeError),
    /// It has already ended, so it cannot be signalled.
    #[error("the broker (pid {pid}) is no longer running")]
    Ended {
        /// Its former process id.
        pid: u32,
    },
    /// The system refused to signal or to wait for it.
    #[error("cannot {what} the broker (pid {pid})")]
    Process {
        /// The operation.
        what: &'static str,
        /// The process id.
        pid: u32,
        /// The system's answer.
        source: io::Error,
    },
}

/// How a server ended that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// By itself, having flushed its stores.
    Gracefully(ExitStatus),
    /// It had to be killed.
    Killed(ExitStatus),
}

/// A server that this process started.
///
/// Dropping it kills the server unless it was started detached. It always has its own process
/// group: an interrupt from the terminal reaches whoever started it, which then decides the order
/// in which things end.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    pid: u32,
    url: String,
    info: ServerInfo,
    conf: PathBuf,
    log: PathBuf,
    stop_within: Duration,
}

impl Broker {
    /// Starts a server and returns once it answers.
    pub async fn spawn(
        binary: &BrokerBinary,
        conf: &Path,
        options: SpawnOptions,
    ) -> Result<Self, BrokerError> {
        let SpawnOptions { stdin, log, detach, ready_within, stop_within } = options;
        let log = log.unwrap_or_else(|| conf.with_extension("log"));
        let ports_dir = conf.with_extension("ports");
        clear_stale_ports(&ports_dir)?;
        let (out, log_start) = open_log(&log)?;
        let err = out.try_clone().map_err(|e| io_error("open", &log, e))?;
        descriptors::keep_from_children();
        let mut child = Command::new(&binary.path)
            .arg("--config")
            .arg(conf)
            .arg("--ports_file_dir")
            .arg(&ports_dir)
            .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .kill_on_drop(!detach)
            .spawn()
            .map_err(|source| BrokerError::Start { path: binary.path.clone(), source })?;
        let pid = child.id().unwrap_or_default();
        let start = Start { pid, ports_dir, log: log.clone(), log_start, within: ready_within };
        let (url, info) = match start.ready(&mut child).await {
            Ok(ready) => ready,
            Err(error) => {
                // Detached or not, a server that was never handed out must not stay behind.
                let _ = child.kill().await;
                return Err(error);
            }
        };
        Ok(Self { child, pid, url, info, conf: conf.to_owned(), log, stop_within })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The URL that clients connect to.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The port of that URL.
    pub fn port(&self) -> Option<u16> {
        self.url.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
    }

    /// What it said about itself when it became ready.
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// The configuration it was started with.
    pub fn conf(&self) -> &Path {
        &self.conf
    }

    /// The file its standard streams go to.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, BrokerError> {
        self.child.try_wait().map_err(|source| self.process_error("wait for", source))
    }

    /// Waits until it ends. Cancel-safe.
    pub async fn wait(&mut self) -> Result<ExitStatus, BrokerError> {
        let waited = self.child.wait().await;
        waited.map_err(|source| self.process_error("wait for", source))
    }

    /// Asks it to end, and kills it when it does not within the grace period.
    pub async fn stop(mut self) -> Result<Stopped, BrokerError> {
        if let Some(status) = self.ended()? {
            return Ok(Stopped::Gracefully(status));
        }
        self.signal("stop", Signal::TERM)?;
        // A paused server would take the signal only after it is resumed.
        self.signal("resume", Signal::CONT)?;
        if let Ok(waited) = timeout(self.stop_within, self.child.wait()).await {
            let status = waited.map_err(|source| self.process_error("wait for", source))?;
            return Ok(Stopped::Gracefully(status));
        }
        self.kill().await.map(Stopped::Killed)
    }

    /// Kills it as a crash would, and waits until it is gone.
    pub async fn kill(mut self) -> Result<ExitStatus, BrokerError> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal("kill", Signal::KILL)?;
        self.wait().await
    }

    /// Stops it in its tracks; its connections stay open and silent.
    ///
    /// The signal alone would return while some of the server's threads still run, so this waits
    /// for the kernel to report the stop.
    pub fn pause(&mut self) -> Result<(), BrokerError> {
        self.signal("pause", Signal::STOP)?;
        let pid = self.live_pid()?;
        let reports = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(pid), reports) {
            Ok(_) => Ok(()),
            Err(e) => Err(self.process_error("pause", e.into())),
        }
    }

    /// Lets a paused server go on.
    pub fn resume(&mut self) -> Result<(), BrokerError> {
        self.signal("resume", Signal::CONT)
    }

    fn signal(&mut self, what: &'static str, signal: Signal) -> Result<(), BrokerError> {
        let pid = self.live_pid()?;
        kill_process(pid, signal).map_err(|e| self.process_error(what, e.into()))
    }

    /// The child keeps its id until it is reaped, so a signal to this id cannot hit a stranger.
    fn live_pid(&self) -> Result<Pid, BrokerError> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok());
        id.and_then(Pid::from_raw).ok_or(BrokerError::Ended { pid: self.pid })
    }

    fn process_error(&self, what: &'static str, source: io::Error) -> BrokerError {
        BrokerError::Process { what, pid: self.pid, source }
    }
}

/// What is known about a server between its start and its readiness.
struct Start {
    pid: u32,
    ports_dir: PathBuf,
    log: PathBuf,
    log_start: u64,
    within: Duration,
}

#[derive(Deserialize)]
struct Ports {
    #[serde(default)]
    nats: Vec<String>,
}

impl Start {
    async fn ready(&self, child: &mut Child) -> Result<(String, ServerInfo), BrokerError> {
        let deadline = Instant::now() + self.within;
        let mut check = interval(READY_CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let url = loop {
            tokio::select! {
                status = child.wait() => return Err(self.ended(status)),
                _ = check.tick() => {
                    if let Some(url) = listening_url(&self.ports_dir, self.pid) {
                        break url;
                    }
                }
                () = tokio::time::sleep_until(deadline) => return Err(self.not_ready()),
            }
        };
        tokio::select! {
            status = child.wait() => Err(self.ended(status)),
            info = probe(&url) => Ok((url.clone(), info?)),
        }
    }

    fn ended(&self, status: io::Result<ExitStatus>) -> BrokerError {
        let status = match status {
            Ok(status) => status,
            Err(source) => {
                return BrokerError::Process { what: "wait for", pid: self.pid, source };
            }
        };
        let tail = self.tail();
        match tail.lines().find(|line| line.contains("address already in use")) {
            Some(line) => BrokerError::PortInUse { line: line.to_owned() },
            None => BrokerError::Crashed { status, log: self.log.clone(), tail },
        }
    }

    fn not_ready(&self) -> BrokerError {
        BrokerError::NotReady { within: self.within, log: self.log.clone(), tail: self.tail() }
    }

    /// The last lines that *this* run wrote.
    fn tail(&self) -> String {
        let text = read_from(&self.log, self.log_start).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

/// Where the server with this process id, started on `conf` by whomever, listens; `None` while it
/// does not listen yet.
pub fn listens_at(conf: &Path, pid: u32) -> Option<String> {
    listening_url(&conf.with_extension("ports"), pid)
}

/// The URL in the ports file; none while the file is missing or only half written.
fn listening_url(ports_dir: &Path, pid: u32) -> Option<String> {
    let suffix = format!("_{pid}.ports");
    let file = fs::read_dir(ports_dir)
        .ok()?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().ends_with(&suffix))?;
    let ports: Ports = serde_json::from_slice(&fs::read(file.path()).ok()?).ok()?;
    // A server on all interfaces lists every one of them.
    let loopback = ports.nats.iter().find(|url| url.contains("//127.0.0.1:"));
    loopback.or(ports.nats.first()).cloned()
}

fn open_log(path: &Path) -> Result<(File, u64), BrokerError> {
    let open = || {
        let file = File::options().create(true).append(true).open(path)?;
        let start = file.metadata()?.len();
        Ok((file, start))
    };
    open().map_err(|e| io_error("open", path, e))
}

fn read_from(path: &Path, start: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A killed server leaves its ports file, and its process id may come back.
fn clear_stale_ports(dir: &Path) -> Result<(), BrokerError> {
    fs::create_dir_all(dir).map_err(|e| io_error("create", dir, e))?;
    let entries = fs::read_dir(dir).map_err(|e| io_error("read", dir, e))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if !owner_lives(&path) {
            // Another start may have removed it already.
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

fn owner_lives(ports_file: &Path) -> bool {
    let stem = ports_file.file_stem().unwrap_or_default().to_string_lossy();
    let pid = stem.rsplit_once('_').and_then(|(_, pid)| pid.parse().ok()).and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> BrokerError {
    BrokerError::Io { what, path: path.to_owned(), source }
}
