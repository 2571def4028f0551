//! The life of a lane against a real broker that fails at one of its steps (LIF-3, LSE-6, LSE-8,
//! CRD-3, CRD-6).

use std::time::Duration;

use cotal_delivery::{Lane, LaneError, LeaseError, Stage, Windows};
use cotal_nats::{Watch, WatchEvent, WatchOptions};
use cotal_testkit::{God, Mesh, Peer, Proxy, Supervisor, eventually, logged, serving};
use cotal_wire::control::Code;
use cotal_wire::names::{Bucket, DELIVERY, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use serde_json::{Value, json};
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(30);

/// A lane behind a proxy; it gives up the broker after `window_ms`.
fn behind(mesh: &Mesh, proxy: &Proxy, window_ms: i64) -> Lane {
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    options.windows = Windows::new(Some(window_ms), None);
    Lane::start(options)
}

async fn ended(lane: &mut Lane) -> LaneError {
    let ended = tokio::time::timeout(WITHIN, lane.ended()).await;
    ended.expect("an end").expect_err("a reason")
}

fn lease_subject(mesh: &Mesh) -> String {
    format!("$KV.{}.{LEASE_KEY}", mesh.space().bucket(Bucket::Delivery))
}

async fn probe(peer: &Peer) -> Option<String> {
    let subject = peer.space.live(DELIVERY, peer.principal());
    let reply = peer.ask(subject, "{}".into(), Duration::from_secs(5)).await.ok()?;
    let reply: Value = serde_json::from_slice(&reply).expect("JSON");
    reply["state"].as_str().map(str::to_owned)
}

/// Deletes the lease bucket and creates the same one again.
async fn recreate_lease_bucket(god: &God, mesh: &Mesh) {
    let stream = mesh.space().kv_stream(Bucket::Delivery);
    let config = god.connection.stream_info(&stream).await.expect("the bucket").config;
    god.connection.delete_stream(&stream).await.expect("deleted");
    god.connection.create_stream(&stream, &config).await.expect("created");
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_6_a_lease_bucket_that_is_created_again_ends_the_daemon_and_the_next_one_serves() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    recreate_lease_bucket(&god, &mesh).await;
    let replaced = ended(&mut lane).await;
    let LaneError::Lease(LeaseError::Replaced { released, .. }) = &replaced else {
        panic!("ended for another reason: {replaced}");
    };
    assert!(*released, "{replaced}");
    let started = Instant::now();
    let _next = mesh.lane().await;
    assert!(started.elapsed() < Duration::from_secs(15), "it waited for a row of the first");
}

/// The watch no longer sees anything: the loss shows because revisions of two buckets differ.
#[tokio::test(flavor = "multi_thread")]
async fn lse_6_a_bucket_that_is_created_again_is_felt_by_the_next_renewal_too() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    options.lease_ttl = Duration::from_secs(6);
    let mut lane = serving(Lane::start(options)).await;
    proxy.cut();
    let state = || async { *lane.stage().borrow() };
    eventually("it is cut off", state, |stage| *stage != Stage::Ready).await;
    recreate_lease_bucket(&god, &mesh).await;
    proxy.heal();
    let replaced = ended(&mut lane).await;
    assert!(matches!(replaced, LaneError::Lease(LeaseError::Replaced { .. })), "{replaced}");
}

/// The bucket allows one consumer, and somebody else has it.
#[tokio::test(flavor = "multi_thread")]
async fn crd_3_a_lease_watch_that_cannot_be_bound_is_tried_again_and_nothing_is_ready_before() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let manager = Supervisor::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let stream = mesh.space().kv_stream(Bucket::Delivery);
    let mut config = god.connection.stream_info(&stream).await.expect("the bucket").config;
    config.max_consumers = 1;
    god.connection.delete_stream(&stream).await.expect("deleted");
    god.connection.create_stream(&stream, &config).await.expect("created");
    let taken = god.kv(Bucket::Delivery).watch(WatchOptions::default()).await.expect("a watch");
    let lane = Lane::start(mesh.lane_options());
    let said = || async { logged(&["the lease cannot be watched"]) };
    eventually("that is said", said, |lines| !lines.is_empty()).await;
    // The rails are bound and the gate is open, but a loss of the row would not be noticed.
    let bound = || probe(&alice);
    eventually("the rails are bound", bound, |state| state.as_deref() == Some("bound")).await;
    let reply = manager.request("reloadCreds", json!({})).await.expect("a reply");
    assert_eq!(reply.code, Some(Code::NotReady), "{reply:?}");
    assert_eq!(*lane.stage().borrow(), Stage::Claimed);
    let entry = god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the bucket").expect("a row");
    assert!(!LeaseRow::parse(&entry.value).expect("a lease").ready);

    let names = format!("$JS.API.CONSUMER.NAMES.{stream}");
    let names: Value = god.connection.js_call(&names, &json!({}), None).await.expect("names");
    for name in names["consumers"].as_array().expect("names") {
        let name = name.as_str().expect("a name");
        god.connection.delete_consumer(&stream, name).await.expect("deleted");
    }
    drop(taken);
    let _lane = serving(lane).await;
}

