//! `cotal deliver --spaces`: many spaces in one real process (HST-1, HST-4).

use std::path::{Path, PathBuf};
use std::time::Duration;

use cotal_testkit::{DaemonProcess, Mesh, MeshOptions, eventually};
use rustix::process::Signal;
use serde_json::Value;

use super::service::Manager;
use super::site::{Run, Site};

const BINARY: &str = env!("CARGO_BIN_EXE_cotal");

/// A root whose spaces are provisioned and that no daemon serves.
struct Ground {
    mesh: Mesh,
    manifest: PathBuf,
}

impl Ground {
    async fn of(spaces: &[&str], manifest: &str) -> Self {
        let spaces = spaces.iter().map(|&name| name.to_owned()).collect();
        let mesh = Mesh::with(MeshOptions { spaces, ..MeshOptions::default() }).await;
        let ground = Self { manifest: mesh.dir().join("spaces.json"), mesh };
        ground.write(manifest);
        ground
    }

    /// Replaces the manifest as an operator's tool does: whole.
    fn write(&self, manifest: &str) {
        let staged = self.manifest.with_extension("new");
        std::fs::write(&staged, manifest).unwrap();
        std::fs::rename(staged, &self.manifest).unwrap();
    }

    fn host(&self) -> DaemonProcess {
        self.host_with(&[], &[])
    }

    fn host_with(&self, more: &[&str], env: &[(&str, &str)]) -> DaemonProcess {
        let (dir, url) = (self.mesh.dir(), self.mesh.url());
        DaemonProcess::host(BINARY, dir, &self.manifest, url, more, env)
    }

    fn run(&self, args: &[&str]) -> Run {
        let mut command = std::process::Command::new(BINARY);
        command.args(args).current_dir(self.mesh.dir()).env_remove("COTAL_SPACE");
        let config = self.mesh.dir().join("config");
        Run::of(command.env("XDG_CONFIG_HOME", config).output().unwrap())
    }

