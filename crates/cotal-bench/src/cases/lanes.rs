//! What an idle lane of a multi-space host costs, and how that grows with their number.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cotal_wire::Space;
use cotal_workspace::{HostFile, HostManifest, Root};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::mesh::Mesh;
use crate::procfs;
use crate::report::{Case, Report};
use crate::setup::Setup;

/// Numbers of lanes that are compared where none are asked for. A thousand spaces take a broker of
/// this size minutes to provision, so that many are measured on demand (`--lanes 1000`).
const LANES: [usize; 2] = [10, 100];
/// KiB that one lane more may cost.
const LANE_KIB: f64 = 150.0;
/// Connections of an idle lane.
const LANE_CONNECTIONS: f64 = 3.0;
/// Seconds until every lane serves.
const READY_WITHIN: f64 = 60.0;
/// Nothing that is waited for takes longer.
const DONE_WITHIN: Duration = Duration::from_secs(300);
/// Until start-up's memory is given back and the first renewals are over.
const SETTLE: Duration = Duration::from_secs(10);
/// Over this time the processor's use is taken.
const IDLE_FOR: Duration = Duration::from_secs(20);

/// What one host of `lanes` lanes used.
struct Measured {
    lanes: usize,
    ready: f64,
    rss_kib: f64,
    connections: f64,
    threads: f64,
    /// Percent of one core, of the host and of its broker.
    cpu: f64,
    broker_cpu: f64,
}

pub(crate) async fn run(setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
    let wanted = if setup.lanes.is_empty() { LANES.to_vec() } else { setup.lanes.clone() };
    let mut measured = Vec::new();
    for lanes in wanted {
        let one = Box::pin(measure(setup, lanes)).await?;
        eprintln!(
            "  {lanes} lanes: serving after {:.1} s, {:.1} MiB, {} connections, {} threads, \
             idle {:.1} % of a core, its broker {:.1} %",
            one.ready,
            one.rss_kib / 1_024.0,
            one.connections,
            one.threads,
            one.cpu,
            one.broker_cpu
        );
        measured.push(one);
    }
    tell(&measured, report);
    Ok(())
}

fn tell(measured: &[Measured], report: &mut Report) {
    for one in measured {
        let lanes = one.lanes;
        let name = |what| format!("lanes/{lanes}/{what}");
        report.add(Case::cost(name("ready"), &[READY_WITHIN], &[one.ready], 1.0, "s"));
        let each = one.connections / lanes as f64;
        report.add(Case::cost(name("connections"), &[LANE_CONNECTIONS], &[each], 1.0, "a lane"));
        report.add(Case::cost(name("idle"), &[5.0], &[one.cpu], 1.0, "% of a core"));
    }
    // The process itself weighs the same with one lane as with all, so only what is added counts.
    for two in measured.windows(2) {
        let (few, many) = (&two[0], &two[1]);
        let more = (many.lanes - few.lanes) as f64;
        let each = (many.rss_kib - few.rss_kib) / more;
        let name = format!("lanes/{}→{}", few.lanes, many.lanes);
        report.add(Case::cost(name, &[LANE_KIB], &[each], 1.0, "KiB a lane"));
    }
}

async fn measure(setup: &Setup, lanes: usize) -> anyhow::Result<Measured> {
    let names: Vec<String> = (0..lanes).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let begin = Instant::now();
    let mesh = Mesh::start(&setup.broker, &names).await?;
    eprintln!("  {lanes} spaces are provisioned after {:.1} s", begin.elapsed().as_secs_f64());
    let mut host = Host::start(setup, &mesh, &names)?;
    let ready = host.serving(&mesh, lanes).await?;
    tokio::time::sleep(SETTLE).await;
    let (cpu, broker_cpu, from) = (procfs::cpu_of(host.pid)?, mesh.broker_cpu()?, Instant::now());
    tokio::time::sleep(IDLE_FOR).await;
    let percent = |used: f64| 100.0 * used / from.elapsed().as_secs_f64();
    let measured = Measured {
        lanes,
        ready,
        cpu: percent(procfs::cpu_of(host.pid)? - cpu),
        broker_cpu: percent(mesh.broker_cpu()? - broker_cpu),
        rss_kib: status(host.pid)?.get("VmRSS").copied().context("no VmRSS")?,
        threads: status(host.pid)?.get("Threads").copied().context("no Threads")?,
        connections: connections(host.pid)? as f64,
    };
    host.stop().await?;
    mesh.stop().await?;
    Ok(measured)
}

/// A host under measurement. Dropping it kills it.
struct Host {
    child: Child,
    pid: u32,
    started: Instant,
}

impl Host {
    fn start(setup: &Setup, mesh: &Mesh, names: &[&str]) -> anyhow::Result<Self> {
        let spaces: Result<Vec<Space>, _> = names.iter().map(|name| Space::parse(name)).collect();
        let manifest = HostManifest::new(spaces?).map_err(anyhow::Error::msg)?;
        let path = mesh.dir().join("spaces.json");
        std::fs::write(&path, manifest.render())?;
        let started = Instant::now();
        let child = Command::new(&setup.daemon)
            .args(["deliver", "--spaces"])
            .arg(&path)
            .arg("--root")
            .arg(mesh.dir())
            .args(["--server", mesh.url()])
            .env("XDG_CONFIG_HOME", mesh.dir().join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", setup.daemon.display()))?;
        let pid = child.id().context("the host has ended")?;
        Ok(Self { child, pid, started })
    }

    /// Seconds until every lane serves, as the host itself says.
    async fn serving(&mut self, mesh: &Mesh, lanes: usize) -> anyhow::Result<f64> {
        let root = Root::at(mesh.dir())?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the host ended: {status}");
            }
            let file = HostFile::load(&root)?.flatten();
            let serving = file
                .as_ref()
                .map_or(0, |file| file.lanes.iter().filter(|lane| lane.state == "serving").count());
            if serving == lanes {
                return Ok(self.started.elapsed().as_secs_f64());
            }
            if self.started.elapsed() > DONE_WITHIN {
                bail!("{serving} of {lanes} lanes serve after {DONE_WITHIN:?}: {file:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid)?).context("the host has ended")?;
        kill_process(pid, Signal::TERM)?;
        timeout(DONE_WITHIN, self.child.wait()).await.context("the host does not end")??;
        Ok(())
    }
}

/// The numbers of a process's status file: KiB, or a count.
fn status(pid: u32) -> anyhow::Result<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.split_whitespace().next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(number).collect())
}

/// The TCP connections that a process holds.
fn connections(pid: u32) -> anyhow::Result<usize> {
    let mut own = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        own.extend(inode(&target));
    }
    let tcp = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    let inodes = tcp.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9));
    Ok(inodes.filter(|inode| own.contains(*inode)).count())
}

fn inode(target: &Path) -> Option<String> {
    Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
}
