//! What goes out: ids, sizes, denials.

use std::error::Error as _;

use cotal_client::{Draft, NatsError, Principal, SendError};
use cotal_nats::{Bucket as Kv, Bytes, Get};
use cotal_testkit::{Mesh, eventually};
use cotal_wire::limits::ENTRY_HEADROOM;
use cotal_wire::names::Bucket;
use cotal_wire::rows::PresenceRow;

use crate::support::{channel, chat, endpoint, message, notice, sender};

#[tokio::test]
async fn a_post_is_stored_under_its_id_as_the_wire_has_it() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("Alice", &["team.>"], &["team.>"], Some("reviewer")).await;
    let alice = sender(&mesh, &alice).await;
    let posted = alice.post(&channel("team.a"), Draft::text("hi").mention("@Bob")).await.unwrap();
    let god = mesh.god().await;
    let stored = god.get_message(&mesh.space().chat_stream(), Get::Seq(posted.seq)).await;
    let stored = stored.unwrap().unwrap();
    let body: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
    assert_eq!(stored.subject, "cotal.main.chat.local.alice.team.a");
    assert_eq!(body["id"], posted.id.as_str());
    assert_eq!(posted.id.len(), 32);
    assert_eq!(
        body["from"],
        serde_json::json!({"id": "local.alice", "name": "Alice", "role": "reviewer"})
    );
    assert_eq!(body["channel"], "team.a");
    assert_eq!(body["mentions"], serde_json::json!(["bob"]));
    assert_eq!(body["parts"], serde_json::json!([{"kind": "text", "text": "hi"}]));
    let id = cotal_nats::headers::get(stored.headers.as_ref(), cotal_nats::headers::MSG_ID);
    assert_eq!(id, Some(posted.id.as_str()));
}

#[tokio::test]
async fn an_id_that_is_known_is_an_error_first_and_none_on_a_retry() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    let first = alice.post(&channel("a"), Draft::text("x").with_id("known")).await.unwrap();
    let again = alice.post(&channel("a"), Draft::text("y").with_id("known")).await;
    assert!(
        matches!(&again, Err(SendError::Duplicate { id, seq }) if id == "known" && *seq == first.seq),
        "{again:?}"
    );
    let retried = alice.post(&channel("a"), Draft::text("x").retry_of("known")).await.unwrap();
    assert_eq!(retried, first);
}

#[tokio::test]
async fn a_post_that_does_not_fit_is_refused_with_its_size_and_the_largest_one_is_taken() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    let on = channel("a");
    let huge = "x".repeat(2 * 1024 * 1024);
    let Err(SendError::TooLarge { size, max }) = alice.post(&on, huge.as_str()).await else {
        panic!("a post of 2 MiB fits");
    };
    assert!(size > huge.len() && max < 1024 * 1024 - usize::try_from(ENTRY_HEADROOM).unwrap());
    let overhead = size - huge.len();
    // The clock's digits and the id's length are the same in every message.
    let largest = "x".repeat(max - overhead);
    alice.post(&on, largest.as_str()).await.expect("the largest post");
    let one_more = "x".repeat(max - overhead + 1);
    let refused = alice.post(&on, one_more.as_str()).await;
    assert!(matches!(refused, Err(SendError::TooLarge { .. })), "{refused:?}");
    assert_eq!(chat(&mesh).await.messages, 1);
}

#[tokio::test]
async fn a_denied_post_is_named_as_denied_at_once() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &["team.>"], &["team.a"], None).await;
    let alice = sender(&mesh, &alice).await;
    let denied = alice.post(&channel("team.b"), "x").await.unwrap_err();
    let cause = denied.source().and_then(|e| e.downcast_ref::<NatsError>());
    let subject = "cotal.main.chat.local.alice.team.b";
    assert!(
        matches!(cause, Some(NatsError::Denied { subject: s, .. }) if s == subject),
        "{denied:?}"
    );
}

#[tokio::test]
async fn a_direct_message_is_surfaced_once_and_a_forged_one_never() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &[], None).await,
        mesh.add_agent("bob", &[], &[], None).await,
    );
    let raw = mesh.connect(&alice).await;
    let to = Principal::parse("local.bob").unwrap();
    let from = Principal::parse("local.alice").unwrap();
    let forged = r#"{"id":"x","from":{"id":"local.carol"},"to":"local.bob","parts":[]}"#;
    let subject = mesh.space().inst(&to, &from);
    raw.publish_confirmed(subject, None, forged.into(), None).await.unwrap();
    let bob = endpoint(&mesh, &bob).await;
    notice(&bob, |n| matches!(n, cotal_client::Notice::Rejected { .. })).await;
    sender(&mesh, &alice).await.dm(&to, "hello").await.unwrap();
    let incoming = message(&bob).await;
    assert_eq!((incoming.text().as_str(), incoming.sender.as_str()), ("hello", "local.alice"));
    incoming.ack_confirmed().await.unwrap();
    assert_eq!(bob.waiting().await.unwrap(), cotal_client::Waiting::default());
}

#[tokio::test]
async fn presence_is_written_while_connected_and_removed_on_close() {
    let mesh = Mesh::start().await;
    let creds = mesh.add_agent("Bob", &[], &[], None).await;
    let operator = mesh.operator().await;
    let bucket = Kv::new(&operator, &mesh.space().bucket(Bucket::Presence));
    let bob = endpoint(&mesh, &creds).await;
    let look = || async { bucket.get("local.bob").await.unwrap().map(|row| row.value) };
    let row = eventually("a presence row", look, Option::is_some).await.unwrap();
    let row = PresenceRow::parse(&row, bob.principal()).unwrap();
    assert_eq!((row.card.name.as_str(), row.status.as_str()), ("Bob", "idle"));
    bob.set_status("busy");
    let busy = |row: &Option<Bytes>| {
        row.as_ref().is_some_and(|row| String::from_utf8_lossy(row).contains("busy"))
    };
    eventually("the new status", look, busy).await;
    bob.close().await;
    let row = bucket.get("local.bob").await.unwrap();
    assert!(row.is_none_or(|row| row.live().is_none()), "the row is still there");
}
