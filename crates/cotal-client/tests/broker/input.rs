//! What a caller may hand to the library: an error comes back, never a panic.

use cotal_client::{ConnectError, Credential, Draft, Endpoint, EndpointOptions, Part, SendError};
use cotal_delivery::{Lane, LaneOptions, Stage};
use cotal_testkit::Mesh;
use cotal_workspace::MemoryStore;
use serde_json::{Value, json};

use crate::support::{channel, chat, sender};

#[tokio::test]
async fn a_post_after_the_close_says_that_nothing_was_sent() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    alice.close().await;
    let refused = alice.post(&channel("a"), "late").await.unwrap_err();
    assert!(matches!(refused, SendError::Closed), "{refused:?}");
    assert!(refused.to_string().contains("nothing was sent"), "{refused}");
    assert_eq!(chat(&mesh).await.messages, 0);
}

#[tokio::test]
async fn a_post_while_the_broker_is_away_says_that_nothing_was_sent() {
    let mut mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    mesh.kill_broker().await;
    crate::support::notice(&alice, |n| *n == cotal_client::Notice::Disconnected).await;
    let refused = alice.post(&channel("a"), "away").await.unwrap_err();
    assert!(matches!(refused, SendError::NotConnected), "{refused:?}");
}

#[tokio::test]
async fn an_id_that_cannot_be_one_is_refused_and_nothing_is_stored() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    let long = "x".repeat(cotal_client::MAX_ID + 1);
    for id in ["", "a\nb", "a\rb", "a\r\nNats-Rollup: all", "a\u{0}b", "a b", " a", &long] {
        for draft in [Draft::text("x").with_id(id), Draft::text("x").retry_of(id)] {
            let refused = alice.post(&channel("a"), draft).await.unwrap_err();
            assert!(matches!(refused, SendError::Id { .. }), "{id:?}: {refused:?}");
        }
    }
    assert_eq!(chat(&mesh).await.messages, 0);
    let strange = "zażółć:/?#[]@!$&'()*+,;=";
    let posted = alice.post(&channel("a"), Draft::text("x").with_id(strange)).await.unwrap();
    assert_eq!((posted.id.as_str(), posted.seq), (strange, 1));
}

/// The broker would store it, and whoever has to read it would drop it.
#[tokio::test]
async fn what_nobody_could_read_is_refused_before_it_is_sent() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    let deep = (0..200).fold(Value::Null, |inner, _| json!([inner]));
    let drafts = [Draft::data(deep.clone()), Draft::text("x").part(Part::Data { data: deep })];
    for draft in drafts {
        let refused = alice.post(&channel("a"), draft.clone()).await.unwrap_err();
        assert!(matches!(refused, SendError::Malformed(_)), "{refused:?}");
        let refused = alice.dm(alice.principal(), draft).await.unwrap_err();
        assert!(matches!(refused, SendError::Malformed(_)), "{refused:?}");
    }
    assert_eq!(chat(&mesh).await.messages, 0);
}

#[tokio::test]
async fn a_draft_that_was_given_its_id_before_can_be_sent_again_after_a_cancelled_call() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let alice = sender(&mesh, &alice).await;
    let draft = Draft::from(String::from("once")).with_fresh_id().unwrap();
    let id = draft.id().expect("an id").to_owned();
    // The call is dropped with the post on its way.
    let on = channel("a");
    let call = alice.post(&on, draft.clone());
    let _ = tokio::time::timeout(std::time::Duration::ZERO, call).await;
    let posted = alice.post(&on, draft.retry_of(id.as_str())).await.unwrap();
    assert_eq!((posted.id, chat(&mesh).await.messages), (id, 1));
}

#[test]
fn an_endpoint_outside_a_runtime_is_refused() {
    let options = EndpointOptions::new("nats://127.0.0.1:1", Credential::Text("none".into()));
    let mut connect = std::pin::pin!(Endpoint::connect(options));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = connect.as_mut().poll(&mut context);
    let std::task::Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert!(matches!(error, ConnectError::NoRuntime), "{error}");
}

#[test]
fn a_lane_outside_a_runtime_has_ended_and_says_why_as_often_as_asked() {
    let store = std::sync::Arc::new(MemoryStore::new("test"));
    let space = cotal_client::Space::parse("main").unwrap();
    let mut lane = Lane::start(LaneOptions::new(space, "nats://127.0.0.1:1", store));
    assert_eq!(*lane.stage().borrow(), Stage::Ended { released: true });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..2 {
        let why = runtime.block_on(lane.ended()).unwrap_err();
        assert!(why.to_string().contains("Tokio runtime"), "{why}");
    }
}

#[tokio::test]
async fn a_lane_says_why_it_ended_as_often_as_it_is_asked() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    lane.stop();
    for _ in 0..2 {
        lane.ended().await.expect("a clean end");
    }
    let store = std::sync::Arc::new(MemoryStore::new("empty"));
    let mut lane = Lane::start(LaneOptions::new(mesh.space().clone(), mesh.url(), store));
    let first = lane.ended().await.unwrap_err().to_string();
    let again = lane.ended().await.unwrap_err().to_string();
    assert!(again.contains(&first), "{again}");
}
