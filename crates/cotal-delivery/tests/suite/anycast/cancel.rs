//! Requests of a sender about its own role requests; nobody else learns about them.

use cotal_manager::{AgentName, Agents};
use cotal_testkit::Peer;
use cotal_wire::control::Code;
use cotal_wire::names::DELIVERY;
use cotal_wire::rows::RequestState;
use serde_json::{Value, json};

use super::support::{ROLE, Scene, ask, cancel, pull, reason, state, status, take};

async fn list(sender: &Peer) -> Vec<Value> {
    let reply = sender.control(DELIVERY, "anycastList", json!({})).await.expect("a reply");
    let data = reply.data.expect("data");
    assert_eq!(data["more"], false);
    data["requests"].as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_4_a_sender_follows_its_request_by_number() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    assert_eq!(state(&scene.alice, seq).await, "queued");
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    let reply = status(&scene.alice, seq).await.data.expect("data");
    assert_eq!((&reply["state"], &reply["holder"]), (&json!("taken"), &json!("local.bob")));
    assert_eq!((&reply["seq"], &reply["delivery"]), (&json!(seq), &json!(1)));
    let queued = ask(&scene.alice, "more work").await;
    let back = ask(&scene.alice, "never mind").await;
    assert!(cancel(&scene.alice, back).await.ok);
    copy.ack_confirmed().await.expect("an ack");
    let states: Vec<_> =
        list(&scene.alice).await.iter().map(|r| (r["seq"].clone(), r["state"].clone())).collect();
    let want = [(seq, "done"), (queued, "queued"), (back, "cancelled")];
    assert_eq!(states, want.map(|(seq, state)| (json!(seq), json!(state))));
    assert!(list(&scene.bob).await.is_empty(), "a holder has sent nothing");
}

/// Another sender's request, a number that was never given out, and absurd numbers get the same
/// answer.
#[tokio::test(flavor = "multi_thread")]
async fn any_4_anothers_request_answers_like_one_that_never_existed() {
    let scene = Scene::new().await;
    let queued = ask(&scene.alice, "queued").await;
    let taken = ask(&scene.alice, "taken").await;
    let back = ask(&scene.alice, "back").await;
    assert!(cancel(&scene.alice, back).await.ok);
    let created = scene.created().await;
    assert!(take(&scene.bob, taken, &created, 1).await.ok);
    let never = (status(&scene.carol, 77).await, cancel(&scene.carol, 77).await);
    assert_eq!(never.0.data, Some(json!({ "state": "unknown" })));
    assert_eq!((never.1.ok, never.1.code), (false, Some(Code::Invalid)));
    for seq in [queued, taken, back, 0, 78, u64::MAX] {
        assert_eq!(status(&scene.carol, seq).await, never.0, "{seq}");
        let mut refused = cancel(&scene.carol, seq).await;
        refused.error = refused.error.map(|why| why.replace(&seq.to_string(), "77"));
        assert_eq!(refused, never.1, "{seq}");
    }
    assert!(scene.stands(queued).await && scene.stands(taken).await);
    assert!(scene.god.request(0).await.is_none() && scene.god.request(queued).await.is_none());
    for odd in [json!({}), json!({ "seq": -1 }), json!({ "seq": 1.5 }), json!({ "seq": "1" })] {
        let refused = scene.carol.control(DELIVERY, "anycastCancel", odd.clone()).await;
        assert_eq!(refused.expect("a reply").code, Some(Code::Invalid), "{odd}");
    }
}

/// A successor of the same name has sent nothing, and is told nothing.
#[tokio::test(flavor = "multi_thread")]
async fn any_4_a_successor_of_the_same_name_sees_and_cancels_nothing() {
    let scene = Scene::new().await;
    let queued = ask(&scene.alice, "queued").await;
    let taken = ask(&scene.alice, "taken").await;
    let created = scene.created().await;
    assert!(take(&scene.bob, taken, &created, 1).await.ok);
    scene.told(1).await;
    let address = scene.mesh.address();
    let agents = Agents::connect(scene.mesh.root(), scene.mesh.space(), &address);
    let name = AgentName::parse("alice").expect("a name");
    agents.await.expect("the supervisor").retire(&name).await.expect("a retirement");
    let alice = scene.mesh.peer("alice", &[], &[]).await;
    for seq in [queued, taken] {
        assert_eq!(state(&alice, seq).await, "unknown");
        assert_eq!(cancel(&alice, seq).await.code, Some(Code::Invalid));
    }
    assert!(scene.stands(queued).await);
    assert!(list(&alice).await.is_empty());
    // A take of the predecessor's request does not concern the successor.
    assert!(take(&scene.bob, queued, &created, 1).await.ok);
    let own = ask(&alice, "own").await;
    assert!(take(&scene.bob, own, &created, 1).await.ok);
    assert_eq!(state(&alice, own).await, "taken");
    let told = scene.told(2).await;
    assert_eq!(told[1].1["seq"], json!(own), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_5_a_cancelled_request_is_deleted_and_a_buffered_copy_is_refused() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "never mind").await;
    let copy = pull(&scene.bob).await;
    assert_eq!(cancel(&scene.alice, seq).await.data, Some(json!({ "cancelled": true })));
    assert!(!scene.stands(seq).await);
    assert_eq!(scene.row(seq).await.state, RequestState::Cancelled);
    assert_eq!(reason(&scene.take(&scene.bob, &copy).await), "cancelled");
    assert_eq!(state(&scene.alice, seq).await, "cancelled");
    assert!(cancel(&scene.alice, seq).await.ok, "twice is once");
    assert!(scene.notices().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn any_5_a_cancel_after_a_take_names_the_holder_and_deletes_nothing() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    for standing in [true, false] {
        let late = cancel(&scene.alice, seq).await;
        assert_eq!(late.code, Some(Code::Conflict));
        assert_eq!(late.data, Some(json!({ "holder": "local.bob" })));
        assert_eq!(scene.stands(seq).await, standing);
        if standing {
            scene.god.connection.delete_message("TASK_main", seq).await.expect("a worked one");
        }
    }
    assert_eq!(scene.row(seq).await.role.as_str(), ROLE);
}
