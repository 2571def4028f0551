//! The fan-out writer against a real broker.

use cotal_testkit::Mesh;
use cotal_wire::rows::DeliveryClass;

#[tokio::test(flavor = "multi_thread")]
async fn fan_1_a_durable_post_reaches_every_member_whose_interval_holds_it() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;

    alice.post("team.backend", "before", &[]).await;
    assert!(bob.join("team.backend").await.durable);
    assert!(alice.join("team.backend").await.durable);
    alice.post("team.backend", "one", &[]).await;
    let generation = carol.join("team.backend").await.generation;
    alice.post("team.backend", "two", &[]).await;
    carol.leave("team.backend", generation).await;
    alice.post("team.backend", "three", &[]).await;

    assert_eq!(bob.receive(3).await, ["one", "two", "three"]);
    assert_eq!(carol.receive(1).await, ["two"]);
    bob.receives_nothing().await;
    carol.receives_nothing().await;
    alice.receives_nothing().await;
    lane.stop();
    lane.ended().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_mention_on_a_live_channel_reaches_a_peer_who_may_read_it() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    mesh.set_class("ops.live", DeliveryClass::Live).await;
    let alice = mesh.peer("alice", &["ops.>"], &["ops.>"]).await;
    let bob = mesh.peer("Bob", &["ops.>"], &[]).await;
    let eve = mesh.peer("eve", &["other"], &[]).await;

    alice.post("ops.live", "unmentioned", &[]).await;
    alice.post("ops.live", "hello", &["bob", "eve", "nobody", "alice"]).await;

    assert_eq!(bob.receive(1).await, ["hello"]);
    bob.receives_nothing().await;
    eve.receives_nothing().await;
}
