//! Hosts of several spaces against a real broker (HST-1 to 3).

mod kicks;
mod standby;
mod support;

use std::sync::Arc;
use std::time::Duration;

use cotal_delivery::{Host, HostOptions, LaneState, Windows};
use cotal_testkit::{God, eventually};
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{Secret, SecretKey, SecretKind, SecretStore as _};
use tokio::time::Instant;

use support::{Caller, StuckStore, connections, delivery, host, lane, mesh, space, store, until};

/// Each lane is its space's whole daemon: own credential, own connection in the space's own
/// account, own lease row, own responder.
#[tokio::test(flavor = "multi_thread")]
async fn hst_2_each_lane_serves_its_space_on_its_own_credential_connection_and_lease() {
    let mesh = mesh(&["main", "beta"]).await;
    let store = store(&mesh, &["main", "beta"]);
    let host = host(&mesh, store.clone(), &["main", "beta"]);
    for name in ["main", "beta"] {
        until(&host, name, LaneState::Serving).await;
        assert_eq!(Caller::of(&mesh, name).await.probe().await.as_deref(), Some("bound"));
        let own = delivery(&*store, name).jwt().to_owned();
        let open = connections(&mesh, name).await;
        let rails = format!("cotal.{name}.ctl.delivery.*.*");
        let resident = open.iter().filter(|(_, _, subs)| subs.contains(&rails));
        let resident: Vec<_> = resident.map(|(name, jwt, _)| (name, jwt)).collect();
        assert_eq!(resident, [(&format!("cotal-delivery {name}"), &own)]);
    }
    host.close().await;
    // Closing releases each lease, so the next daemon need not wait.
    let row = God::of(&mesh).await.kv(Bucket::Delivery).get(LEASE_KEY).await.unwrap();
    assert!(row.is_none_or(|row| row.live().is_none()), "the lease was not released");
}

/// The lane whose lease was taken closes alone and is reopened; the other serves without a break.
#[tokio::test(flavor = "multi_thread")]
async fn hst_3_a_lane_that_loses_its_lease_closes_alone_and_is_opened_again() {
    let mesh = mesh(&["main", "beta"]).await;
    let host = host(&mesh, store(&mesh, &["main", "beta"]), &["main", "beta"]);
    until(&host, "main", LaneState::Serving).await;
    let beta = until(&host, "beta", LaneState::Serving).await;

    let kv = God::of(&mesh).await.kv(Bucket::Delivery);
    let thief = LeaseRow {
        holder: cotal_wire::Principal::parse("local.thief").unwrap(),
        incarnation: "another".to_owned(),
        since: 0,
        ready: true,
    };
    kv.put(LEASE_KEY, serde_json::to_vec(&thief).unwrap().into()).await.unwrap();
    let main = until(&host, "main", LaneState::Standby).await;
    assert_eq!(main.reason.as_deref(), Some("local.thief holds the lease"));
    assert_eq!(lane(&host, "beta"), Some(beta.clone()), "the other lane was disturbed");
    assert_eq!(Caller::of(&mesh, "main").await.probe().await, None);

    kv.delete(LEASE_KEY, None).await.unwrap();
    until(&host, "main", LaneState::Serving).await;
    assert_eq!(Caller::of(&mesh, "main").await.probe().await.as_deref(), Some("bound"));
    assert_eq!(lane(&host, "beta"), Some(beta), "the other lane was disturbed");
    host.close().await;
}

