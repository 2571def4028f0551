//! However long DLV refuses copies, an authorized entry waits, is never given up, and is never
//! discarded from INBOX (RDR-3, RDR-8).

use std::time::Duration;

use cotal_nats::{PullConsumer, PullOptions};
use cotal_testkit::{God, Peer, Supervisor, eventually, logged, with_member};
use cotal_wire::names::{Bucket, FANOUT, READER, dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};

const TEAM: &str = "team.backend";
const DLV: &str = "DLV_main";
const REFUSED: &str = "copies could not be handed off";

/// A stream must hold a message before it can be full.
async fn fill(alice: &Peer, bob: &Peer, god: &God) {
    alice.post(TEAM, "first", &[]).await;
    assert_eq!(bob.receive(1).await, ["first"]);
    god.refuse_writes(DLV).await;
}

async fn told(what: &str) {
    eventually(what, || async { logged(&[what]).len() }, |lines| *lines > 0).await;
}

/// Pulls the next entry ten times and returns it, like ten daemons that died while they held it.
async fn use_up_redeliveries(god: &God) {
    let options = PullOptions { batch: 1, ..PullOptions::default() };
    let pull = PullConsumer::open(&god.connection, "INBOX_main", READER, options).await;
    let mut pull = pull.expect("the reader's consumer");
    for _ in 0..9 {
        let entry = pull.next_batch(1, Duration::from_secs(10)).await.expect("a pull").remove(0);
        entry.nak(None).await.expect("a nak");
    }
    let entry = pull.next_batch(1, Duration::from_secs(10)).await.expect("a pull").remove(0);
    pull.close().await;
    entry.nak(Some(Duration::from_millis(500))).await.expect("a nak");
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_an_authorized_entry_is_not_given_up_after_ten_redeliveries() {
    let (mesh, mut lane, alice, bob, god) = with_member(TEAM).await;
    fill(&alice, &bob, &god).await;
    god.pause(READER).await;
    alice.post(TEAM, "m", &[]).await;
    god.wait_for_entries(2).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    god.resume(READER).await;
    use_up_redeliveries(&god).await;
    let _next = mesh.lane().await;
    told(REFUSED).await;
    let supervisor = Supervisor::of(&mesh).await;
    let status = eventually("it waits", || supervisor.status(), |s| s.waiting == 1).await;
    assert_eq!((status.given_up, status.parked), (0, 0));
    god.accept_writes(DLV).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    eventually("nothing is waiting", || supervisor.status(), |s| s.waiting == 0).await;
}

/// Far more posts than INBOX keeps per member: fan-out waits, and CHAT keeps the posts that are not
/// routed.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_refusing_store_loses_nothing_however_much_is_posted() {
    let (mesh, _lane, alice, bob, god) = with_member(TEAM).await;
    fill(&alice, &bob, &god).await;
    let carol = mesh.peer("carol", &["team.>"], &["team.>"]).await;
    for (sender, prefix) in [(&alice, "a"), (&carol, "c")] {
        sender.post_many(TEAM, prefix, 900).await;
    }
    told(REFUSED).await;
    let routed = || async { god.connection.last_seq("INBOX_main").await.unwrap_or(0) };
    eventually("fan-out has filled its window", routed, |last| *last >= 500).await;
    god.lift_cap(DLV).await;
    god.accept_writes(DLV).await;
    let held = || async { god.stored(DLV, &bob.space.dlv(&bob.lifecycle)).await.len() };
    eventually("every copy is handed off", held, |count| *count == 1 + 1_800).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    let status = Supervisor::of(&mesh).await.status().await;
    assert_eq!((status.given_up, status.parked, status.waiting), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_parked_entry_is_not_given_up_because_its_hand_off_failed() {
    let (mesh, _lane, alice, bob, god) = with_member(TEAM).await;
    fill(&alice, &bob, &god).await;
    god.pause(READER).await;
    alice.post(TEAM, "m", &[]).await;
    god.wait_for_entries(2).await;
    let row = DeadRow {
        seq: 2,
        owner: bob.principal().clone(),
        lifecycle_uid: bob.lifecycle.uid,
        channel: cotal_wire::Channel::parse(TEAM).expect("a channel"),
        chat_seq: 2,
        state: DeadState::Parked,
        reason: DeadReason::HandoffFailed,
        attempts: 10,
        first_at: 1,
        next_at: 1,
    };
    let (kv, value) = (god.kv(Bucket::Dead), serde_json::to_vec(&row).expect("JSON"));
    let first = kv.put(&dead_key(2), value.into()).await.expect("a parked row");
    let found = || async { kv.get(&dead_key(2)).await.expect("a bucket").expect("a row") };
    let again = eventually("it is tried", found, |entry| entry.revision > first).await;
    let again = DeadRow::parse(&again.value, 2).expect("a dead row");
    assert_eq!((again.state, again.reason), (DeadState::Parked, DeadReason::HandoffFailed));
    assert_eq!(again.attempts, 10, "more would change the copy's message id");
    assert!(again.next_at > row.next_at);
    assert_eq!(Supervisor::of(&mesh).await.status().await.given_up, 0);
}
