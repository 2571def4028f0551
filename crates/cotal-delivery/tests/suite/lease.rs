//! The lease against a real broker (LSE-1 to 6, 8, 9).

use std::time::Duration;

use cotal_delivery::{Lane, LaneError, LeaseError, LeaseFailure, Stage};
use cotal_nats::{Connection, NatsError, RemovalReason, WatchEvent, WatchOptions};
use cotal_testkit::{God, Mesh, MeshOptions, Peer, Proxy, Supervisor, eventually, logged, serving};
use cotal_trust::{UserKey, UserSpec, mint_user};
use cotal_wire::control::Code;
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, DELIVERY, LEASE_KEY, sys};
use cotal_wire::profile::Profile;
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{FileStore, Secret, SecretKey, SecretKind, SecretStore as _};
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

/// A connection with the space's own census observer.
async fn observer(mesh: &Mesh) -> (Connection, String) {
    let store = FileStore::new(mesh.root().clone());
    let key = SecretKey::new(mesh.space(), SecretKind::MembershipObserver);
    let secret = store.get(&key).expect("the store").expect("the observer");
    let account = mesh.authority().account().public_key();
    (mesh.connect(secret.expose()).await, account)
}

/// The connections of the account named `name`, open (0) or closed (1), each with its
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

/// The broker's own lists show no further consumer, and only the reply inbox as a subscription of
/// the refused connection.
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