/// A drop at each of these requests of the start is waited for, and then the lane serves.
#[tokio::test(flavor = "multi_thread")]
async fn lif_3_a_short_drop_at_any_step_of_the_start_is_waited_for() {
    let mesh = Mesh::start().await;
    let (chat, inbox, dlv) =
        (mesh.space().chat_stream(), mesh.space().inbox_stream(), mesh.space().dlv_stream());
    let lease = mesh.space().kv_stream(Bucket::Delivery);
    let steps = [
        format!("STREAM.INFO.{lease}"),
        lease_subject(&mesh),
        format!("CONSUMER.CREATE.{lease}"),
        format!("STREAM.INFO.{inbox}"),
        format!("STREAM.INFO.{dlv}"),
        format!("CONSUMER.INFO.{inbox}"),
        format!("CONSUMER.INFO.{chat}"),
        "ctl.delivery.*.*".to_owned(),
        "ctl.anycast-take.*.*".to_owned(),
        "live.delivery.*.*".to_owned(),
        "\"ready\":true".to_owned(),
    ];
    for step in steps {
        let proxy = Proxy::to(&mesh.host_port()).await;
        proxy.stall_at(&step);
        let lane = behind(&mesh, &proxy, 15_000);
        let stalled = tokio::time::timeout(WITHIN, proxy.stalled()).await;
        stalled.unwrap_or_else(|_| panic!("it never asked for {step}"));
        proxy.cut();
        let cut = Instant::now();
        let passed = || async { cut.elapsed() };
        eventually("a short drop", passed, |t| *t > Duration::from_millis(600)).await;
        proxy.heal();
        let mut lane = serving(lane).await;
        lane.stop();
        lane.ended().await.unwrap_or_else(|error| panic!("after a drop at {step}: {error}"));
    }
}

/// The broker goes away at a step of the start and stays away: the message is always the same.
#[tokio::test(flavor = "multi_thread")]
async fn lif_3_a_broker_that_goes_away_at_any_step_of_the_start_ends_it_with_the_same_line() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let inbox = mesh.space().inbox_stream();
    let lease = mesh.space().kv_stream(Bucket::Delivery);
    let steps = [
        format!("STREAM.INFO.{lease}"),
        lease_subject(&mesh),
        format!("CONSUMER.CREATE.{lease}"),
        format!("CONSUMER.INFO.{inbox}"),
        "live.delivery.*.*".to_owned(),
    ];
    for step in steps {
        let proxy = Proxy::to(&mesh.host_port()).await;
        proxy.stall_at(&step);
        let mut lane = behind(&mesh, &proxy, 500);
        tokio::time::timeout(WITHIN, proxy.stalled()).await.expect("the step");
        proxy.cut();
        let gone = ended(&mut lane).await;
        assert!(matches!(gone, LaneError::BrokerGone), "at {step}: {gone}");
        god.free_lease().await;
    }
}

/// The connection is away when the credential expires: the lane waits for a renewal, and the
/// backstop ends it.
#[tokio::test(flavor = "multi_thread")]
async fn crd_6_an_expiry_while_the_broker_is_away_is_an_expiry_and_has_its_backstop() {
    let mesh = Mesh::start().await;
    mesh.set_delivery_life(0, 6);
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    options.windows = Windows::new(Some(5_000), Some(8_000));
    let started = Instant::now();
    let mut lane = serving(Lane::start(options)).await;
    let elapsed = || async { started.elapsed() };
    eventually("shortly before the end", elapsed, |t| *t > Duration::from_secs(2)).await;
    proxy.cut();
    let line = "! delivery: credential expired, awaiting proved renewal";
    let said = || async { logged(&[line]) };
    eventually("the expiry is said", said, |lines| !lines.is_empty()).await;
    let expired = Instant::now();
    let end = ended(&mut lane).await;
    assert!(matches!(end, LaneError::NotRenewed), "{end}");
    assert!(expired.elapsed() > Duration::from_secs(7), "the backstop counts from the expiry");
}

/// The values of the lease row in the order in which they were stored: its `ready`, or none if
/// deleted.
async fn rows(watch: &mut Watch) -> Vec<Option<bool>> {
    let mut rows = Vec::new();
    loop {
        let event = tokio::time::timeout(WITHIN, watch.next()).await.expect("an event");
        match event.expect("a watch") {
            WatchEvent::Put { value, .. } => {
                rows.push(LeaseRow::parse(&value).ok().map(|row| row.ready));
            }
            WatchEvent::Delete { .. } => {
                rows.push(None);
                return rows;
            }
            _ => {}
        }
    }
}

/// A reader of the row may rely on `ready`: it is withdrawn before the responder goes.
#[tokio::test(flavor = "multi_thread")]
async fn lse_8_a_stop_withdraws_the_standing_row_before_the_responders_go() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    let mut watch = god.kv(Bucket::Delivery).watch(WatchOptions::default()).await.expect("a watch");
    // The bucket keeps only the newest row, so the watch must have started.
    let first = tokio::time::timeout(WITHIN, watch.next()).await.expect("a row");
    let WatchEvent::Put { value, .. } = first.expect("a watch") else { panic!("no row") };
    assert!(LeaseRow::parse(&value).expect("a lease").ready);
    let reading = tokio::spawn(async move { rows(&mut watch).await });
    lane.stop();
    lane.ended().await.expect("a clean end");
    assert_eq!(reading.await.expect("rows"), [Some(false), None]);
}

/// The bucket of parked entries was replaced: parked entries must not be retried from memory.
#[tokio::test(flavor = "multi_thread")]
async fn lse_6_a_dead_bucket_that_is_created_again_ends_the_daemon() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    let stream = mesh.space().kv_stream(Bucket::Dead);
    let config = god.connection.stream_info(&stream).await.expect("the bucket").config;
    god.connection.delete_stream(&stream).await.expect("deleted");
    god.connection.create_stream(&stream, &config).await.expect("created");
    let said = ended(&mut lane).await.to_string();
    // It is a race which of the two the check of the streams finds first.
    let names_it =
        said.contains("created again") || said.contains("was deleted while the daemon served it");
    assert!(names_it, "{said}");
}
