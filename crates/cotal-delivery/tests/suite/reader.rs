//! The trusted reader against a real broker (RDR-1, 2, 8, 10, 11, 12).
//!
//! `god.pause(READER)` holds entries between the copy and the read, so that a change made in the
//! meantime is certainly seen.

use std::time::Duration;

use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually, serving};
use cotal_wire::control::DeliveryStatus;
use cotal_wire::names::{Bucket, FANOUT, READER, dead_key, member_key, parse_dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState, DeliveryClass};
use cotal_wire::{Channel, Lifecycle};

const TEAM: &str = "team.backend";

async fn start() -> (Mesh, cotal_delivery::Lane, Peer, God) {
    let mesh = Mesh::start().await;
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &[">"], &[">"]).await;
    let god = God::of(&mesh).await;
    (mesh, lane, alice, god)
}

async fn members<const N: usize>(mesh: &Mesh, names: [&str; N]) -> [Peer; N] {
    let mut peers = Vec::new();
    for name in names {
        let peer = mesh.peer(name, &["team.>"], &[]).await;
        peer.join(TEAM).await;
        peers.push(peer);
    }
    peers.try_into().expect("as many as names")
}

async fn status_when(
    supervisor: &Supervisor,
    what: &str,
    enough: impl Fn(&DeliveryStatus) -> bool,
) -> DeliveryStatus {
    eventually(what, || supervisor.status(), enough).await
}

async fn delete_acl(god: &God, member: &Lifecycle) {
    god.kv(Bucket::Acl).delete(&member.dotted(), None).await.expect("a deleted row");
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_1_an_entry_is_judged_by_the_acl_and_the_row_of_the_moment_of_release() {
    let (mesh, _lane, alice, god) = start().await;
    let [bob, carol, dave, erin] = members(&mesh, ["bob", "carol", "dave", "erin"]).await;
    god.pause(READER).await;
    let seq = alice.post(TEAM, "m", &[]).await.seq;
    god.wait_for_entries(4).await;
    god.set_acl(&bob.lifecycle, &["team.other"]).await;
    let key = member_key(&Channel::parse(TEAM).expect("a channel"), &carol.lifecycle);
    god.kv(Bucket::Members).delete(&key, None).await.expect("a deleted row");
    let (mut row, _) = god.member(TEAM, &dave.lifecycle).await.expect("a row");
    row.leave_cursor = Some(seq - 1);
    god.put_member(&row).await;
    god.resume(READER).await;

    assert_eq!(erin.receive(1).await, ["m"]);
    god.wait_until_settled(READER).await;
    for peer in [bob, carol, dave] {
        peer.receives_nothing().await;
    }
    assert_eq!(Supervisor::of(&mesh).await.status().await.denied, 3);
}

/// The copy waits in the member's own part of DLV. The member's reply inbox gets only what the
/// member pulls, and an unacked copy is redelivered.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_2_a_copy_rides_the_members_own_consumer_with_its_ack() {
    let (mesh, _lane, alice, god) = start().await;
    let [bob] = members(&mesh, ["bob"]).await;
    let inbox = format!("{}.>", bob.connection.inbox_prefix());
    let mut unasked = god.connection.subscribe(inbox, None).await.expect("a subscription");
    alice.post(TEAM, "m", &[]).await;
    let consumer = bob.space.dlv_consumer(&bob.lifecycle);
    let pending = || async { god.connection.consumer_info("DLV_main", &consumer).await };
    eventually("a copy in DLV", pending, |info| info.as_ref().is_ok_and(|i| i.num_pending == 1))
        .await
        .expect("the consumer");
    let heard = tokio::time::timeout(Duration::from_millis(300), unasked.next()).await;
    assert!(heard.is_err(), "content reached a reply inbox unasked: {heard:?}");
    unasked.unsubscribe().await.expect("an end");

    let copy = bob.take(1).await.remove(0);
    copy.nak(None).await.expect("a nak");
    let copy = bob.take(1).await.remove(0);
    assert_eq!(copy.delivered, 2);
    copy.ack_confirmed().await.expect("an ack");
    let info = pending().await.expect("the consumer");
    assert_eq!((info.num_pending, info.num_ack_pending), (0, 0));
}