/// Slow (30 s): only the bucket's own time to live removes the row.
#[tokio::test(flavor = "multi_thread")]
async fn lse_2_the_row_of_a_crashed_holder_expires_and_the_next_daemon_serves() {
    let mesh = Mesh::start().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let lane = mesh.lane().await;
    bob.join("team.backend").await;
    let bucket = mesh.space().kv_stream(Bucket::Delivery);
    let bucket = mesh.operator().await.stream_info(&bucket).await.expect("the lease bucket");
    assert_eq!(bucket.config.max_age, 30_000_000_000, "a lease lives for 30 s");
    // Otherwise messages that the dying daemon had pulled would be redelivered only after a minute.
    God::of(&mesh).await.hasten_daemon().await;
    drop(lane);
    let crashed = Instant::now();
    alice.post("team.backend", "meanwhile", &[]).await;
    let next = loop {
        let mut next = Lane::start(mesh.lane_options());
        let mut stage = next.stage();
        let ready = stage.wait_for(|stage| *stage != Stage::Starting).await;
        if !matches!(*ready.expect("a stage"), Stage::Ended { .. }) {
            break next;
        }
        let refused = next.ended().await.expect_err("a refusal");
        assert!(matches!(refused, LaneError::Lease(LeaseError::Held { .. })), "{refused}");
        assert!(crashed.elapsed() < Duration::from_secs(45), "the row never expired");
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    let took = crashed.elapsed();
    assert!(took > Duration::from_secs(15), "the row was not held: {took:?}");
    let _next = serving(next).await;
    assert_eq!(bob.receive(1).await, ["meanwhile"]);
}

/// At each `ready` row a responder is already bound.
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

/// A full store refuses the renewals, so the daemon stops serving until the row is proven again.
#[tokio::test(flavor = "multi_thread")]
async fn lse_8_a_quiet_daemon_says_that_it_is_unbound_and_does_nothing() {
    let (mesh, god) = capped().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let mut options = mesh.lane_options();
    options.lease_ttl = Duration::from_secs(3);
    let lane = serving(Lane::start(options)).await;
    let mut stage = lane.stage();
    assert_eq!(probe(&alice).await.as_deref(), Some("bound"));
    fill(&god).await;
    stage.wait_for(|stage| *stage != Stage::Ready).await.expect("a lane");
    assert_eq!(probe(&alice).await.as_deref(), Some("unbound"));
    let asked = alice.control(DELIVERY, "listMemberships", json!({})).await.expect("a reply");
    assert_eq!(asked.code, Some(Code::NotReady));
    god.connection.purge_stream("FILLER", None).await.expect("room");
    stage.wait_for(|stage| *stage == Stage::Ready).await.expect("a lane");
    assert_eq!(probe(&alice).await.as_deref(), Some("bound"));
}

/// A garbled lease is tampering, not another holder: its owner writes it back and continues to
/// serve.
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

/// The `ready` values of every lease row up to the first `true`.
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
    // Whether the loss or the stop comes first, the row is no longer this process's.
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

/// The subject that the lease is written on.
fn lease_subject(mesh: &Mesh) -> String {
    format!("$KV.{}.{LEASE_KEY}", mesh.space().bucket(Bucket::Delivery))
}

/// A lane behind a proxy that serves and whose row says `ready`.
async fn behind(mesh: &Mesh, proxy: &Proxy, god: &God) -> Lane {
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    let lane = serving(Lane::start(options)).await;
    let ready = |row: &Option<(LeaseRow, u64)>| row.as_ref().is_some_and(|(row, _)| row.ready);
    eventually("a ready row", || lease(god), ready).await;
    lane
}

/// Deletes the row and holds back the daemon's attempt to create it again.
async fn hold_the_create(mesh: &Mesh, proxy: &Proxy, god: &God) {
    proxy.stall_at(&lease_subject(mesh));
    god.free_lease().await;
    proxy.stalled().await;
}

/// How long the lease bucket keeps a row.
async fn set_lease_ttl(god: &God, mesh: &Mesh, ttl: Duration) {
    let stream = mesh.space().kv_stream(Bucket::Delivery);
    let info = format!("$JS.API.STREAM.INFO.{stream}");
    let info: Value = god.connection.js_call(&info, &json!({}), None).await.expect("a stream");
    let mut config = info["config"].clone();
    config["max_age"] = json!(ttl.as_nanos() as u64);
    config["duplicate_window"] = json!(ttl.as_nanos() as u64);
    let update = format!("$JS.API.STREAM.UPDATE.{stream}");
    let updated = god.connection.js_call::<Value>(&update, &config, None).await;
    updated.expect("a changed stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_3_a_row_that_expired_is_created_again_by_its_daemon() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let _lane = mesh.lane().await;
    let (held, before) = lease(&god).await.expect("a lease");
    let mut watch = god.kv(Bucket::Delivery).watch(WatchOptions::default()).await.expect("a watch");
    set_lease_ttl(&god, &mesh, Duration::from_secs(1)).await;
    loop {
        let event = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
        if let WatchEvent::Delete { reason, .. } = event.expect("an expiry").expect("a watch") {
            assert_eq!(reason, RemovalReason::Expired);
            break;
        }
    }
    set_lease_ttl(&god, &mesh, Duration::from_secs(30)).await;
    let again = |row: &Option<(LeaseRow, u64)>| {
        row.as_ref().is_some_and(|(row, revision)| row.ready && *revision > before)
    };
    let (now, _) = eventually("the row again", || lease(&god), again).await.expect("a row");
    assert_eq!((now.holder, now.incarnation), (held.holder, held.incarnation));
    assert!(alice.control(DELIVERY, "listMemberships", json!({})).await.expect("a reply").ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_3_a_create_that_a_live_lease_refuses_means_that_another_daemon_has_the_shard() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut lane = behind(&mesh, &proxy, &god).await;
    let (row, _) = lease(&god).await.expect("a lease");
    hold_the_create(&mesh, &proxy, &god).await;
    let other = LeaseRow { incarnation: "another daemon".into(), ..row };
    let value = serde_json::to_vec(&other).expect("JSON");
    let theirs = god.kv(Bucket::Delivery).put(LEASE_KEY, value.into()).await.expect("a row");
    proxy.heal();
    let lost = lane.ended().await.expect_err("a loss");
    assert!(matches!(lost, LaneError::Lease(LeaseError::Taken { .. })), "{lost}");
    assert!(lost.to_string().starts_with("another daemon has taken the shard"), "{lost}");
    assert_eq!(lease(&god).await.expect("their row").1, theirs);
}

/// The daemon's own credential, without the right to write its lease.
fn narrowed(mesh: &Mesh) -> (FileStore, SecretKey, Secret) {
    let store = FileStore::new(mesh.root().clone());
    let place = SecretKey::new(mesh.space(), SecretKind::Delivery);
    let text = store.get(&place).expect("the store").expect("a credential");
    let creds = Creds::parse(text.expose()).expect("a credential");
    let key = UserKey::from_seed(&Secret::new(creds.seed)).expect("a seed");
    let own = key.principal().expect("a principal");
    let conn = key.conn_id().expect("an id");
    let topology = mesh.authority().account().topology();
    let mut permissions = Profile::Delivery(own).permissions(mesh.space(), &conn, topology);
    // The allowed subjects still include it, because otherwise the daemon would not adopt the
    // credential.
    permissions.pub_deny.push(lease_subject(mesh));
    let now = cotal_manager::clock::unix_seconds();
    let spec = UserSpec {
        name: "delivery",
        key: &key,
        tags: creds.claims.tags,
        permissions,
        issued_at: now,
        expires_at: Some(now + 3_600),
    };
    let minted = mint_user(mesh.authority().account().keys(), &spec).expect("a credential");
    (store, place, minted.creds)
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_4_a_claim_that_is_denied_names_subject_and_operation() {
    let mesh = Mesh::start().await;
    let (store, place, creds) = narrowed(&mesh);
    store.put(&place, &creds).expect("stored");
    let refused = Lane::start(mesh.lane_options()).ended().await.expect_err("a denial");
    assert!(
        matches!(
            &refused,
            LaneError::Lease(LeaseError::Refused { source: LeaseFailure::Denied(_), .. })
        ),
        "{refused}"
    );
    let said = refused.to_string();
    assert!(said.starts_with("could not claim the lease of main: denied"), "{said}");
    assert!(said.contains(&format!("to publish to {}", lease_subject(&mesh))), "{said}");
    assert!(!said.contains("another daemon"), "{said}");
}

/// A renewed credential with an additional denial is adopted all the same; the denial is reported
/// when the right is needed.
#[tokio::test(flavor = "multi_thread")]
async fn lse_4_a_lost_lease_that_may_not_be_written_again_is_a_denial_and_no_other_holder() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let manager = Supervisor::of(&mesh).await;
    let mut lane = mesh.lane().await;
    let (store, place, creds) = narrowed(&mesh);
    store.put(&place, &creds).expect("stored");
    eventually(
        "an adoption",
        || manager.request("reloadCreds", json!({})),
        |reply| reply.as_ref().is_ok_and(|reply| reply.ok),
    )
    .await
    .expect("a reply");
    let moved = async || logged(&["the broker connection dropped; redialling"]);
    eventually("the move onto it", moved, |lines| !lines.is_empty()).await;
    god.free_lease().await;
    let lost = lane.ended().await.expect_err("a denial");
    let said = lost.to_string();
    assert!(said.starts_with("could not re-acquire the lease of main: denied"), "{said}");
    assert!(said.contains(&format!("to publish to {}", lease_subject(&mesh))), "{said}");
    assert!(!said.contains("another daemon"), "{said}");
}

/// A mesh whose broker stores little more than the 64 MiB that a space's streams reserve.
async fn capped() -> (Mesh, God) {
    let options = MeshOptions { max_file_store: Some(66 << 20), ..MeshOptions::default() };
    let mesh = Mesh::with(options).await;
    let god = God::of(&mesh).await;
    let filler = json!({ "name": "FILLER", "subjects": ["filler"], "storage": "file" });
    god.connection.create_stream("FILLER", &filler).await.expect("a stream");
    (mesh, god)
}

/// Stores until the broker refuses; returns what it says.
async fn fill(god: &God) -> String {
    for _ in 0..128 {
        let body = vec![0; 768 << 10].into();
        match god.connection.publish_confirmed("filler", None, body, None).await {
            Ok(_) => {}
            Err(NatsError::Refused { description, .. }) => return description,
            Err(other) => panic!("not refused for its cap: {other}"),
        }
    }
    panic!("the cap was never met");
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_5_a_claim_on_a_full_store_is_quoted_as_the_broker_gave_it() {
    let (mesh, god) = capped().await;
    let quoted = fill(&god).await;
    assert!(quoted.contains("insufficient"), "{quoted}");
    let refused = Lane::start(mesh.lane_options()).ended().await.expect_err("a refusal");
    let said = refused.to_string();
    assert!(said.starts_with("could not claim the lease of main: "), "{said}");
    assert!(said.contains(&quoted), "{said}");
    assert!(!said.contains("another daemon"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_3_a_lost_lease_on_a_full_store_is_quoted_and_no_other_daemon_is_blamed() {
    let (mesh, god) = capped().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut lane = behind(&mesh, &proxy, &god).await;
    hold_the_create(&mesh, &proxy, &god).await;
    let quoted = fill(&god).await;
    proxy.heal();
    let said = lane.ended().await.expect_err("a loss").to_string();
    assert!(said.starts_with("could not re-acquire the lease of main: "), "{said}");
    assert!(said.contains(&quoted), "{said}");
    assert!(!said.contains("another daemon"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_5_a_silent_broker_and_a_store_that_is_gone_are_two_things() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let claim = |server: String| {
        let mut options = mesh.lane_options();
        (options.server, options.lease_ttl) = (server, Duration::from_secs(3));
        async move { Lane::start(options).ended().await.expect_err("a refusal") }
    };
    proxy.deafen_at(&lease_subject(&mesh));
    let silent = claim(proxy.url()).await.to_string();
    assert_eq!(silent, "could not claim the lease of main: the broker did not answer");

    let stream = mesh.space().kv_stream(Bucket::Delivery);
    god.connection.delete_stream(&stream).await.expect("deleted");
    let gone = claim(mesh.url().to_owned()).await.to_string();
    assert!(gone.starts_with("could not claim the lease of main: absent: "), "{gone}");
    assert!(gone.contains("stream not found"), "{gone}");
}

/// No renewal is due for an hour, so only the watch can show the loss.
#[tokio::test(flavor = "multi_thread")]
async fn lse_6_a_loss_is_felt_through_the_watch() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut options = mesh.lane_options();
    options.lease_ttl = Duration::from_secs(3 * 3_600);
    let _lane = serving(Lane::start(options)).await;
    let ready = |row: &Option<(LeaseRow, u64)>| row.as_ref().is_some_and(|(row, _)| row.ready);
    eventually("a ready row", || lease(&god), ready).await;
    let (held, before) = lease(&god).await.expect("a lease");
    let mut watch = god.kv(Bucket::Delivery).watch(WatchOptions::default()).await.expect("a watch");
    god.free_lease().await;
    loop {
        let event = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
        if matches!(event.expect("a loss").expect("a watch"), WatchEvent::Delete { .. }) {
            break;
        }
    }
    assert_eq!(rows_until_ready(&mut watch).await, [false, true], "serving stops first");
    let (now, revision) = lease(&god).await.expect("a row");
    assert_eq!(now.incarnation, held.incarnation);
    assert!(revision > before);
}

/// The row lives for 30 s and the daemon trusts it for 3 s, so refused renewals make it stop
/// serving but do not end it.
#[tokio::test(flavor = "multi_thread")]
async fn lse_6_a_renewal_that_is_refused_is_a_question_and_not_a_verdict() {
    let (mesh, god) = capped().await;
    let mut options = mesh.lane_options();
    options.lease_ttl = Duration::from_secs(3);
    let lane = serving(Lane::start(options)).await;
    let mut stage = lane.stage();
    fill(&god).await;
    stage.wait_for(|stage| *stage != Stage::Ready).await.expect("a lane");
    assert_eq!(*stage.borrow(), Stage::Claimed, "quiet, and not ended");
    god.connection.purge_stream("FILLER", None).await.expect("room");
    stage.wait_for(|stage| *stage != Stage::Claimed).await.expect("a lane");
    assert_eq!(*stage.borrow(), Stage::Ready);
}

/// The answers to a service manager depend on this: the loops answer, and the row is there.
#[tokio::test(flavor = "multi_thread")]
async fn lif_16_a_lane_proves_its_progress_only_while_the_broker_shows_its_row() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let lane = behind(&mesh, &proxy, &god).await;
    let progress = lane.progress();
    progress.proven(Duration::from_secs(30)).await.expect("progress");
    proxy.stall();
    let stalled = progress.proven(Duration::from_millis(300)).await.expect_err("no progress");
    assert!(stalled.0.contains(&"the lease"), "{stalled}");
    proxy.heal();
    progress.proven(Duration::from_secs(30)).await.expect("progress again");
}

/// Every request is answered and nothing is stored: the row can still be read, which proves
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn lif_16_a_daemon_whose_writes_are_refused_is_not_healthy_and_says_what_the_broker_said() {
    let (mesh, god) = capped().await;
    let manager = Supervisor::of(&mesh).await;
    let mut options = mesh.lane_options();
    options.lease_ttl = Duration::from_secs(9);
    let lane = serving(Lane::start(options)).await;
    lane.progress().proven(Duration::from_secs(30)).await.expect("healthy");
    let quoted = fill(&god).await;
    let down = || async {
        let status = manager.status().await;
        status.down.into_iter().find(|down| down.component == "the writes of the lease")
    };
    let down = eventually("a refused renewal is shown", down, Option::is_some).await;
    assert!(down.expect("why").reason.contains(&quoted));
    let stalled = lane.progress().proven(Duration::from_millis(500)).await.expect_err("a store");
    assert_eq!(stalled.0, ["the lease"]);
    assert!(lease(&god).await.expect("a row").0.ready, "a row alone says the contrary");
    god.connection.purge_stream("FILLER", None).await.expect("room");
    lane.progress().proven(Duration::from_secs(30)).await.expect("healthy again");
}
