//! Daemons under a service manager: what it is told, and the unit that it is given.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cotal_testkit::{DaemonProcess, Mesh, Proxy};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::UnixDatagram;
use tokio::time::timeout;

use crate::site::{Site, is_alive, signal, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_cotal");
/// A proof is due every second.
const WATCHDOG: (&str, &str) = ("WATCHDOG_USEC", "3000000");
const READY: &str = "READY=1";
const PING: &str = "WATCHDOG=1";

/// What a service manager hears.
pub struct Manager {
    _dir: TempDir,
    path: PathBuf,
    socket: UnixDatagram,
    heard: Vec<String>,
    /// How much of it was drained.
    drained: usize,
}

impl Manager {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { _dir: dir, path, socket, heard: Vec::new(), drained: 0 }
    }

    pub fn env(&self) -> (&'static str, &str) {
        ("NOTIFY_SOCKET", self.path.to_str().unwrap())
    }

    /// Waits until something that contains `text` is said.
    pub async fn hears(&mut self, text: &str) {
        loop {
            let mut buffer = [0; 4096];
            let said = timeout(Duration::from_secs(60), self.socket.recv(&mut buffer)).await;
            let Ok(read) = said else {
                panic!("nobody said {text:?}: {:?}", self.heard);
            };
            let said = String::from_utf8(buffer[..read.unwrap()].to_vec()).unwrap();
            self.heard.push(said.trim_end().to_owned());
            if said.contains(text) {
                return;
            }
        }
    }

    /// What was said since the last time, without waiting.
    pub fn drain(&mut self) -> Vec<String> {
        let mut buffer = [0; 4096];
        while let Ok(read) = self.socket.try_recv(&mut buffer) {
            let said = String::from_utf8(buffer[..read].to_vec()).unwrap();
            self.heard.push(said.trim_end().to_owned());
        }
        let new = self.heard[self.drained..].to_vec();
        self.drained = self.heard.len();
        new
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_16_a_daemon_is_ready_once_it_serves_and_pings_while_it_gets_on() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut manager = Manager::new();
    proxy.deafen_at("$KV.");
    // A broker that is merely silent must not end it while its pings are watched.
    let env = [manager.env(), WATCHDOG, ("COTAL_DELIVERY_BROKER_GONE_MS", "600000")];
    let env = env.map(|(name, value)| (name, value.to_owned()));
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &env);
    manager.hears("STATUS=space main: claiming the lease").await;
    proxy.deafened().await;
    let early = manager.drain();
    assert!(!early.iter().any(|said| said.contains(READY)), "{early:?}");
    proxy.heal();
    manager.hears(READY).await;
    manager.hears("STATUS=serving space main").await;
    manager.hears(PING).await;

    proxy.stall();
    manager.hears("made no progress").await;
    manager.drain();
    // Three pings would be due.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let silent = manager.drain();
    assert!(!silent.iter().any(|said| said.contains(PING)), "{silent:?}");
    proxy.heal();
    manager.hears(PING).await;

    daemon.signal(Signal::TERM);
    manager.hears("STOPPING=1").await;
    assert_eq!(daemon.ended().await, Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_16_up_is_ready_once_the_mesh_serves_and_pings_while_its_daemons_answer() {
    let site = Site::new();
    let mut manager = Manager::new();
    let mut command = site.command(&["up", "--server-port", "0"]);
    command.envs([manager.env(), WATCHDOG]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut up = command.spawn().unwrap();
    manager.hears(READY).await;
    site.run(&["status"]).ok();
    manager.hears("STATUS=serving 1 of 1 spaces").await;
    manager.hears(PING).await;
    // Its replacement has to wait for the dead one's lease.
    let daemon = site.daemon();
    signal(daemon, Signal::KILL);
    manager.hears("STATUS=space main: its responder is not bound").await;
    manager.drain();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let silent = manager.drain();
    assert!(!silent.iter().any(|said| said.contains(PING)), "{silent:?}");
    signal(up.id(), Signal::TERM);
    manager.hears("STOPPING=1").await;
    assert!(up.wait().unwrap().success());
    manager.drain();
    let all = &manager.heard;
    assert!(!all.iter().any(|said| said.contains("claiming")), "a daemon spoke for `up`: {all:?}");
}

/// A setting of a unit.
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let mut lines = unit.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

/// The words of a setting; nothing in these paths needs to be unescaped.
fn words(value: &str) -> Vec<&str> {
    value.trim_matches('"').split("\" \"").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_16_the_unit_of_the_delivery_preset_starts_a_daemon_that_serves() {
    let site = Site::up();
    let stop = |daemon: u32| {
        signal(daemon, Signal::TERM);
        wait_until("the daemon's end", || !is_alive(daemon));
    };
    stop(site.daemon());
    let unit = site.run(&["service", "print", "delivery", "--user"]).ok().out;
    assert_eq!(setting(&unit, "Type"), "notify");
    let exec = words(setting(&unit, "ExecStart"));
    assert_eq!(exec[..2], [BINARY, "deliver"]);
    let (name, value) = words(setting(&unit, "Environment"))[0].split_once('=').unwrap();

    let mut manager = Manager::new();
    let mut command = std::process::Command::new(exec[0]);
    command.args(&exec[1..]).env_clear().env(name, value).envs([manager.env()]).current_dir("/");
    let mut daemon = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    manager.hears(READY).await;
    assert_eq!(site.daemon(), daemon.id());
    site.run(&["status"]).ok();
    stop(daemon.id());
    assert!(daemon.wait().unwrap().success());
}

/// As units of before the presets call it: without a socket, and from the root's directory.
#[test]
fn lif_16_deliver_still_works_as_existing_units_call_it() {
    let site = Site::up();
    for args in [
        vec!["deliver", "--space", "main"],
        vec!["deliver", "--root", ".", "--space", "main", "--server", "URL"],
    ] {
        let before = site.daemon();
        signal(before, Signal::TERM);
        wait_until("the daemon's end", || !is_alive(before));
        let mesh: serde_json::Value = serde_json::from_str(&site.read("mesh.json")).unwrap();
        let url = mesh["server"].as_str().unwrap();
        let args: Vec<&str> =
            args.iter().map(|arg| if *arg == "URL" { url } else { arg }).collect();
        let mut command = site.command(&args);
        let mut daemon = command.stderr(Stdio::null()).spawn().unwrap();
        wait_until("a daemon that serves", || site.run(&["status"]).code == 0);
        assert_eq!(site.daemon(), daemon.id());
        signal(daemon.id(), Signal::TERM);
        assert!(daemon.wait().unwrap().success());
        site.run(&["up", "--detach"]).ok();
    }
}

fn install(site: &Site, dir: &Path, more: &[&str]) -> crate::site::Run {
    let dir = dir.to_str().unwrap();
    let args = [&["service", "install", "mesh", "--system", "--dir", dir][..], more].concat();
    site.run(&args)
}

#[test]
fn lif_16_a_unit_is_installed_whole_and_no_other_file_is_replaced_unasked() {
    use std::os::unix::fs::MetadataExt as _;
    let site = Site::up();
    let dir = site.root().join("units");
    let run = install(&site, &dir, &[]).ok().says("enable --now cotal-mesh.service");
    let path = dir.join("cotal-mesh.service");
    assert_eq!(run.out.trim(), path.to_str().unwrap());
    let unit = std::fs::read_to_string(&path).unwrap();
    let owner = site.path("mesh.json").metadata().unwrap();
    assert_eq!(setting(&unit, "User"), owner.uid().to_string());
    let writable = format!("\"{}\"", site.path("").to_str().unwrap().trim_end_matches('/'));
    assert_eq!(setting(&unit, "ReadWritePaths"), writable);
    assert!(!unit.contains("creds") && !unit.contains("seed"), "{unit}");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing half-written is left");

    install(&site, &dir, &[]).ok().says("installed already");
    std::fs::write(&path, "mine").unwrap();
    install(&site, &dir, &[]).ends(8).says("--force");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    install(&site, &dir, &["--force"]).ok();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), unit);
}

#[test]
fn lif_16_an_open_mesh_has_no_delivery_unit() {
    let site = Site::new();
    site.run(&["up", "--open", "--detach", "--server-port", "0"]).ok();
    site.run(&["service", "print", "delivery"]).ends(6).says("open");
    site.run(&["service", "print", "mesh"]).ok();
    site.run(&["service", "print", "delivery", "--root", "/"]).ends(4);
}