/// One owner may take 100 slots: further entries are parked, nobody else waits, and all are
/// delivered once the ACL row exists.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_8_entries_without_an_acl_row_wait_or_park_and_hold_up_nobody() {
    let (mesh, _lane, alice, god) = start().await;
    let supervisor = Supervisor::of(&mesh).await;
    let [bob, carol] = members(&mesh, ["bob", "carol"]).await;
    let acl = god.acl(&bob.lifecycle).await;
    delete_acl(&god, &bob.lifecycle).await;
    alice.post_many(TEAM, "m", 130).await;
    assert_eq!(carol.receive(130).await.len(), 130);
    let status = status_when(&supervisor, "100 wait and 30 are parked", |status| {
        (status.waiting, status.parked) == (100, 30)
    });
    assert_eq!(status.await.given_up, 0);
    let keys = god.kv(Bucket::Dead).keys().await.expect("the dead bucket");
    assert_eq!(keys.iter().filter_map(|key| parse_dead_key(key)).count(), 30);
    bob.receives_nothing().await;

    god.put_acl(&bob.lifecycle, &acl).await;
    let got = bob.receive(130).await;
    assert_eq!(got.iter().collect::<std::collections::BTreeSet<_>>().len(), 130);
    bob.receives_nothing().await;
    status_when(&supervisor, "nothing is waiting", |s| (s.waiting, s.parked) == (0, 0)).await;
}

/// The first retry comes after two seconds: not at once, and not only after the ack wait.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_8_a_missing_row_is_asked_for_again_after_two_seconds() {
    let (mesh, _lane, alice, god) = start().await;
    let [bob] = members(&mesh, ["bob"]).await;
    let acl = god.acl(&bob.lifecycle).await;
    delete_acl(&god, &bob.lifecycle).await;
    let posted = tokio::time::Instant::now();
    alice.post(TEAM, "m", &[]).await;
    let supervisor = Supervisor::of(&mesh).await;
    status_when(&supervisor, "the entry is returned", |status| status.waiting == 1).await;
    god.put_acl(&bob.lifecycle, &acl).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    let took = posted.elapsed();
    assert!(took >= Duration::from_secs(2), "retried after {took:?}");
}

/// The test uses up the ten redeliveries while no daemon runs, because they would take minutes.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_8_after_ten_redeliveries_an_entry_is_given_up_listed_and_kept() {
    let (mesh, mut lane, alice, god) = start().await;
    let [bob] = members(&mesh, ["bob"]).await;
    delete_acl(&god, &bob.lifecycle).await;
    god.pause(READER).await;
    let seq = alice.post(TEAM, "m", &[]).await.seq;
    god.wait_for_entries(1).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    god.resume(READER).await;
    let options = cotal_nats::PullOptions { batch: 1, ..Default::default() };
    let mut pull = cotal_nats::PullConsumer::open(&god.connection, "INBOX_main", READER, options)
        .await
        .expect("the reader's consumer");
    for delivery in 1..=10 {
        let entry = pull.next_batch(1, Duration::from_secs(10)).await.expect("a pull").remove(0);
        assert_eq!(entry.delivered, delivery);
        if delivery == 10 {
            // Close the pull first: it would otherwise take the returned entry away from the
            // daemon.
            pull.close().await;
            entry.nak(Some(Duration::from_millis(500))).await.expect("a nak");
            break;
        }
        entry.nak(None).await.expect("a nak");
    }
    let _next = mesh.lane().await;
    let supervisor = Supervisor::of(&mesh).await;
    status_when(&supervisor, "it is given up", |status| status.given_up == 1).await;
    let dead = god.kv(Bucket::Dead).get(&dead_key(1)).await.expect("a bucket").expect("a row");
    let dead = DeadRow::parse(&dead.value, 1).expect("a dead row");
    assert_eq!((dead.state, dead.reason), (DeadState::GivenUp, DeadReason::NoAclRow));
    assert_eq!((dead.attempts, dead.chat_seq, dead.member()), (11, seq, bob.lifecycle.clone()));
    assert_eq!(god.entries(&bob.lifecycle).await.len(), 1, "a missing row proves nothing");
    god.wait_until_settled(READER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_8_a_parked_entry_is_given_up_after_as_many_attempts() {
    let (mesh, _lane, alice, god) = start().await;
    let [bob] = members(&mesh, ["bob"]).await;
    alice.post(TEAM, "m", &[]).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    delete_acl(&god, &bob.lifecycle).await;
    let mut row = DeadRow {
        seq: 1,
        owner: bob.principal().clone(),
        lifecycle_uid: bob.lifecycle.uid,
        channel: Channel::parse(TEAM).expect("a channel"),
        chat_seq: 1,
        state: DeadState::Parked,
        reason: DeadReason::NoAclRow,
        attempts: 10,
        first_at: 1,
        next_at: 1,
    };
    let kv = god.kv(Bucket::Dead);
    let value = serde_json::to_vec(&row).expect("JSON");
    kv.put(&dead_key(1), value.into()).await.expect("a parked row");
    let supervisor = Supervisor::of(&mesh).await;
    status_when(&supervisor, "it is given up", |status| status.given_up == 1).await;
    let dead = kv.get(&dead_key(1)).await.expect("a bucket").expect("a row");
    (row.state, row.attempts, row.next_at) = (DeadState::GivenUp, 11, 0);
    assert_eq!(DeadRow::parse(&dead.value, 1).expect("a dead row"), row);
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_10_a_leave_ends_what_is_surfaced_and_a_rejoin_does_not_bring_the_gap() {
    let (mesh, _lane, alice, _god) = start().await;
    let [bob] = members(&mesh, ["bob"]).await;
    alice.post(TEAM, "inside", &[]).await;
    bob.leave(TEAM, 1).await;
    alice.post(TEAM, "gap", &[]).await;
    assert_eq!(bob.join(TEAM).await.generation, 2);
    alice.post(TEAM, "again", &[]).await;
    bob.leave(TEAM, 2).await;
    alice.post(TEAM, "after", &[]).await;
    assert_eq!(bob.receive(2).await, ["inside", "again"]);
    bob.receives_nothing().await;
}

/// The row states only its newest interval, so the older one comes from memory.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_10_entries_of_an_older_interval_still_pend_at_a_rejoin_and_are_surfaced() {
    let (mesh, _lane, alice, god) = start().await;
    let [bob] = members(&mesh, ["bob"]).await;
    leave_and_rejoin_behind(&god, &alice, &bob, READER).await;
    god.resume(READER).await;
    assert_eq!(bob.receive(2).await, ["inside", "again"]);
    bob.receives_nothing().await;
}

/// The next daemon reads the older interval from the bucket's history.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_10_an_older_interval_survives_a_restart_of_the_daemon() {
    for consumer in [READER, FANOUT] {
        let (mesh, mut lane, alice, god) = start().await;
        let [bob] = members(&mesh, ["bob"]).await;
        leave_and_rejoin_behind(&god, &alice, &bob, consumer).await;
        lane.stop();
        lane.ended().await.expect("a clean end");
        god.resume(consumer).await;
        let _next = serving(cotal_delivery::Lane::start(mesh.lane_options())).await;
        let mut got = bob.receive(2).await;
        got.sort();
        assert_eq!(got, ["again", "inside"], "behind {consumer}");
        god.wait_until_settled(FANOUT).await;
        bob.receives_nothing().await;
    }
}

