//! Daemon, broker and member die at any step, and nothing is lost (RDR-3).
//!
//! Dropping a `Lane` aborts it wherever it is, without a release, as SIGKILL does. The test then
//! removes the lease row, so that it need not wait for its 30 s.

use std::collections::BTreeSet;

use cotal_delivery::Lane;
use cotal_testkit::{God, Mesh, Peer, Proxy, eventually, logged, with_member};
use cotal_wire::names::{FANOUT, READER};

const TEAM: &str = "team.backend";

async fn post_all(alice: &Peer, prefix: &str, count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count).map(|n| format!("{prefix}{n:03}")).collect();
    for id in &ids {
        alice.post(TEAM, id, &[]).await;
    }
    ids
}

async fn killed(god: &God, lane: Lane) {
    drop(lane);
    god.free_lease().await;
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_daemon_that_dies_between_inbox_and_hand_off_loses_nothing() {
    let (mesh, lane, alice, bob, god) = with_member(TEAM).await;
    god.pause(READER).await;
    let ids = post_all(&alice, "m", 50).await;
    god.wait_for_entries(50).await;
    killed(&god, lane).await;
    bob.receives_nothing().await;
    god.resume(READER).await;
    let _next = mesh.lane().await;
    assert_eq!(bob.receive(50).await, ids);
    bob.receives_nothing().await;
}

/// The copies are confirmed and the entries are not acked: the next daemon hands them off again.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_daemon_that_dies_between_hand_off_and_ack_doubles_nothing() {
    let (mesh, lane, alice, bob, god) = with_member(TEAM).await;
    let ids = post_all(&alice, "m", 50).await;
    assert_eq!(bob.receive(50).await, ids);
    killed(&god, lane).await;
    god.rewind(READER).await;
    let _next = mesh.lane().await;
    god.wait_until_settled(READER).await;
    bob.receives_nothing().await;
}

/// Deaths at different points, with posts, copies and hand-offs in progress.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_daemon_killed_again_and_again_loses_and_doubles_nothing() {
    let (mesh, mut lane, alice, bob, god) = with_member(TEAM).await;
    god.hasten_daemon().await;
    let mut ids = Vec::new();
    for round in 0..6 {
        let prefix = format!("r{round}-");
        let posting = post_all(&alice, &prefix, 60);
        let dying = async {
            // A later point in each round: after no copy, after a few, after most.
            god.wait_for_entries(round * 60 + round * 10).await;
            killed(&god, lane).await;
        };
        ids.extend(tokio::join!(posting, dying).0);
        lane = mesh.lane().await;
        god.wait_for_entries((round + 1) * 60).await;
    }
    assert_eq!(sorted(bob.receive(360).await), sorted(ids));
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    bob.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_broker_that_dies_in_the_middle_loses_nothing_that_it_acked() {
    let (mut mesh, _lane, alice, bob, god) = with_member(TEAM).await;
    god.hasten_daemon().await;
    god.pause(READER).await;
    let mut ids = post_all(&alice, "before-", 100).await;
    god.wait_for_entries(100).await;
    god.resume(READER).await;
    mesh.kill_broker().await;
    mesh.restart_broker().await;
    for peer in [&alice, &bob] {
        peer.connection.connected(std::time::Duration::from_secs(20)).await.expect("back");
    }
    ids.extend(post_all(&alice, "after-", 20).await);
    let got = bob.receive(120).await;
    assert_eq!(sorted(got), sorted(ids));
    god.wait_until_settled(READER).await;
    bob.receives_nothing().await;
}

/// A member that dies before its acks gets every copy again; one that has acked gets none.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_member_that_dies_before_its_ack_gets_the_copy_again() {
    let (mesh, _lane, alice, _bob, god) = with_member(TEAM).await;
    let creds = mesh.add_agent("carol", &["team.>"], &[], None).await;
    let carol = Peer::connect(mesh.url(), &creds).await;
    carol.join(TEAM).await;
    let consumer = carol.space.dlv_consumer(&carol.lifecycle);
    god.hasten("DLV_main", &consumer).await;
    let ids = post_all(&alice, "m", 3).await;
    let mut taken = carol.take(3).await;
    taken.remove(0).ack_confirmed().await.expect("an ack");
    drop((taken, carol));

    let carol = Peer::connect(mesh.url(), &creds).await;
    let again = carol.take(2).await;
    let seen: BTreeSet<_> =
        again.iter().map(|copy| copy.header("Cotal-Seq").map(str::to_owned)).collect();
    assert_eq!(seen, BTreeSet::from([Some("2".to_owned()), Some("3".to_owned())]), "of {ids:?}");
    assert!(again.iter().all(|copy| copy.delivered > 1));
    for copy in again {
        copy.ack_confirmed().await.expect("an ack");
    }
    let info = || async { god.connection.consumer_info("DLV_main", &consumer).await };
    let done = |info: &Result<cotal_nats::js::ConsumerInfo, _>| {
        info.as_ref().is_ok_and(|info| info.num_ack_pending + info.num_pending == 0)
    };
    eventually("everything is acked", info, done).await.expect("the consumer");
    carol.receives_nothing().await;
}

/// The broker has sent the post on a connection that drops before it is read, as in a reconnect
/// with a renewed credential. The post is redelivered within seconds, not after the ack wait of a
/// minute.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_what_was_on_its_way_when_a_connection_dropped_comes_back_soon() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    let _lane = mesh.serve(options).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    assert!(bob.join(TEAM).await.durable);
    alice.post(TEAM, "before", &[]).await;
    assert_eq!(bob.receive(1).await, ["before"]);
    proxy.stall();
    alice.post(TEAM, "on its way", &[]).await;
    proxy.holds("on its way").await;
    proxy.cut();
    let dropped = || async { logged(&["the broker connection dropped"]).len() };
    eventually("the drop", dropped, |lines| *lines > 0).await;
    proxy.heal();
    assert_eq!(bob.receive(1).await, ["on its way"]);
}
