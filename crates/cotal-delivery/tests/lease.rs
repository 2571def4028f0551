//! The single-flight lease against a real broker (LSE-1, 2, 8, 9).

use std::time::Duration;

use cotal_delivery::{Lane, LaneError, LeaseError};
use cotal_nats::{Connection, WatchEvent, WatchOptions};
use cotal_testkit::{God, Mesh, Peer, eventually};
use cotal_wire::names::{Bucket, DELIVERY, LEASE_KEY, sys};
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{FileStore, SecretKey, SecretKind, SecretStore as _};
use serde_json::{Value, json};
use tokio::time::Instant;

async fn lease(god: &God) -> Option<(LeaseRow, u64)> {
    let entry = god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the lease bucket")?;
    let row = LeaseRow::parse(entry.live()?).ok()?;
    Some((row, entry.revision))
}

async fn probe(peer: &Peer) -> Option<String> {
    let subject = peer.space.live(DELIVERY, peer.principal());
    let reply = peer.ask(subject, "{}".into(), Duration::from_secs(5)).await.ok()?;
    let reply: Value = serde_json::from_slice(&reply).expect("JSON");
    reply["state"].as_str().map(str::to_owned)
}

/// A connection of the space's own census observer.
async fn observer(mesh: &Mesh) -> (Connection, String) {
    let store = FileStore::new(mesh.root().clone());
    let key = SecretKey::new(mesh.space(), SecretKind::MembershipObserver);
    let secret = store.get(&key).expect("the store").expect("the observer");
    let account = mesh.authority().account().public_key();
    (mesh.connect(secret.expose()).await, account)
}

/// The connections of the account that are called `name`, open (0) or closed (1), each with its
/// subscriptions.
async fn census(observer: &(Connection, String), state: u8, name: &str) -> Vec<Vec<String>> {
    let (connection, account) = observer;
    let body = json!({ "subscriptions": true, "auth": true, "state": state }).to_string();
    let reply = connection.request(sys::connz(account), None, body.into(), None).await;
    let reply: Value = serde_json::from_slice(&reply.expect("a census").payload).expect("JSON");
    let list = reply["data"]["connections"].as_array().cloned().unwrap_or_default();
    let named = list.iter().filter(|c| c["name"] == name);
    let texts = |subs: &Value| {
        let subs = subs.as_array().cloned().unwrap_or_default();
        subs.iter().filter_map(|sub| sub.as_str().map(str::to_owned)).collect()
    };
    named.map(|c| texts(&c["subscriptions_list"])).collect()
}

/// The broker's own lists: no consumer more, and no subscription of the refused connection but its
/// reply inbox.
#[tokio::test(flavor = "multi_thread")]
async fn lse_1_a_second_daemon_is_refused_and_binds_nothing() {
    let mesh = Mesh::start().await;
    let _serving = mesh.lane().await;
    let god = God::of(&mesh).await;
    let observer = observer(&mesh).await;
    let (held, _) = lease(&god).await.expect("a lease");
    let consumers = god.consumers().await;

    let mut second = Lane::start(mesh.lane_options());
    let refused = second.ended().await.expect_err("a refusal");
    let LaneError::Lease(LeaseError::Held { holder, .. }) = &refused else {
        panic!("refused for another reason: {refused}");
    };
    assert_eq!(*holder, held.holder);
    assert_eq!(god.consumers().await, consumers);
    assert_eq!(lease(&god).await.expect("a lease").0, held);

    let name = "cotal-delivery main";
    let closed = || census(&observer, 1, name);
    let closed = eventually("the refused connection is closed", closed, |c| !c.is_empty()).await;
    assert_eq!(closed.len(), 1);
    let bound: Vec<_> = closed[0].iter().filter(|sub| !sub.starts_with("_INBOX_")).collect();
    assert!(bound.is_empty(), "the refused daemon bound {bound:?}");
    let open = census(&observer, 0, name).await;
    assert_eq!(open.len(), 1);
    for rail in ["cotal.main.ctl.delivery.*.*", "cotal.main.live.delivery.*.*"] {
        assert_eq!(open[0].iter().filter(|sub| *sub == rail).count(), 1, "{rail} in {open:?}");
    }
}