/// Posts once inside the first interval, once in the gap and once inside the second, while
/// `consumer` is held.
async fn leave_and_rejoin_behind(god: &God, alice: &Peer, bob: &Peer, consumer: &str) {
    god.pause(consumer).await;
    alice.post(TEAM, "inside", &[]).await;
    bob.leave(TEAM, 1).await;
    alice.post(TEAM, "gap", &[]).await;
    assert_eq!(bob.join(TEAM).await.generation, 2);
    alice.post(TEAM, "again", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_11_a_live_mention_needs_the_acl_alone() {
    let (mesh, _lane, alice, god) = start().await;
    mesh.set_class("team.live", DeliveryClass::Live).await;
    let [bob, carol] = members(&mesh, ["bob", "carol"]).await;
    bob.leave(TEAM, 1).await;
    god.pause(READER).await;
    alice.post("team.live", "hello", &["bob", "carol"]).await;
    god.wait_for_entries(2).await;
    god.set_acl(&carol.lifecycle, &[TEAM]).await;
    god.resume(READER).await;
    assert_eq!(bob.receive(1).await, ["hello"]);
    god.wait_until_settled(READER).await;
    carol.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_12_a_narrowed_acl_drops_for_good_and_is_never_taken_for_a_missing_row() {
    let (mesh, _lane, alice, god) = start().await;
    let supervisor = Supervisor::of(&mesh).await;
    let [bob, carol, dave] = members(&mesh, ["bob", "carol", "dave"]).await;
    god.pause(READER).await;
    alice.post(TEAM, "m", &[]).await;
    god.wait_for_entries(3).await;
    let missing = god.acl(&dave.lifecycle).await;
    god.set_acl(&bob.lifecycle, &[]).await;
    god.set_acl(&carol.lifecycle, &["team.other", "team.backend.sub", "other.>"]).await;
    delete_acl(&god, &dave.lifecycle).await;
    god.resume(READER).await;
    let status = status_when(&supervisor, "one waits", |status| status.waiting == 1).await;
    assert_eq!(status.denied, 2, "dropped, not waiting");

    for peer in [&bob, &carol] {
        god.set_acl(&peer.lifecycle, &["team.>"]).await;
    }
    god.put_acl(&dave.lifecycle, &missing).await;
    assert_eq!(dave.receive(1).await, ["m"]);
    god.wait_until_settled(READER).await;
    bob.receives_nothing().await;
    carol.receives_nothing().await;
}
