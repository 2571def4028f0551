//! The daemon under measurement, as a process of its own.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::mesh::Mesh;
use crate::procfs;

/// Nothing that is waited for takes longer.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A serving daemon. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    /// From its start until it served.
    pub(crate) took: Duration,
}

impl Daemon {
    /// Starts `program deliver` for a space and waits until it says that it serves.
    pub(crate) async fn start(program: &PathBuf, mesh: &Mesh, space: &str) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let mut child = Command::new(program)
            .args(["deliver", "--space", space, "--root"])
            .arg(mesh.dir())
            .args(["--server", mesh.url()])
            .env("XDG_CONFIG_HOME", mesh.dir().join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut lines = BufReader::new(child.stderr.take().context("no pipe")?).lines();
        let mut said = String::new();
        loop {
            let line = timeout(READY_WITHIN, lines.next_line()).await;
            let Some(line) = line.context("the daemon is silent")?? else {
                bail!("the daemon ended before it served:\n{said}");
            };
            if line.contains("serving") {
                break;
            }
            said.push_str(&line);
            said.push('\n');
        }
        let took = begin.elapsed();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("  daemon: {line}");
            }
        });
        Ok(Self { child, took })
    }

    /// A size from its status file, in MiB: `VmHWM` or `VmRSS`.
    pub(crate) fn memory(&self, field: &str) -> anyhow::Result<f64> {
        let pid = self.child.id().context("the daemon has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|l| l.trim_start_matches(':').split_whitespace().next());
        Ok(kib.with_context(|| format!("no {field}"))?.parse::<f64>()? / 1024.0)
    }

    /// CPU time it has used, in seconds.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        let pid = self.child.id().context("the daemon has ended")?;
        procfs::cpu_of(pid)
    }

    /// Ends it as a signal would.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(pid.context("the daemon has ended")?, Signal::TERM)?;
        timeout(READY_WITHIN, self.child.wait()).await.context("the daemon does not end")??;
        Ok(())
    }
}
