//! Two complete hosts on one machine and one broker: kill, return, graceful stop, renewal across
//! the first expiry, an invalid manifest (STB-5).
//!
//! The times that it prints are observations, not promises: two processes on one machine are no
//! test of two machines or of a network that splits. `cargo xtask standby` plays it with the
//! lease's real time to live, continuous integration with a shorter one.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]
#![allow(clippy::print_stdout, reason = "the observed times are what the suite is run for")]

mod docs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cotal_nats::Connection;
use cotal_testkit::{DaemonProcess, God, Mesh, Supervisor, eventually};
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, DELIVERY, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use rustix::process::Signal;

const BINARY: &str = env!("CARGO_BIN_EXE_cotal");

/// How long a lease lives and a host's credentials do, in seconds: enough for every step before the
/// first expiry on a busy machine.
struct Times {
    lease: i64,
    credential: i64,
}

impl Times {
    /// `COTAL_STANDBY_TTL` asks for the lease's real life.
    fn from_env() -> Self {
        let lease = std::env::var("COTAL_STANDBY_TTL").ok().map(|text| text.parse().unwrap());
        let lease = lease.unwrap_or(4);
        Self { lease, credential: 40 + 4 * lease }
    }
}

/// One host: a root of its own and the process on it.
struct Host<'a> {
    name: &'static str,
    mesh: &'a Mesh,
    dir: PathBuf,
    times: &'a Times,
}

impl<'a> Host<'a> {
    fn provisioned(name: &'static str, mesh: &'a Mesh, times: &'a Times) -> Self {
        let host = Self { name, mesh, dir: mesh.dir().join(name), times };
        assert!(host.provision().contains("delivery credential minted"));
        host
    }

    /// As an operator does it, again and again: what is past half its life is renewed.
    fn provision(&self) -> String {
        let life = self.times.credential.to_string();
        let output = Command::new(BINARY)
            .args(["host", "provision", "--space", "main", "--root"])
            .arg(&self.dir)
            .args(["--credential-lifetime", &life])
            .current_dir(self.mesh.dir())
            .env_remove("COTAL_SPACE")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn manifest(&self) -> PathBuf {
        self.dir.join("spaces.json")
    }

    fn start(&self) -> DaemonProcess {
        self.start_with(&self.dir, &self.manifest())
    }

    fn start_with(&self, dir: &Path, manifest: &Path) -> DaemonProcess {
        DaemonProcess::host(BINARY, dir, manifest, self.mesh.url(), &[], &[])
    }

    /// The credential that stands in the host's own store.
    fn creds(&self) -> Creds {
        let text = std::fs::read_to_string(self.dir.join(".cotal/main/delivery.creds")).unwrap();
        Creds::parse(&text).unwrap()
    }

    fn principal(&self) -> String {
        self.creds().claims.principal().unwrap().to_string()
    }

    /// Waits until this host's row says `ready` and somebody answers for it.
    async fn serves(&self, broker: &Broker) -> LeaseRow {
        let look = || broker.lease();
        let own = self.principal();
        let is_own = |row: &Option<LeaseRow>| {
            row.as_ref().is_some_and(|row| row.ready && row.holder.as_str() == own)
        };
        let row = eventually(&format!("{} serves", self.name), look, is_own).await.unwrap();
        let probe = || broker.probe();
        eventually("the responder answers", probe, |state| state.as_deref() == Some("bound")).await;
        row
    }
}

/// What the broker itself shows.
struct Broker {
    god: God,
    supervisor: Supervisor,
    operator: (Connection, String),
}

impl Broker {
    async fn of(mesh: &Mesh) -> Self {
        let text = mesh.creds(cotal_wire::profile::Profile::Operator);
        let principal = Creds::parse(&text).unwrap().claims.principal().unwrap();
        let subject = mesh.space().live(DELIVERY, &principal);
        let operator = (mesh.connect(&text).await, subject);
        Self { god: God::of(mesh).await, supervisor: Supervisor::of(mesh).await, operator }
    }

    async fn lease(&self) -> Option<LeaseRow> {
        let entry = self.god.kv(Bucket::Delivery).get(LEASE_KEY).await.unwrap()?;
        LeaseRow::parse(entry.live()?).ok()
    }

