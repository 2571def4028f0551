//! Requests that no honest client sends.

use std::time::Duration;

use cotal_nats::NatsError;
use cotal_testkit::{Supervisor, eventually};
use cotal_wire::Role;
use cotal_wire::control::Code;
use cotal_wire::names::{ANYCAST_TAKE, Bucket, DELIVERY, request_key};
use serde_json::{Value, json};

use super::support::{Burst, ROLE, SOON, Scene, ask, ask_role, cancel, pull, reason, state, take};

#[tokio::test(flavor = "multi_thread")]
async fn any_1_a_take_needs_the_credential_of_its_role() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    let created = scene.created().await;
    // An agent without a role is refused by the broker itself.
    let subject = scene.alice.space.ctl(ANYCAST_TAKE, scene.alice.principal());
    let asked = scene.alice.connection.request(subject, None, "{}".into(), None).await;
    assert!(matches!(asked, Err(NatsError::Denied { .. })), "{asked:?}");
    // One with another role is refused by the daemon, whatever the body claims.
    let cook = scene.mesh.peer_with_role("eve", &[], &[], Some("cook")).await;
    for delivery in [1, 2, u64::MAX] {
        let refused = take(&cook, seq, &created, delivery).await;
        assert_eq!((reason(&refused), refused.code), ("not-yours".into(), Some(Code::Denied)));
    }
    assert!(scene.god.request(seq).await.is_none());
    let dish = ask_role(&scene.alice, "cook", "soup").await.expect("a stored request");
    assert!(take(&cook, dish, &created, 1).await.ok);
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok, "the request is still its role's");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_2_wild_takes_are_refused_and_leave_nothing() {
    let scene = Scene::new().await;
    let created = scene.created().await;
    for seq in [0, 1, 99, u64::MAX] {
        assert_eq!(reason(&take(&scene.bob, seq, &created, 1).await), "gone", "{seq}");
        assert!(scene.god.request(seq).await.is_none());
    }
    for args in [
        json!({}),
        json!({ "seq": 1, "streamCreated": created }),
        json!({ "seq": -1, "streamCreated": created, "delivery": 1 }),
        json!({ "seq": 1, "streamCreated": 5, "delivery": 1 }),
        json!({ "seq": 1e30, "streamCreated": created, "delivery": 1 }),
    ] {
        let refused = scene.bob.control(ANYCAST_TAKE, "take", args.clone()).await;
        assert_eq!(refused.expect("a reply").code, Some(Code::Invalid), "{args}");
    }
    let refused = scene.bob.control(ANYCAST_TAKE, "dance", json!({})).await.expect("a reply");
    assert_eq!(refused.code, Some(Code::UnknownOp));
}

