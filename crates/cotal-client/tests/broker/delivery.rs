//! One delivery out of all copies, and whose ack it is.

use std::collections::BTreeMap;
use std::time::Duration;

use cotal_client::{Draft, Notice, Source};
use cotal_nats::{PullConsumer, PullOptions};
use cotal_testkit::Mesh;

use crate::support::{
    channel, configure, endpoint, lifecycle, message, message_within, nothing, nothing_waits_for,
    notice, post_raw, sender, stopped, texts,
};

#[tokio::test]
async fn agt_3_live_and_durable_copies_are_one_delivery_and_the_durable_one_is_acked() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let (alice, bob) = (sender(&mesh, &alice).await, endpoint(&mesh, &bob).await);
    bob.join(&channel("team.a")).await;
    let mut posted = Vec::new();
    for n in 0..50 {
        let text = format!("post {n}");
        alice.post(&channel("team.a"), text.as_str()).await.unwrap();
        posted.push(text);
    }
    assert_eq!(texts(&bob, 50).await, posted);
    nothing(&bob).await;
    // Every durable copy was acked although the live one was shown.
    nothing_waits_for(&bob).await;
    let dlv = mesh.space().dlv_stream();
    let stored = mesh.operator().await.stream_state(&dlv).await.unwrap();
    assert_eq!(stored.messages, 50, "the backstop had them all");
    stopped(daemon).await;
}

#[tokio::test]
async fn agt_3_posts_around_a_join_are_shown_once_whatever_way_they_come() {
    let mesh = Mesh::start().await;
    configure(&mesh, "team.a", r#"{"replay":true}"#).await;
    let daemon = mesh.lane().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let (alice, bob) = (sender(&mesh, &alice).await, endpoint(&mesh, &bob).await);
    let on = channel("team.a");
    let writing = tokio::spawn({
        let on = on.clone();
        async move {
            for n in 0..200 {
                alice.post(&on, Draft::text(n.to_string())).await.unwrap();
            }
        }
    });
    bob.join(&on).await;
    let mut seen: BTreeMap<String, (usize, Source)> = BTreeMap::new();
    while seen.len() < 200 {
        let incoming = message(&bob).await;
        let entry = seen.entry(incoming.text()).or_insert((0, incoming.source));
        entry.0 += 1;
        incoming.ack().await.unwrap();
    }
    writing.await.unwrap();
    nothing(&bob).await;
    let twice: Vec<_> = seen.iter().filter(|(_, (times, _))| *times != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    nothing_waits_for(&bob).await;
    stopped(daemon).await;
}

#[tokio::test]
async fn agt_3_what_was_not_acked_comes_again_at_once_after_a_close() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let on = channel("team.a");
    sender(&mesh, &bob).await.join(&on).await;
    let alice = sender(&mesh, &alice).await;
    for n in 0..20 {
        alice.post(&on, Draft::text(format!("{n:02}"))).await.unwrap();
    }
    let first = endpoint(&mesh, &bob).await;
    assert_eq!(texts(&first, 3).await, ["00", "01", "02"]);
    let held = message(&first).await;
    assert_eq!(held.text(), "03");
    first.close().await;
    assert!(held.ack().await.is_err(), "an ack after the close does not count");

    let second = endpoint(&mesh, &bob).await;
    let mut rest = texts(&second, 17).await;
    rest.sort();
    let expected: Vec<_> = (3..20).map(|n| format!("{n:02}")).collect();
    assert_eq!(rest, expected);
    nothing(&second).await;
    stopped(daemon).await;
}

#[tokio::test]
async fn agt_3_a_message_acked_live_does_not_come_again_on_the_next_endpoint() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let alice = sender(&mesh, &alice).await;
    for n in 0..5 {
        let reader = endpoint(&mesh, &bob).await;
        reader.join(&channel("team.a")).await;
        alice.post(&channel("team.a"), Draft::text(n.to_string())).await.unwrap();
        assert_eq!(texts(&reader, 1).await, [n.to_string()]);
        reader.close().await;
    }
    let reader = endpoint(&mesh, &bob).await;
    nothing(&reader).await;
    nothing_waits_for(&reader).await;
    stopped(daemon).await;
}

#[tokio::test]
async fn what_was_pulled_ahead_and_never_read_is_not_lost_on_the_next_endpoint() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &[], None).await,
        mesh.add_agent("bob", &[], &[], None).await,
    );
    let first = endpoint(&mesh, &bob).await;
    let (alice, to) = (sender(&mesh, &alice).await, first.principal().clone());
    for n in 0..600 {
        alice.dm(&to, Draft::text(format!("{n:03}"))).await.unwrap();
    }
    let read = texts(&first, 1).await;
    first.close().await;
    let second = endpoint(&mesh, &bob).await;
    // What the broker sent in the very moment of the close waits for its ack wait of 60 s.
    let patience = Duration::from_secs(90);
    let mut rest = read;
    while rest.len() < 600 {
        let incoming = message_within(&second, patience).await;
        rest.push(incoming.text());
        incoming.ack().await.unwrap();
    }
    rest.sort();
    let expected: Vec<_> = (0..600).map(|n| format!("{n:03}")).collect();
    assert_eq!(rest, expected);
}