/// Slow (30 s): nobody helps but the bucket's own time to live.
#[tokio::test(flavor = "multi_thread")]
async fn lse_2_the_row_of_a_crashed_holder_expires_and_the_next_daemon_serves() {
    let mesh = Mesh::start().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let lane = mesh.lane().await;
    bob.join("team.backend").await;
    // What the dying daemon had pulled would else come again after a minute only.
    God::of(&mesh).await.hasten_daemon().await;
    drop(lane);
    let crashed = Instant::now();
    alice.post("team.backend", "meanwhile", &[]).await;
    let next = loop {
        let mut next = Lane::start(mesh.lane_options());
        let mut stage = next.stage();
        let ready = stage.wait_for(|stage| *stage != cotal_delivery::Stage::Starting).await;
        if *ready.expect("a stage") != cotal_delivery::Stage::Ended {
            break next;
        }
        let refused = next.ended().await.expect_err("a refusal");
        assert!(matches!(refused, LaneError::Lease(LeaseError::Held { .. })), "{refused}");
        assert!(crashed.elapsed() < Duration::from_secs(45), "the row never expired");
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let took = crashed.elapsed();
    assert!(took > Duration::from_secs(15), "the row was not held: {took:?}");
    let _next = cotal_testkit::serving(next).await;
    assert_eq!(bob.receive(1).await, ["meanwhile"]);
}

/// Each `ready` row is met by a responder that is bound already.
#[tokio::test(flavor = "multi_thread")]
async fn lse_8_ready_is_said_after_the_responders_are_bound_and_taken_back_while_quiet() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let mut watch = god.kv(Bucket::Delivery).watch(WatchOptions::default()).await.expect("a watch");
    assert_eq!(probe(&alice).await, None, "nobody answers without a daemon");
    let _lane = Lane::start(mesh.lane_options());
    assert_eq!(rows_until_ready(&mut watch).await, [false, true]);
    assert_eq!(probe(&alice).await.as_deref(), Some("bound"));

    god.free_lease().await;
    let rows = rows_until_ready(&mut watch).await;
    assert_eq!(rows.first(), Some(&false), "ready before anything was bound again");
    assert_eq!(probe(&alice).await.as_deref(), Some("bound"));
}

/// A garbled lease is tampering, not another holder: its owner writes it back and serves on.
#[tokio::test(flavor = "multi_thread")]
async fn lse_9_a_garbled_lease_row_is_written_back_by_the_holder() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let _lane = mesh.lane().await;
    let (held, _) = lease(&god).await.expect("a lease");
    let garbage = r#"{"stream":"CHAT_main","seq":1}"#;
    god.kv(Bucket::Delivery).put(LEASE_KEY, garbage.into()).await.expect("a garbled lease");
    let ready = |row: &Option<(LeaseRow, u64)>| row.as_ref().is_some_and(|(row, _)| row.ready);
    let (now, _) = eventually("the row is written back", || lease(&god), ready).await.expect("one");
    assert_eq!((now.holder, now.incarnation), (held.holder, held.incarnation));
    assert!(alice.control(DELIVERY, "listMemberships", json!({})).await.expect("a reply").ok);
}

/// The `ready` of every lease row up to the first that says yes.
async fn rows_until_ready(watch: &mut cotal_nats::Watch) -> Vec<bool> {
    let mut rows = Vec::new();
    loop {
        let event = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let event = event.expect("a daemon that gets ready").expect("a watch");
        let WatchEvent::Put { value, .. } = event else { continue };
        let Ok(row) = LeaseRow::parse(&value) else { continue };
        rows.push(row.ready);
        if row.ready {
            return rows;
        }
    }
}

async fn put_successor(god: &God) -> u64 {
    let (mut row, _) = lease(god).await.expect("a lease");
    row.incarnation = "another run of the same credential".into();
    let value = serde_json::to_vec(&row).expect("JSON");
    god.kv(Bucket::Delivery).put(LEASE_KEY, value.into()).await.expect("a successor's row")
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_9_a_release_never_touches_the_row_of_a_successor() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    let successor = put_successor(&god).await;
    lane.stop();
    // Whether the loss or the stop is met first, the row is not this process's any more.
    let _ = lane.ended().await;
    assert_eq!(lease(&god).await.expect("the successor's row").1, successor);
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_9_a_daemon_that_lost_its_row_ends_and_leaves_it() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    let successor = put_successor(&god).await;
    let lost = lane.ended().await.expect_err("a loss");
    assert!(matches!(lost, LaneError::Lease(LeaseError::Taken { .. })), "{lost}");
    assert_eq!(lease(&god).await.expect("the successor's row").1, successor);
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_9_a_stopped_daemon_frees_its_own_row_at_once() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    let started = Instant::now();
    let _next = mesh.lane().await;
    assert!(started.elapsed() < Duration::from_secs(15));
}
