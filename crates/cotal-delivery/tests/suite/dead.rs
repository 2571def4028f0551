//! Garbled rows of the dead bucket against a real broker (`wire.md` §4).

use cotal_nats::{Bucket as Kv, Entry, Subject};
use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually};
use cotal_wire::names::{Bucket, dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use cotal_wire::{Channel, LifecycleUid};

const TEAM: &str = "team.backend";
const ACK: &str = r#"{"stream":"CHAT_main","seq":1}"#;

/// Makes the broker write the PubAck of a post under `e.<seq>`, as any agent can.
async fn garble(eve: &Peer, seq: u64) {
    let channel = Channel::parse(TEAM).expect("a channel");
    let subject = Subject::from(eve.space.chat(eve.principal(), &channel));
    let reply = Subject::from(eve.space.kv_subject(Bucket::Dead, &dead_key(seq)));
    let body = eve.body(TEAM, "m", "m", &[]).to_string();
    let sent = eve.connection.publish_with_reply(subject, reply, None, body.into()).await;
    sent.expect("sent");
}

async fn row(kv: &Kv, seq: u64) -> Option<Entry> {
    kv.get(&dead_key(seq)).await.expect("the dead bucket")
}

/// Whether garbage was replaced by a deletion.
fn removed(row: &Option<Entry>) -> bool {
    row.as_ref().is_some_and(|row| row.live().is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_garbled_row_under_which_no_row_is_known_is_removed() {
    let mesh = Mesh::of_one_account().await;
    let god = God::of(&mesh).await;
    let kv = god.kv(Bucket::Dead);
    let eve = mesh.peer("eve", &["team.>"], &["team.>"]).await;
    garble(&eve, 7).await;
    let there = |row: &Option<Entry>| row.is_some();
    let garbage = eventually("the PubAck of the deputy", || row(&kv, 7), there).await;
    assert!(garbage.expect("an entry").live().is_some());
    let _lane = mesh.lane().await;
    eventually("what stood before the daemon goes", || row(&kv, 7), removed).await;
    garble(&eve, 8).await;
    eventually("what comes while it serves goes", || row(&kv, 8), removed).await;
}

/// The bucket keeps no history, so only the daemon's memory still has the row.
#[tokio::test(flavor = "multi_thread")]
async fn a_given_up_row_is_written_back_over_garbage() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let god = God::of(&mesh).await;
    let eve = mesh.peer("eve", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    eve.post(TEAM, "m", &[]).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    let given_up = DeadRow {
        seq: 1,
        owner: bob.principal().clone(),
        lifecycle_uid: LifecycleUid::from_random([7; 26]),
        channel: Channel::parse(TEAM).expect("a channel"),
        chat_seq: 1,
        state: DeadState::GivenUp,
        reason: DeadReason::NoAclRow,
        attempts: 11,
        first_at: 1,
        next_at: 0,
    };
    let kv = god.kv(Bucket::Dead);
    // A parked row: once the daemon has counted it, it has also seen the given-up row before it.
    let (seq, next_at) = (2, cotal_manager::clock::unix_millis() + 600_000);
    let parked = DeadRow { seq, state: DeadState::Parked, next_at, ..given_up.clone() };
    for row in [&given_up, &parked] {
        let value = serde_json::to_vec(row).expect("JSON");
        kv.put(&dead_key(row.seq), value.into()).await.expect("a dead row");
    }
    let supervisor = Supervisor::of(&mesh).await;
    eventually("both are seen", || supervisor.status(), |status| status.parked == 1).await;
    let garbled = kv.put(&dead_key(1), ACK.into()).await.expect("a garbled row");
    let newer = |row: &Option<Entry>| row.as_ref().is_some_and(|row| row.revision > garbled);
    let repaired = eventually("it is written back", || row(&kv, 1), newer).await;
    let repaired = repaired.expect("an entry");
    let repaired = DeadRow::parse(repaired.live().expect("a row"), 1).expect("a dead row");
    assert_eq!(repaired, given_up);
}