#[tokio::test]
async fn an_endpoint_outlives_its_broker_and_reads_on() {
    let mut mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.a"], None).await,
        mesh.add_agent("bob", &["team.a"], &[], None).await,
    );
    let (alice, bob) = (sender(&mesh, &alice).await, endpoint(&mesh, &bob).await);
    bob.join(&channel("team.a")).await;
    alice.dm(bob.principal(), "before").await.unwrap();
    assert_eq!(texts(&bob, 1).await, ["before"]);
    mesh.kill_broker().await;
    notice(&bob, |n| *n == Notice::Disconnected).await;
    mesh.restart_broker().await;
    notice(&bob, |n| *n == Notice::Reconnected).await;
    notice(&alice, |n| *n == Notice::Reconnected).await;
    alice.post(&channel("team.a"), "live again").await.unwrap();
    assert_eq!(texts(&bob, 1).await, ["live again"]);
    alice.dm(bob.principal(), "after").await.unwrap();
    assert_eq!(texts(&bob, 1).await, ["after"]);
}

#[tokio::test]
async fn a_pull_that_a_dead_process_left_behind_brings_its_message_to_the_right_place() {
    let mesh = Mesh::start().await;
    let (alice, creds) = (
        mesh.add_agent("alice", &[], &[], None).await,
        mesh.add_agent("bob", &[], &[], None).await,
    );
    let bob = lifecycle(&creds);
    let (stream, name) = (mesh.space().dm_stream(), mesh.space().dm_consumer(&bob));
    let dead = mesh.connect(&creds).await;
    let mut pull = PullConsumer::open(&dead, &stream, &name, PullOptions::default()).await.unwrap();
    let nothing_yet = pull.next_batch(1, Duration::from_millis(50)).await.unwrap();
    assert!(nothing_yet.is_empty());
    drop((pull, dead));

    let living = endpoint(&mesh, &creds).await;
    let alice = sender(&mesh, &alice).await;
    for n in 0..3 {
        alice.dm(&bob.principal, Draft::text(n.to_string())).await.unwrap();
    }
    assert_eq!(texts(&living, 3).await, ["0", "1", "2"]);
}

#[tokio::test]
async fn agt_3_a_released_message_is_shown_again() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &[], None).await,
        mesh.add_agent("bob", &[], &[], None).await,
    );
    let bob = endpoint(&mesh, &bob).await;
    sender(&mesh, &alice).await.dm(bob.principal(), "work").await.unwrap();
    let first = message(&bob).await;
    assert!(!first.again);
    first.release().await.unwrap();
    let second = message(&bob).await;
    assert!(second.again && second.text() == "work");
    second.ack_confirmed().await.unwrap();
    nothing(&bob).await;
}

#[tokio::test]
async fn agt_3_an_empty_id_is_never_a_key() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.a"], None).await,
        mesh.add_agent("bob", &["team.a"], &[], None).await,
    );
    let bob = endpoint(&mesh, &bob).await;
    bob.join(&channel("team.a")).await;
    let raw = mesh.connect(&alice).await;
    for text in ["one", "two"] {
        let body = format!(
            r#"{{"id":"","from":{{"id":"local.alice"}},"channel":"team.a","parts":[{{"kind":"text","text":"{text}"}}]}}"#
        );
        post_raw(&raw, &mesh, "alice", "team.a", &body).await;
    }
    assert_eq!(texts(&bob, 2).await, ["one", "two"]);
}

#[tokio::test]
async fn agt_3_a_forged_post_is_not_shown_and_takes_nobodys_id() {
    let mesh = Mesh::start().await;
    let (alice, eve, bob) = (
        mesh.add_agent("alice", &[], &["team.a"], None).await,
        mesh.add_agent("eve", &[], &["team.a"], None).await,
        mesh.add_agent("bob", &["team.a"], &[], None).await,
    );
    let bob = endpoint(&mesh, &bob).await;
    bob.join(&channel("team.a")).await;
    let raw = mesh.connect(&eve).await;
    let forged = r#"{"id":"squat","from":{"id":"local.alice"},"channel":"team.a","parts":[]}"#;
    post_raw(&raw, &mesh, "eve", "team.a", forged).await;
    let own = r#"{"id":"squat","from":{"id":"local.eve"},"channel":"team.a","parts":[{"kind":"text","text":"eve"}]}"#;
    post_raw(&raw, &mesh, "eve", "team.a", own).await;
    let alice = sender(&mesh, &alice).await;
    alice.post(&channel("team.a"), Draft::text("alice").with_id("squat")).await.unwrap();
    assert_eq!(texts(&bob, 2).await, ["eve", "alice"]);
    nothing(&bob).await;
}
