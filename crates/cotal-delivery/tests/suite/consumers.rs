//! A consumer that somebody deletes while the daemon uses it (`wire.md` §3).

use std::collections::BTreeSet;

use cotal_testkit::{God, Mesh, Peer, logged};
use cotal_wire::names::{FANOUT, READER};

const TEAM: &str = "team.backend";

async fn post(alice: &Peer, ids: std::ops::Range<usize>) {
    for n in ids {
        alice.post(TEAM, &format!("m{n}"), &[]).await;
    }
}

/// It is re-created at the daemon's position: nothing is lost or delivered twice, and an error is
/// logged.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_deleted_under_the_daemon_is_made_again_and_loses_nothing() {
    for (stream, consumer) in [("CHAT_main", FANOUT), ("INBOX_main", READER)] {
        let mesh = Mesh::start().await;
        let _lane = mesh.lane().await;
        let god = God::of(&mesh).await;
        let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
        let bob = mesh.peer("bob", &["team.>"], &[]).await;
        alice.post(TEAM, "before bob", &[]).await;
        bob.join(TEAM).await;
        post(&alice, 0..100).await;
        let (_, deleted) =
            tokio::join!(post(&alice, 100..300), god.connection.delete_consumer(stream, consumer));
        deleted.expect("a deleted consumer");
        post(&alice, 300..400).await;
        let got: BTreeSet<_> = bob.receive(400).await.into_iter().collect();
        assert_eq!(got, (0..400).map(|n| format!("m{n}")).collect());
        god.wait_until_settled(FANOUT).await;
        god.wait_until_settled(READER).await;
        bob.receives_nothing().await;
        let said = logged(&[
            "ERROR",
            "was deleted while the daemon used it",
            &format!("consumer=\"{consumer}\""),
        ]);
        assert_eq!(said.len(), 1, "{said:?}");
    }
}

/// Deleted while no daemon ran: its position is lost, and an error is logged.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_missing_at_the_start_is_made_anew_and_releases_what_stands() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.pause(READER).await;
    post(&alice, 0..20).await;
    god.wait_for_entries(20).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    god.connection.delete_consumer("INBOX_main", READER).await.expect("a deleted consumer");
    let _next = mesh.lane().await;
    assert_eq!(bob.receive(20).await.len(), 20);
    bob.receives_nothing().await;
    assert_eq!(logged(&["ERROR", "a consumer is missing", "consumer=\"reader\""]).len(), 1);
}