    async fn probe(&self) -> Option<String> {
        let (connection, subject) = &self.operator;
        let within = Duration::from_secs(5);
        let reply = cotal_testkit::ask(connection, subject.clone(), "{}".into(), within).await;
        let reply: serde_json::Value = serde_json::from_slice(&reply.ok()?).unwrap();
        reply["state"].as_str().map(str::to_owned)
    }
}

fn observed(what: &str, since: Instant) {
    println!("{what}: {:.1} s", since.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread")]
async fn stb_5_two_complete_hosts_through_kill_return_stop_renewal_and_an_invalid_manifest() {
    let times = Times::from_env();
    let mesh = Mesh::start().await;
    let broker = Broker::of(&mesh).await;
    broker.god.shorten_lease(times.lease).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let east = Host::provisioned("east", &mesh, &times);
    let west = Host::provisioned("west", &mesh, &times);
    assert_ne!(east.principal(), west.principal(), "each host has a key of its own (CRD-7)");
    let first_expiry = east.creds().claims.expires_at.unwrap();
    println!("the lease lives for {} s, a credential for {} s", times.lease, times.credential);

    let first = east.start();
    east.serves(&broker).await;
    bob.join("team.backend").await;
    let mut second = west.start();
    second.says(&format!("{} holds its lease", east.principal())).await;

    let killed = Instant::now();
    first.kill().await;
    let row = west.serves(&broker).await;
    observed("the holder was killed; the standby served after", killed);

    let mut first = east.start();
    first.says(&format!("{} holds its lease", west.principal())).await;
    let still = broker.lease().await.unwrap();
    assert_eq!((still.holder, still.incarnation), (row.holder, row.incarnation), "no fail-back");

    let stopped = Instant::now();
    second.signal(Signal::TERM);
    let row = east.serves(&broker).await;
    observed("the holder was stopped; the standby served after", stopped);
    assert_eq!(second.ended().await, Some(0));
    let mut second = west.start();
    second.says(&format!("{} holds its lease", east.principal())).await;

    renewal(&mesh, &broker, [&east, &west], &mut first, first_expiry).await;
    invalid_manifests(&broker, &east, &west, &mut first).await;
    let still = broker.lease().await.unwrap();
    assert_eq!((still.holder, still.incarnation), (row.holder, row.incarnation), "disturbed");

    let id = "after everything";
    alice.post("team.backend", id, &[]).await;
    assert_eq!(bob.receive(1).await, [id]);
    for mut host in [second, first] {
        host.signal(Signal::TERM);
        assert_eq!(host.ended().await, Some(0), "{}", host.log());
    }
    assert_eq!(broker.lease().await, None, "the last one released its row");
}

/// Each host's credential is replaced through its own store, and the first one expires while the
/// holder serves on.
async fn renewal(
    mesh: &Mesh,
    broker: &Broker,
    hosts: [&Host<'_>; 2],
    holder: &mut DaemonProcess,
    first_expiry: i64,
) {
    for host in hosts {
        let before = host.creds();
        let renew = || async { host.provision() };
        let minted = |said: &String| said.contains("delivery credential minted");
        eventually(&format!("{} is past half its life", host.name), renew, minted).await;
        let after = host.creds();
        assert_eq!(after.claims.subject, before.claims.subject, "a renewal keeps the nkey (CRD-7)");
        assert!(after.claims.expires_at > before.claims.expires_at);
    }
    holder.says("reconnected with a renewed credential").await;
    let now = || async { cotal_manager::clock::unix_seconds() };
    eventually("the first expiry", now, |now| *now > first_expiry + 1).await;
    println!("the first expiry passed while {} served", hosts[0].name);
    assert_eq!(broker.probe().await.as_deref(), Some("bound"));
    assert!(!holder.log().contains("credential expired"), "{}", holder.log());
    let status = broker.supervisor.status().await;
    assert_eq!(status.incarnation, hosts[0].serves(broker).await.incarnation, "of {}", mesh.url());
}

/// Neither a host that starts with an invalid manifest nor the holder's own, spoiled, disturbs it.
async fn invalid_manifests(
    broker: &Broker,
    east: &Host<'_>,
    west: &Host<'_>,
    holder: &mut DaemonProcess,
) {
    let third = west.dir.with_extension("third");
    std::fs::create_dir_all(third.join(".cotal")).unwrap();
    let invalid = third.join("spaces.json");
    std::fs::write(&invalid, "{\"version\": 2,\n\"spaces\": [\"main\"]}").unwrap();
    let mut refused = west.start_with(&third, &invalid);
    refused.says("line 1: version 2 is unknown").await;
    assert_eq!(refused.ended().await, Some(2));

    let valid = std::fs::read_to_string(east.manifest()).unwrap();
    std::fs::write(east.manifest(), "{\"version\": 1,").unwrap();
    holder.says("the 1 lanes are unchanged").await;
    std::fs::write(east.manifest(), valid).unwrap();
    assert_eq!(broker.probe().await.as_deref(), Some("bound"));
    println!("invalid manifests were refused and disturbed nobody");
}
