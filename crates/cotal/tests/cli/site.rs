//! A root of one test, and the binary run on it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use cotal_testkit::broker_binary;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A directory with a root and a registry; dropping it takes the mesh down.
pub struct Site {
    dir: Arc<TempDir>,
    name: &'static str,
}

/// How a run of the binary ended.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Site {
    pub fn new() -> Self {
        Self::named(Arc::new(tempfile::tempdir().unwrap()), "root")
    }

    /// Another root of the same user, with the same registry.
    pub fn beside(&self, name: &'static str) -> Self {
        Self::named(Arc::clone(&self.dir), name)
    }

    fn named(dir: Arc<TempDir>, name: &'static str) -> Self {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        Self { dir, name }
    }

    /// A site whose mesh is up, left running.
    pub fn up() -> Self {
        let site = Self::new();
        site.run(&["up", "--detach", "--server-port", "0"]).ok();
        site
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join(self.name).canonicalize().unwrap()
    }

    pub fn registry(&self) -> PathBuf {
        self.dir.path().join("config/cotal/meshes.json")
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.root().join(".cotal").join(below)
    }

    pub fn read(&self, below: &str) -> String {
        std::fs::read_to_string(self.path(below)).unwrap_or_default()
    }

    /// The binary, in the root, knowing nothing of whoever runs the tests.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cotal"));
        command
            .args(args)
            .current_dir(self.root())
            .env_remove("COTAL_SPACE")
            .env_remove("COTAL_AS")
            .env_remove("COTAL_CREDS")
            .env_remove("COTAL_SERVER")
            .env_remove("COTAL_CA")
            .env_remove("COTAL_LOG")
            .env_remove("COTAL_LOG_FORMAT")
            .env_remove("COTAL_CREDENTIAL_LIFETIME")
            .env("COTAL_NATS_SERVER", broker_binary().path)
            .env("XDG_CONFIG_HOME", self.dir.path().join("config"))
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// Runs a listing and reads its JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let run = self.run(args);
        serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{args:?}: {e}: {run:?}"))
    }

    /// The process id in a record below `.cotal`.
    pub fn pid(&self, below: &str) -> u32 {
        let text = self.read(below);
        text.trim().parse().unwrap_or_else(|e| panic!("{below}: {e}: {text:?}"))
    }

    pub fn daemon(&self) -> u32 {
        self.pid("delivery.main.pid")
    }

    pub fn broker(&self) -> u32 {
        self.pid("broker/nats-server.pid")
    }
}

/// Deletes the row of the lease, as 30 s of silence would; only the daemon's credential may.
pub async fn free_lease(site: &Site, server: &str) {
    free_lease_of(site, server, "main").await;
}

/// The same in another space of the root.
pub async fn free_lease_of(site: &Site, server: &str, space: &str) {
    let creds = site.read(&format!("{space}/delivery.creds"));
    let creds = cotal_nats::Creds::parse(&creds).unwrap();
    let source = cotal_nats::CredsSource::new(creds);
    let options = cotal_nats::ConnectOptions::new(server, "test", source);
    let connection = cotal_nats::Connection::connect(options).await.unwrap();
    let space = cotal_wire::Space::parse(space).unwrap();
    let bucket = space.bucket(cotal_wire::names::Bucket::Delivery);
    let bucket = cotal_nats::Bucket::new(&connection, &bucket);
    bucket.delete(cotal_wire::names::LEASE_KEY, None).await.unwrap();
}

impl Drop for Site {
    fn drop(&mut self) {
        // A test that failed must not leave processes behind.
        let _ = self.command(&["down"]).output();
    }
}

impl Run {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        self.ends(0)
    }

    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.err.contains(text), "{text:?} is not in {self:?}");
        self
    }
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until `look` holds; the processes of a site tell no events to a test.
#[track_caller]
pub fn wait_until(what: &str, look: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !look() {
        assert!(std::time::Instant::now() < deadline, "not within 30 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

pub fn is_alive(pid: u32) -> bool {
    cotal_workspace::process::is_alive(pid)
}