#[tokio::test(flavor = "multi_thread")]
async fn any_2_a_request_as_large_as_the_broker_takes_is_taken_and_cancelled() {
    let scene = Scene::new().await;
    let role = Role::parse(ROLE).expect("a role");
    let subject = scene.alice.space.svc(&role, scene.alice.principal());
    let body = vec![b'x'; scene.alice.connection.max_payload()];
    let mut seqs = Vec::new();
    for _ in 0..2 {
        let sent = scene.alice.connection.publish_confirmed(
            subject.clone(),
            None,
            body.clone().into(),
            None,
        );
        seqs.push(sent.await.expect("a stored request").seq);
    }
    let created = scene.created().await;
    assert!(take(&scene.bob, seqs[0], &created, 1).await.ok);
    assert!(cancel(&scene.alice, seqs[1]).await.ok);
    assert!(!scene.stands(seqs[1]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_4_ten_thousand_cancels_of_foreign_requests_change_nothing() {
    const MANY: u64 = 10_000;
    let scene = Scene::new().await;
    let mut seqs = Vec::new();
    for n in 0..10 {
        seqs.push(ask(&scene.alice, &format!("m{n}")).await);
    }
    let mut burst = Burst::new(&scene.carol, DELIVERY).await;
    let mut answered = 0;
    // The daemon processes 64 at once; this bounds how many wait for it.
    for n in 0..MANY {
        burst.ask(n, "anycastCancel", json!({ "seq": seqs[(n % 10) as usize] })).await;
        while n - answered >= 256 {
            assert!(is_unknown(burst.answer(SOON).await));
            answered += 1;
        }
    }
    while answered < MANY {
        assert!(is_unknown(burst.answer(SOON).await));
        answered += 1;
    }
    for seq in seqs {
        assert!(scene.stands(seq).await && scene.god.request(seq).await.is_none());
        assert_eq!(state(&scene.alice, seq).await, "queued");
    }
}

fn is_unknown(answer: Option<(u64, cotal_wire::control::Reply)>) -> bool {
    let (_, reply) = answer.expect("an answer");
    !reply.ok && reply.data == Some(json!({ "state": "unknown" }))
}

/// More garbage over a taken request than the history keeps: the take stays in force, and the row
/// is written back.
#[tokio::test(flavor = "multi_thread")]
async fn any_2_a_garbled_record_is_no_record_and_no_absence() {
    let mut scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    let (row, _) = scene.god.request(seq).await.expect("a record");
    let kv = scene.god.kv(Bucket::Anycast);
    let foreign = serde_json::to_string(&cotal_wire::rows::RequestRow { seq: 99, ..row.clone() });
    let garbage = ["", "{}", r#"{"stream":"TASK_main","seq":1}"#, &foreign.expect("JSON")];
    for round in 0..12 {
        let value = garbage[round % garbage.len()].to_owned();
        let garbled = kv.put(&request_key(seq), value.into()).await.expect("garbage");
        assert_eq!(state(&scene.alice, seq).await, "taken");
        let refused = cancel(&scene.alice, seq).await;
        assert_eq!(refused.code, Some(Code::Conflict), "{refused:?}");
        let back = |seen: &Option<(_, u64)>| seen.as_ref().is_some_and(|(_, at)| *at > garbled);
        let (now, _) =
            eventually("the row is back", || scene.god.request(seq), back).await.expect("a row");
        assert_eq!(now, row);
    }
    assert!(scene.garbled().await >= 12);

    // While no daemon runs, only the history has the row.
    scene.kill().await;
    for _ in 0..3 {
        kv.put(&request_key(seq), "[]".into()).await.expect("garbage");
    }
    kv.put(&request_key(55), "garbage where nothing was".into()).await.expect("garbage");
    scene.serve().await;
    assert_eq!(state(&scene.alice, seq).await, "taken");
    eventually("the row is back", || scene.god.request(seq), Option::is_some).await;
    assert_eq!(scene.row(seq).await, row);
    let gone = async || kv.get(&request_key(55)).await.expect("KV").expect("a marker");
    eventually("nothing stands there", gone, |entry| entry.live().is_none()).await;
    assert_eq!(scene.notices().await.len(), 1, "nobody is told anew");
}

/// A request that nobody takes, and one that every holder returns, are listed with their age.
#[tokio::test(flavor = "multi_thread")]
async fn what_stays_on_the_queue_is_listed_with_its_age() {
    let scene = Scene::new().await;
    let worked = ask(&scene.alice, "given back").await;
    for delivery in 1..=3 {
        let copy = pull(&scene.bob).await;
        assert_eq!((copy.stream_seq, copy.delivered), (worked, delivery));
        assert!(scene.take(&scene.bob, &copy).await.ok);
        copy.nak(None).await.expect("given back");
    }
    let ignored = ask_role(&scene.alice, "nobody", "ignored").await.expect("stored");
    let manager = Supervisor::of(&scene.mesh).await;
    let reply = manager.request("standingRequests", json!({})).await.expect("an answer");
    let data = reply.data.expect("data");
    let shown: Vec<_> = data["requests"].as_array().expect("a list").iter().collect();
    let what = |of: &Value| (of["seq"].clone(), of["state"].clone(), of["delivery"].clone());
    assert_eq!(what(shown[0]), (json!(worked), json!("taken"), json!(3)));
    assert_eq!(what(shown[1]), (json!(ignored), json!("queued"), Value::Null));
    let now = cotal_manager::clock::unix_millis();
    for request in shown {
        let age = now - request["since"].as_i64().expect("an instant");
        assert!((0..Duration::from_secs(600).as_millis() as i64).contains(&age), "{age}");
    }
}
