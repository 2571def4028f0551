//! Nothing is decided while the view is not current (`wire.md` §5, *Current*): the tests hold the
//! daemon's watches back while rows change.
//!
//! After five seconds the daemon logs that a decision waits; the tests wait for that line.

use std::time::Duration;

use cotal_delivery::Lane;
use cotal_nats::{PullConsumer, PullOptions};
use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually, logged};
use cotal_wire::Channel;
use cotal_wire::names::{Bucket, DELIVERY, FANOUT, READER, dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState, DeliveryClass, MemberRow, MemberState};
use serde_json::json;

use super::setup::start;

const TEAM: &str = "team.backend";
const OPS: &str = "ops.live";
const POSTS: &str = "posts wait: the view is not current";
const PARKED: &str = "parked entries wait: the view is not current";
const ENTRIES: &str = "entries wait: the view is not current";

async fn waits(what: &str) {
    let told = || async { logged(&[what]).len() };
    eventually(what, told, |lines| *lines > 0).await;
}

fn joined(peer: &Peer) -> MemberRow {
    MemberRow { state: MemberState::DurableActive, activated: true, ..peer.half_joined(TEAM, 0) }
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_1_a_post_waits_for_the_member_rows_of_its_moment() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    god.hold_watches(Bucket::Members).await;
    god.put_member(&joined(&bob)).await;
    alice.post(TEAM, "m", &[]).await;
    waits(POSTS).await;
    god.release_watches(Bucket::Members).await;
    assert_eq!(bob.receive(1).await, ["m"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_mention_waits_for_the_acls_of_its_moment() {
    let (mesh, _lane, alice, god) = start().await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    god.hold_watches(Bucket::Acl).await;
    god.set_acl(&bob.lifecycle, &["ops.>"]).await;
    alice.post(OPS, "m", &["bob"]).await;
    waits(POSTS).await;
    god.release_watches(Bucket::Acl).await;
    assert_eq!(bob.receive(1).await, ["m"]);
}

/// The presence claim is renewed, because it lives for only six seconds.
#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_mention_waits_for_the_names_of_its_moment() {
    let (mesh, _lane, alice, god) = start().await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let bob = mesh.peer("bob", &["ops.>"], &[]).await;
    god.hold_watches(Bucket::Presence).await;
    bob.claim_name("Nick").await;
    alice.post(OPS, "m", &["nick"]).await;
    waits(POSTS).await;
    bob.claim_name("Nick").await;
    god.release_watches(Bucket::Presence).await;
    assert_eq!(bob.receive(1).await, ["m"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_7_a_post_and_a_join_wait_for_the_class_of_their_moment() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.hold_watches(Bucket::Channels).await;
    mesh.set_class(TEAM, DeliveryClass::Live).await;
    let join = carol.control(DELIVERY, "durableJoin", json!({ "channel": TEAM }));
    let (join, _) = tokio::join!(join, alice.post(TEAM, "m", &[]));
    let join = join.expect("a reply");
    assert!(!join.ok, "joined a channel that is live by now: {join:?}");
    waits(POSTS).await;
    god.release_watches(Bucket::Channels).await;
    god.wait_until_settled(FANOUT).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty(), "routed as a post of a durable channel");
}

/// An entry for bob waits before the reader. Then a row of `bucket` takes his right to it away, and
/// the daemon does not see the row yet.
async fn unseen(bucket: Bucket) -> (Mesh, Lane, God, Peer, u64) {
    let (mesh, lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.pause(READER).await;
    let seq = alice.post(TEAM, "m", &[]).await.seq;
    god.wait_for_entries(1).await;
    god.hold_watches(bucket).await;
    if bucket == Bucket::Acl {
        god.set_acl(&bob.lifecycle, &[]).await;
    } else {
        god.put_member(&MemberRow { leave_cursor: Some(seq - 1), ..joined(&bob) }).await;
    }
    (mesh, lane, god, bob, seq)
}

/// Bob's ACL is narrowed and carol has left; the daemon sees neither yet.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_1_an_entry_waits_for_the_acls_and_the_rows_of_its_moment() {
    for bucket in [Bucket::Acl, Bucket::Members] {
        let (_mesh, _lane, god, _bob, _seq) = unseen(bucket).await;
        let told = logged(&[ENTRIES]).len();
        god.resume(READER).await;
        let look = || async { logged(&[ENTRIES]).len() };
        eventually("an entry that waits", look, |lines| *lines > told).await;
        god.release_watches(bucket).await;
        god.wait_until_settled(READER).await;
        let dlv = god.connection.last_seq("DLV_main").await.expect("DLV");
        assert_eq!(dlv, 0, "content was released against {bucket:?}");
    }
}

/// A parked entry is judged like any other, by the rows at its retry.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_1_a_parked_entry_is_judged_by_the_acls_and_the_rows_of_its_retry() {
    for bucket in [Bucket::Acl, Bucket::Members] {
        let (mesh, _lane, god, bob, seq) = unseen(bucket).await;
        let supervisor = Supervisor::of(&mesh).await;
        let told = logged(&[PARKED]).len();
        let row = serde_json::to_vec(&parked(&bob, seq)).expect("JSON");
        god.kv(Bucket::Dead).put(&dead_key(1), row.into()).await.expect("a parked row");
        let look = || async { logged(&[PARKED]).len() };
        eventually("a retry that waits", look, |lines| *lines > told).await;
        god.release_watches(bucket).await;
        eventually("it is denied", || supervisor.status(), |status| status.denied == 1).await;
        let dlv = god.connection.last_seq("DLV_main").await.expect("DLV");
        assert_eq!(dlv, 0, "content was released against {bucket:?}");
    }
}

fn parked(peer: &Peer, chat_seq: u64) -> DeadRow {
    DeadRow {
        seq: 1,
        owner: peer.principal().clone(),
        lifecycle_uid: peer.lifecycle.uid,
        channel: Channel::parse(TEAM).expect("a channel"),
        chat_seq,
        state: DeadState::Parked,
        reason: DeadReason::NoAclRow,
        attempts: 1,
        first_at: 1,
        next_at: 1,
    }
}

/// The rows of its time tell whose a parked entry is; a daemon that started later reads them from
/// the history.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_10_a_parked_entry_of_an_earlier_membership_outlives_a_rejoin_and_a_restart() {
    let (mesh, lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.pause(READER).await;
    let seq = alice.post(TEAM, "m", &[]).await.seq;
    god.wait_for_entries(1).await;
    bob.leave(TEAM, 1).await;
    assert_eq!(bob.join(TEAM).await.generation, 2);
    drop(lane);
    god.free_lease().await;
    god.resume(READER).await;
    let mut pull =
        PullConsumer::open(&god.connection, "INBOX_main", READER, PullOptions::default())
            .await
            .expect("the reader's consumer");
    let entry = pull.next_batch(1, Duration::from_secs(10)).await.expect("a pull").remove(0);
    pull.close().await;
    entry.ack_confirmed().await.expect("an ack");
    let row = serde_json::to_vec(&parked(&bob, seq)).expect("JSON");
    god.kv(Bucket::Dead).put(&dead_key(1), row.into()).await.expect("a parked row");

    let _next = mesh.lane().await;
    assert_eq!(bob.receive(1).await, ["m"]);
}
