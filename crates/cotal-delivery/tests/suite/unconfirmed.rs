//! A stream that refuses a copy: the post or the entry stays pending until the copy is confirmed
//! (FAN-1, RDR-3).

use cotal_delivery::Lane;
use cotal_testkit::{God, Mesh, Peer, eventually, logged, with_member};

const TEAM: &str = "team.backend";

/// Alice, and bob, who is a member and has one post already, because a stream must hold a message
/// before it can be full.
async fn start() -> (Mesh, Lane, Peer, Peer, God) {
    let (mesh, lane, alice, bob, god) = with_member(TEAM).await;
    alice.post(TEAM, "first", &[]).await;
    assert_eq!(bob.receive(1).await, ["first"]);
    (mesh, lane, alice, bob, god)
}

async fn told(what: &str) {
    let told = || async { logged(&[what]).len() };
    eventually(what, told, |lines| *lines > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_1_a_post_is_pending_until_its_copies_are_confirmed() {
    let (_mesh, _lane, alice, bob, god) = start().await;
    god.refuse_writes("INBOX_main").await;
    alice.post(TEAM, "m", &[]).await;
    told("copies are unconfirmed").await;
    god.accept_writes("INBOX_main").await;
    assert_eq!(bob.receive(1).await, ["m"]);
    bob.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_an_entry_is_pending_until_its_copy_is_confirmed() {
    let (_mesh, _lane, alice, bob, god) = start().await;
    god.refuse_writes("DLV_main").await;
    alice.post(TEAM, "m", &[]).await;
    told("copies could not be handed off").await;
    god.accept_writes("DLV_main").await;
    assert_eq!(bob.receive(1).await, ["m"]);
    bob.receives_nothing().await;
}