    /// The lanes as `cotal status` shows them: space, state, since when, why.
    fn lanes(&self) -> Vec<(String, String, i64, String)> {
        let status: Value = serde_json::from_str(&self.run(&["status", "--json"]).out).unwrap();
        let lanes = status["host"]["lanes"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lane = |l: &Value| {
            (text(&l["space"]), text(&l["state"]), l["since"].as_i64().unwrap(), text(&l["reason"]))
        };
        lanes.iter().map(lane).collect()
    }

    async fn lanes_are(&self, wanted: &[(&str, &str)]) -> Vec<(String, String, i64, String)> {
        let look = || async { self.lanes() };
        let fit = |lanes: &Vec<(String, String, i64, String)>| {
            let seen: Vec<_> = lanes.iter().map(|l| (l.0.as_str(), l.1.as_str())).collect();
            seen == wanted
        };
        eventually(&format!("lanes {wanted:?}"), look, fit).await
    }
}

/// The pid records below `.cotal`.
fn records(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir.join(".cotal")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("delivery.") && name.contains(".pid")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hst_1_and_hst_4_one_process_serves_every_space_of_its_manifest_and_writes_no_pid_record() {
    let ground = Ground::of(&["alpha", "beta"], r#"{"version":1,"spaces":["alpha","beta"]}"#).await;
    let mut host = ground.host();
    let serving = ground.lanes_are(&[("alpha", "serving"), ("beta", "serving")]).await;
    assert!(serving.iter().all(|lane| lane.2 > 0), "{serving:?}");
    // Both are served as the rails themselves say, and by no process of their own.
    let status: Value = serde_json::from_str(&ground.run(&["status", "--json"]).ok().out).unwrap();
    for space in status["spaces"].as_array().unwrap() {
        assert_eq!((&space["delivery"], &space["pid"]), (&"bound".into(), &Value::Null));
    }
    assert_eq!(records(ground.mesh.dir()), [] as [String; 0]);
    let shown = ground.run(&["status"]).ok().out;
    assert!(shown.contains("serving 2 of 2 spaces"), "{shown}");

    host.signal(Signal::TERM);
    host.says("received SIGTERM, exiting").await;
    assert_eq!(host.ended().await, Some(0));
    // What the host said is no news once it is gone, and its leases are free at once.
    assert_eq!(ground.lanes(), []);
    let mut next = ground.host();
    ground.lanes_are(&[("alpha", "serving"), ("beta", "serving")]).await;
    next.signal(Signal::INT);
    assert_eq!(next.ended().await, Some(0));
    let log = std::fs::read_to_string(ground.mesh.root().host_log()).unwrap();
    assert!(log.contains("received SIGINT, exiting"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hst_1_a_malformed_manifest_refuses_the_whole_start_naming_line_and_reason() {
    let ground =
        Ground::of(&["alpha"], "{\"version\": 1,\n\"spaces\": [\"alpha\",\n\"alpha\"]}").await;
    let mut host = ground.host();
    let line = host.says("✗ delivery host").await;
    assert!(line.contains("spaces.json") && line.contains("line 3"), "{line}");
    assert!(line.contains("space \"alpha\" is named twice"), "{line}");
    assert_eq!(host.ended().await, Some(2));
    std::fs::remove_file(&ground.manifest).unwrap();
    assert_eq!(ground.host().ended().await, Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn hst_1_an_invalid_lane_credential_refuses_that_lane_only_and_is_retried() {
    let ground = Ground::of(&["alpha", "beta"], r#"{"version":1,"spaces":["alpha","beta"]}"#).await;
    let creds = ground.mesh.dir().join(".cotal/alpha/delivery.creds");
    let valid = std::fs::read_to_string(&creds).unwrap();
    std::fs::write(&creds, "garbage").unwrap();
    let mut host = ground.host();
    host.says("alpha/delivery credential cannot be parsed").await;
    let lanes = ground.lanes_are(&[("alpha", "refused"), ("beta", "serving")]).await;
    assert!(lanes[0].3.contains("cannot be parsed"), "{lanes:?}");
    let shown = ground.run(&["status"]).ends(7).out;
    assert!(shown.contains("lane      alpha refused for"), "{shown}");
    std::fs::write(&creds, valid).unwrap();
    let after = ground.lanes_are(&[("alpha", "serving"), ("beta", "serving")]).await;
    assert_eq!(after[1], lanes[1], "the other lane was disturbed");
    host.signal(Signal::TERM);
    assert_eq!(host.ended().await, Some(0));
}

/// SIGHUP and a changed file both do it; a refused manifest disturbs nobody.
#[tokio::test(flavor = "multi_thread")]
async fn hst_1_lanes_come_and_go_with_the_manifest_while_the_others_serve() {
    let ground =
        Ground::of(&["alpha", "beta", "gamma"], r#"{"version":1,"spaces":["alpha"]}"#).await;
    let mut host = ground.host();
    let first = ground.lanes_are(&[("alpha", "serving")]).await;

    ground.write(r#"{"version":1,"spaces":["alpha","beta"]}"#);
    let both = ground.lanes_are(&[("alpha", "serving"), ("beta", "serving")]).await;
    assert_eq!(both[0], first[0], "the lane that stayed was disturbed");

    ground.write("{\"version\":1,\n\"spaces\":[\"alpha\",\"no.space\"]}");
    let refused = host.says("lanes are unchanged").await;
    assert!(refused.contains("line 2") && refused.contains("the 2 lanes"), "{refused}");
    assert_eq!(ground.lanes(), both);

    ground.write(r#"{"version":1,"spaces":["gamma","alpha"]}"#);
    host.signal(Signal::HUP);
    let after = ground.lanes_are(&[("alpha", "serving"), ("gamma", "serving")]).await;
    assert_eq!(after[0], first[0], "the lane that stayed was disturbed");
    host.signal(Signal::TERM);
    assert_eq!(host.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_1_a_host_that_is_told_to_demand_tls_refuses_a_plaintext_listener() {
    let ground = Ground::of(&["alpha"], r#"{"version":1,"spaces":["alpha"]}"#).await;
    let mut host = ground.host_with(&["--tls"], &[]);
    host.says("TLS is required").await;
    let lanes = ground.lanes_are(&[("alpha", "closed")]).await;
    assert!(lanes[0].3.contains("TLS is required"), "{lanes:?}");
    host.kill().await;
}

/// Two on one root would stand by for each other's lanes.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_host_on_one_root_is_refused_and_names_the_first() {
    let ground = Ground::of(&["alpha"], r#"{"version":1,"spaces":["alpha"]}"#).await;
    let first = ground.host();
    ground.lanes_are(&[("alpha", "serving")]).await;
    let mut second = ground.host();
    second.says(&format!("process {}", first.pid())).await;
    assert_eq!(second.ended().await, Some(8));
    tokio::time::timeout(Duration::from_secs(30), first.kill()).await.unwrap();
}

/// A host that stands by is as started as one that serves.
#[tokio::test(flavor = "multi_thread")]
async fn hst_1_the_service_manager_hears_how_many_serve_once_every_lane_has_come_to_something() {
    let ground = Ground::of(&["alpha", "beta"], r#"{"version":1,"spaces":["alpha","beta"]}"#).await;
    std::fs::remove_file(ground.mesh.dir().join(".cotal/beta/delivery.creds")).unwrap();
    let mut manager = Manager::new();
    let mut host = ground.host_with(&[], &[manager.env()]);
    manager.hears("READY=1").await;
    manager.hears("serving 1 of 2 spaces, 1 refused").await;
    let early = manager.drain().into_iter().take_while(|said| !said.contains("READY=1"));
    assert!(early.into_iter().all(|said| said.contains("starting:")), "said before it was ready");
    host.signal(Signal::TERM);
    manager.hears("received SIGTERM").await;
    assert_eq!(host.ended().await, Some(0));
}

/// Adding a space takes the first one's kick credential away, and agents are retired all the same.
#[tokio::test(flavor = "multi_thread")]
async fn evc_5_up_with_several_spaces_gives_none_a_kick_credential_and_retires_agents_all_the_same()
{
    let site = Site::up();
    let evictor = site.path("main/connection-evictor.creds");
    assert!(evictor.exists(), "the only space of a broker has one");
    site.run(&["space", "add", "other"]).ok();
    site.run(&["up", "--detach"]).ok();
    assert!(!evictor.exists(), "it was left");
    assert!(!site.path("other/connection-evictor.creds").exists());
    for space in ["main", "other"] {
        let in_space = |args: &[&str]| site.run(&[args, &["--space", space]].concat());
        in_space(&["agent", "add", "bob", "--read", "a", "--post", "a"]).ok();
        in_space(&["agent", "retire", "bob"]).ok();
    }
    site.run(&["doctor", "auth"]).ok();
}