/// The broker goes away and comes back: the lane closes and is reopened; no process is restarted.
#[tokio::test(flavor = "multi_thread")]
async fn hst_3_a_lane_that_loses_the_broker_is_opened_again_when_it_is_back() {
    let mut mesh = mesh(&["main"]).await;
    // The row that the lost connection could not release stays for this long.
    God::of(&mesh).await.shorten_lease(4).await;
    let mut options = HostOptions::new(mesh.url());
    options.windows = Windows::new(Some(1_000), None);
    let host = Host::start(options, store(&mesh, &["main"]), [space("main")]);
    until(&host, "main", LaneState::Serving).await;
    mesh.kill_broker().await;
    let closed = until(&host, "main", LaneState::Closed).await;
    assert!(closed.reason.unwrap().contains("broker"), "a reason that names the broker");
    mesh.restart_broker().await;
    until(&host, "main", LaneState::Serving).await;
    host.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hst_1_an_invalid_credential_refuses_its_lane_alone_and_is_retried() {
    let mesh = mesh(&["main", "beta"]).await;
    let store = store(&mesh, &["main", "beta"]);
    let key = SecretKey::new(&space("main"), SecretKind::Delivery);
    let valid = store.get(&key).unwrap().unwrap();
    store.put(&key, &Secret::new("garbage")).unwrap();
    let host = host(&mesh, store.clone(), &["main", "beta"]);
    until(&host, "beta", LaneState::Serving).await;
    let refused = until(&host, "main", LaneState::Refused).await;
    assert!(refused.reason.unwrap().contains("main/delivery credential cannot be parsed"));

    store.put(&key, &valid).unwrap();
    until(&host, "main", LaneState::Serving).await;
    host.close().await;
}

/// A store that hangs holds up its own lane only, both at its start and at its stop.
#[tokio::test(flavor = "multi_thread")]
async fn hst_3_no_lane_queues_behind_one_that_hangs() {
    let mesh = mesh(&["main", "beta"]).await;
    let (open, receiver) = std::sync::mpsc::channel();
    let stuck = StuckStore {
        inner: store(&mesh, &["main", "beta"]),
        stuck: space("main"),
        open: std::sync::Mutex::new(receiver),
    };
    let host = host(&mesh, Arc::new(stuck), &["main", "beta"]);
    until(&host, "beta", LaneState::Serving).await;
    assert_eq!(lane(&host, "main").unwrap().state, LaneState::Opening);
    let asked = Instant::now();
    host.close().await;
    assert!(asked.elapsed() < Duration::from_secs(10), "the close waited for the store");
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn hst_1_lanes_are_added_and_removed_while_the_others_serve() {
    let mesh = mesh(&["main", "beta", "gamma"]).await;
    let names = ["main", "beta", "gamma"];
    let mut host = host(&mesh, store(&mesh, &names), &["main", "beta"]);
    let main = until(&host, "main", LaneState::Serving).await;
    until(&host, "beta", LaneState::Serving).await;
    host.set_spaces([space("main"), space("gamma")]).await;
    assert_eq!(lane(&host, "beta"), None);
    let beta = Caller::of(&mesh, "beta").await;
    let probe = || beta.probe();
    eventually("beta's responder is gone", probe, Option::is_none).await;
    until(&host, "gamma", LaneState::Serving).await;
    assert_eq!(lane(&host, "main"), Some(main), "the lane that stayed was disturbed");
    host.close().await;
}

/// The example of the API docs, as a process of its own: a store in memory and two spaces in one
/// program.
#[tokio::test(flavor = "multi_thread")]
async fn lif_13_the_example_serves_two_spaces_from_a_store_in_memory_and_needs_nothing_ambient() {
    let mesh = mesh(&["main", "beta"]).await;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let build = ["build", "--quiet", "-p", "cotal-delivery", "--example", "two_spaces"];
    assert!(std::process::Command::new(cargo).args(build).status().unwrap().success());
    // Examples are in a directory beside the one of the test binaries.
    let own = std::env::current_exe().unwrap();
    let example = own.parent().unwrap().parent().unwrap().join("examples/two_spaces");
    let empty = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(example)
        .arg(mesh.url())
        .args(["main", "beta"].map(|name| mesh.root().dot_dir().join(name)))
        .current_dir(empty.path())
        .env_clear()
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), output).await.unwrap().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("all 2 spaces are served"), "{said}");
    assert!(output.stderr.is_empty(), "it logged to somewhere that it was not given");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "it left files behind");
    let row = God::of(&mesh).await.kv(Bucket::Delivery).get(LEASE_KEY).await.unwrap();
    assert!(row.is_none_or(|row| row.live().is_none()), "the lease was not released");
}
