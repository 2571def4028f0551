//! What an inventory waits for, and what it may share (INV-2, INV-4).

use std::time::Duration;

use cotal_testkit::{God, Mesh, Peer, Supervisor};
use cotal_wire::control::Code;
use cotal_wire::names::{Bucket, DELIVERY, FANOUT};
use cotal_wire::rows::MemberRow;
use serde_json::json;

use super::{TEAM, inventory};

/// A waiting join holds the lock on the rows and may still write: the inventory waits for it, and
/// no change begins in between.
#[tokio::test(flavor = "multi_thread")]
async fn inv_4_an_inventory_waits_for_a_join_under_way_and_none_begins_before_it_is_answered() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let _lane = mesh.lane().await;
    assert_eq!(bob.join(TEAM).await.generation, 1);
    god.pause(FANOUT).await;
    alice.post_many(TEAM, "m", 3).await;
    bob.leave(TEAM, 1).await;
    for generation in 2..=3 {
        assert_eq!(bob.join(TEAM).await.generation, generation);
        bob.leave(TEAM, generation).await;
    }
    // The rows of the first membership are needed until its posts are routed.
    let join = bob.join(TEAM);
    tokio::pin!(join);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut join).await;
    assert!(early.is_err(), "the join did not wait: {early:?}");
    let manager = Supervisor::of(&mesh).await;
    let asked = inventory(&manager, &bob.lifecycle);
    tokio::pin!(asked);
    let early = tokio::time::timeout(Duration::from_secs(1), &mut asked).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    god.resume(FANOUT).await;
    let (joined, listed) = tokio::join!(join, asked);
    assert_eq!((joined.durable, joined.generation, listed.len()), (true, 4, 1));
    let args = json!({ "channel": "team.other" });
    let refused = bob.control(DELIVERY, "durableJoin", args).await.expect("a reply");
    assert_eq!(refused.code, Some(Code::Retired));
}

/// The second inventory arrives while the first one reads. Rows written in between must be in it,
/// so it gets a read of its own.
#[tokio::test(flavor = "multi_thread")]
async fn inv_2_the_read_of_an_inventory_begins_after_it_arrived() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    let _lane = mesh.lane().await;
    let (first, second) = (Supervisor::of(&mesh).await, Supervisor::of(&mesh).await);
    for peer in [&bob, &carol] {
        god.set_acl(&peer.lifecycle, &[]).await;
    }
    // The first read waits until the watch is released.
    god.hold_watches(Bucket::Members).await;
    let activated = |peer: &Peer, channel| {
        let row = peer.half_joined(channel, 0);
        MemberRow { activated: true, ..row }
    };
    god.put_member(&activated(&bob, TEAM)).await;
    let members = mesh.space().kv_stream(Bucket::Members);
    let reads = format!("$JS.API.STREAM.MSG.GET.{members}");
    let mut reads = god.connection.subscribe(reads, None).await.expect("a subscription");
    let both = async {
        let one = inventory(&first, &bob.lifecycle);
        let two = async {
            reads.next().await.expect("the read of the first");
            let rail = mesh.space().ctl_all("delivery-admin");
            let mut asked = god.connection.subscribe(rail, None).await.expect("a subscription");
            let two = inventory(&second, &carol.lifecycle);
            let release = async {
                asked.next().await.expect("the second has arrived");
                god.release_watches(Bucket::Members).await;
            };
            tokio::join!(two, release).0
        };
        tokio::join!(one, two)
    };
    let (one, two) = Box::pin(both).await;
    assert_eq!((one.len(), two.len()), (1, 0));
    // The first asks once more after the row it waited for is applied; the second asks for itself.
    let mut more = 0;
    while tokio::time::timeout(Duration::from_millis(300), reads.next()).await.is_ok() {
        more += 1;
    }
    assert!(more >= 2, "the second shared a read that had begun before it");
}
