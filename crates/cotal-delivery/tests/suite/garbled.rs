//! Member rows that somebody garbled, and the rows before the garbage (MEM-1, `wire.md` §4).

use cotal_testkit::{Peer, eventually, with_member};
use cotal_wire::Channel;
use cotal_wire::names::{Bucket, DELIVERY, FANOUT, member_key};
use serde_json::json;

const TEAM: &str = "team.backend";
/// What the broker writes over a row when somebody uses its subject as a reply subject.
const GARBAGE: &str = r#"{"stream":"CHAT_main","seq":1}"#;

fn key(peer: &Peer) -> String {
    member_key(&Channel::parse(TEAM).expect("a channel"), &peer.lifecycle)
}

/// The daemon's watch is held back, so the join reads the garbage before it is repaired.
#[tokio::test(flavor = "multi_thread")]
async fn mem_1_a_join_never_takes_a_garbled_row_for_an_absence() {
    let (_mesh, _lane, alice, bob, god) = with_member(TEAM).await;
    alice.post(TEAM, "m", &[]).await;
    god.hold_watches(Bucket::Members).await;
    let kv = god.kv(Bucket::Members);
    let garbled = kv.put(&key(&bob), GARBAGE.into()).await.expect("a garbled row");
    let join = bob.control(DELIVERY, "durableJoin", json!({ "channel": TEAM })).await;
    let refused = join.expect("a reply");
    assert!(!refused.ok, "decided on a row that nobody can read: {refused:?}");
    let stands = kv.get(&key(&bob)).await.expect("the bucket").expect("a row");
    assert_eq!(stands.revision, garbled, "written over by the join");
    god.release_watches(Bucket::Members).await;
    let look = || god.member(TEAM, &bob.lifecycle);
    let (row, _) = eventually("the row is back", look, Option::is_some).await.expect("a row");
    assert_eq!((row.generation, row.join_cursor), (1, 0));
    let joined = bob.join(TEAM).await;
    assert_eq!((joined.durable, joined.generation), (true, 1));
}

/// A deleted membership does not come back because garbage was written over the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn mem_1_a_deleted_row_does_not_come_back_from_the_history_behind_garbage() {
    let (mesh, mut lane, alice, bob, god) = with_member(TEAM).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    let kv = god.kv(Bucket::Members);
    kv.delete(&key(&bob), None).await.expect("a deleted row");
    kv.put(&key(&bob), GARBAGE.into()).await.expect("a garbled row");
    let _next = mesh.lane().await;
    alice.post(TEAM, "m", &[]).await;
    god.wait_until_settled(FANOUT).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty(), "a copy for a membership that ended");
    let look = || async { kv.get(&key(&bob)).await.expect("the bucket") };
    let gone =
        |entry: &Option<cotal_nats::Entry>| entry.as_ref().is_none_or(|e| e.live().is_none());
    eventually("the garbage is removed", look, gone).await;
}
