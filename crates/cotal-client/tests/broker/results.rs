//! A role request gets an answer: its holder gives it, its sender waits for it and can read it
//! later.

use std::time::Duration;

use cotal_client::{
    Endpoint, Outcome, Part, RequestState, ResultError, Role, RoleRequest, Standing, WaitError,
};
use cotal_testkit::{God, Mesh};
use serde_json::json;
use tokio::time::timeout;

use crate::support::{SOON, sender, stopped};

fn role() -> Role {
    Role::parse("reviewer").expect("a role")
}

async fn taken(holder: &Endpoint) -> RoleRequest {
    let mut holder = holder.holder().expect("a role");
    let request = timeout(SOON, holder.next()).await.expect("a request in time");
    let request = request.expect("an open endpoint");
    holder.close().await;
    request
}

async fn agents(mesh: &Mesh) -> (String, Endpoint, Endpoint) {
    let alice = mesh.add_agent("alice", &[], &[], None).await;
    let bob = mesh.add_agent("bob", &[], &[], Some("reviewer")).await;
    let (asker, holder) = (sender(mesh, &alice).await, sender(mesh, &bob).await);
    (alice, asker, holder)
}

#[tokio::test]
async fn an_answer_reaches_whoever_waits_and_can_be_read_later_by_another_process() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (creds, alice, bob) = agents(&mesh).await;
    let asked = alice.ask(&role(), "review this").await.unwrap();
    let (waiter, seq) = (alice.clone(), asked.seq);
    let waiting = tokio::spawn(async move { waiter.wait_for_result(seq, SOON).await });
    let request = taken(&bob).await;
    let answer =
        vec![Part::Text { text: "looks good".into() }, Part::Data { data: json!({"score": 9}) }];
    request.complete(answer.clone()).await.unwrap();
    let outcome = waiting.await.unwrap().unwrap();
    assert_eq!((outcome.outcome, outcome.text().as_str()), (Outcome::Done, "looks good"));
    assert_eq!((outcome.holder.as_ref(), &outcome.parts), (Some(bob.principal()), &answer));
    alice.close().await;

    let later = sender(&mesh, &creds).await;
    let outcome = later.wait_for_result(asked.seq, Duration::ZERO).await.unwrap();
    assert_eq!(outcome.parts, answer);
    assert_eq!(later.requests().await.unwrap()[0].state, Standing::Done);
    stopped(daemon).await;
}

#[tokio::test]
async fn a_failure_is_told_and_nobody_gets_the_request_again() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (_, alice, bob) = agents(&mesh).await;
    let asked = alice.ask(&role(), "impossible").await.unwrap();
    taken(&bob).await.fail("no such branch").await.unwrap();
    let outcome = alice.wait_for_result(asked.seq, SOON).await.unwrap();
    assert_eq!((outcome.outcome, outcome.text().as_str()), (Outcome::Failed, "no such branch"));
    let mut again = bob.holder().unwrap();
    let surprise = timeout(crate::support::QUIET, again.next()).await;
    assert!(surprise.is_err(), "{surprise:?}");
    assert_eq!(alice.requests().await.unwrap()[0].state, Standing::Failed);
    stopped(daemon).await;
}

#[tokio::test]
async fn a_request_that_is_given_back_says_why_and_the_next_answer_counts() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (_, alice, bob) = agents(&mesh).await;
    let asked = alice.ask(&role(), "later").await.unwrap();
    taken(&bob).await.give_back_with("too busy", None).await.unwrap();
    let early = alice.wait_for_result(asked.seq, Duration::ZERO).await.unwrap_err();
    let WaitError::TimedOut { state, .. } = early else { panic!("{early:?}") };
    let RequestState::Taken(row) = *state else { panic!("{state:?}") };
    let given_back = row.result.expect("a reason");
    assert_eq!(given_back.outcome, Outcome::Returned);
    assert_eq!(Part::texts(&given_back.parts), "too busy");
    taken(&bob).await.complete("done now").await.unwrap();
    let outcome = alice.wait_for_result(asked.seq, SOON).await.unwrap();
    assert_eq!(outcome.text(), "done now");
    stopped(daemon).await;
}

/// Only the holder of the newest take may say what came of a request.
#[tokio::test]
async fn an_answer_of_who_does_not_hold_the_request_any_more_is_dropped() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (_, alice, bob) = agents(&mesh).await;
    let carol = mesh.add_agent("carol", &[], &[], Some("reviewer")).await;
    let carol = sender(&mesh, &carol).await;
    let asked = alice.ask(&role(), "work").await.unwrap();
    let slow = taken(&bob).await;
    let seq = slow.seq;
    // Its ack wait runs out.
    let god = God::of(&mesh).await;
    let (stream, consumer) = (mesh.space().task_stream(), mesh.space().svc_consumer(&role()));
    god.hasten(&stream, &consumer).await;
    let fast = taken(&carol).await;
    assert_eq!((fast.seq, fast.delivery), (seq, 2));
    let late = slow.complete("too late").await.unwrap_err();
    assert!(matches!(late, ResultError::NotHeld), "{late:?}");
    fast.complete("in time").await.unwrap();
    let outcome = alice.wait_for_result(asked.seq, SOON).await.unwrap();
    assert_eq!(
        (outcome.text().as_str(), outcome.holder.as_ref()),
        ("in time", Some(carol.principal()))
    );
    stopped(daemon).await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused_and_the_request_is_not_lost() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (_, alice, bob) = agents(&mesh).await;
    let asked = alice.ask(&role(), "work").await.unwrap();
    let refused = taken(&bob).await.complete("x".repeat(40_000)).await.unwrap_err();
    assert!(matches!(refused, ResultError::Control(_)), "{refused:?}");
    let RequestState::Taken(row) = alice.request_status(asked.seq).await.unwrap() else {
        panic!("it is lost");
    };
    assert_eq!((row.gone, row.result), (0, None));
    stopped(daemon).await;
}
