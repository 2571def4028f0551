//! What a caller wanted and did not get at once: a durable backstop, and room for what comes live.

use std::collections::BTreeSet;

use cotal_client::{Backstop, Event, Live, Notice, Shortfall};
use cotal_testkit::Mesh;

use crate::support::{SOON, channel, endpoint, message, notice, sender, stopped};

/// The number and the text of a post that is too large to be many.
fn large(n: usize) -> String {
    format!("{n:04}{}", "x".repeat(100_000))
}

#[tokio::test]
async fn a_backstop_that_no_daemon_could_give_is_established_once_one_serves() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["team.>"], None).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let bob = endpoint(&mesh, &bob).await;
    let (kept, left) = (channel("team.kept"), channel("team.left"));
    for on in [&kept, &left] {
        let joined = bob.join(on).await;
        assert!(matches!(joined.live, Live::Active));
        assert_eq!(joined.backstop, Backstop::Unestablished(Shortfall::NoDaemon));
    }
    bob.leave(&left).await;
    let daemon = mesh.lane().await;
    let told = notice(&bob, |n| matches!(n, Notice::BackstopEstablished { .. })).await;
    assert_eq!(told, Notice::BackstopEstablished { channel: kept.clone(), generation: 1 });
    let memberships = bob.memberships().await.unwrap();
    let joined: Vec<_> = memberships.iter().map(|m| (&m.channel, m.activated)).collect();
    assert_eq!(joined, [(&kept, true)], "what was left is not joined");
    sender(&mesh, &alice).await.post(&kept, "kept").await.unwrap();
    let incoming = message(&bob).await;
    assert_eq!(incoming.text(), "kept");
    incoming.ack_confirmed().await.unwrap();
    crate::support::nothing_waits_for(&bob).await;
    stopped(daemon).await;
}

#[tokio::test]
async fn a_backstop_that_is_refused_for_good_is_told_and_not_asked_for_again() {
    let mesh = Mesh::start().await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let bob = endpoint(&mesh, &bob).await;
    let secret = channel("secret");
    let joined = bob.join(&secret).await;
    assert_eq!(joined.backstop, Backstop::Unestablished(Shortfall::NoDaemon));
    let daemon = mesh.lane().await;
    let told = notice(&bob, |n| matches!(n, Notice::BackstopRefused { .. })).await;
    let Notice::BackstopRefused { channel: on, why } = told else { unreachable!() };
    assert_eq!(on, secret);
    assert!(matches!(why, Shortfall::Refused { .. }), "{why:?}");
    stopped(daemon).await;
}

/// Whoever reads nothing holds a bounded number of bytes, is told what it lost live, and still gets
/// the durable copy of each.
#[tokio::test(flavor = "multi_thread")]
async fn live_messages_are_bounded_in_bytes_and_what_is_dropped_is_told_and_comes_durably() {
    const POSTS: usize = 500;
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let bob = mesh.add_agent("bob", &["a"], &[], None).await;
    let (alice, bob) = (sender(&mesh, &alice).await, endpoint(&mesh, &bob).await);
    let on = channel("a");
    let joined = bob.join(&on).await;
    assert_eq!(joined.backstop, Backstop::Durable { generation: 1 });
    for n in 0..POSTS {
        alice.post(&on, large(n)).await.unwrap();
    }
    let (mut seen, mut dropped) = (BTreeSet::new(), 0);
    let read = async {
        while seen.len() < POSTS {
            match bob.next().await.expect("an open endpoint") {
                Event::Message(incoming) => {
                    assert!(!incoming.again, "it was never shown before");
                    assert!(seen.insert(incoming.text()[..4].to_owned()), "shown twice");
                    incoming.ack().await.unwrap();
                }
                Event::Notice(Notice::Overrun { channel, dropped: more, durable }) => {
                    assert_eq!((&channel, durable), (&on, true));
                    dropped += more;
                }
                Event::Notice(other) => panic!("{other}"),
            }
        }
    };
    tokio::time::timeout(SOON * 2, read).await.expect("every post in time");
    let most = 32 * 1024 * 1024 / 200_000 + 1;
    let queued = POSTS as u64 - dropped;
    assert!(dropped > 0 && queued < 2 * most, "{queued} of {POSTS} were queued live");
    stopped(daemon).await;
}

/// Without a daemon a dropped live message is nowhere but in the history, and that is what is said.
#[tokio::test(flavor = "multi_thread")]
async fn an_overrun_without_a_backstop_promises_no_durable_copy() {
    const POSTS: usize = 400;
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let bob = mesh.add_agent("bob", &["a"], &[], None).await;
    let (alice, bob) = (sender(&mesh, &alice).await, endpoint(&mesh, &bob).await);
    let on = channel("a");
    assert!(matches!(bob.listen(&on).await, Live::Active));
    for n in 0..POSTS {
        alice.post(&on, large(n)).await.unwrap();
    }
    let (mut seen, mut dropped) = (0, 0);
    let read = async {
        while seen + dropped < POSTS as u64 {
            match bob.next().await.expect("an open endpoint") {
                Event::Message(_) => seen += 1,
                Event::Notice(Notice::Overrun { dropped: more, durable, .. }) => {
                    assert!(!durable);
                    dropped += more;
                }
                Event::Notice(_) => {}
            }
        }
    };
    tokio::time::timeout(SOON, read).await.expect("every post is seen or told");
    assert!(dropped > 0 && seen > 0, "{seen} seen, {dropped} dropped");
}
