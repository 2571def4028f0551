//! Headers that the broker itself obeys.

use cotal_nats::js::ConsumerAction;
use cotal_nats::{Bucket, Bytes, HeaderMap, NatsError, Subject};
use cotal_testkit::{Mesh, Peer};
use serde_json::json;

fn header(name: &'static str, value: &str) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    map.insert(name, value);
    Some(map)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rollup_wipes_what_agents_may_write_to() {
    let mesh = Mesh::start().await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    let subjects = [
        "$KV.cotal_presence_main.local.mallory",
        "cotal.main.chat.local.mallory.team.backend",
        "cotal.main.inst.local.bob.local.mallory",
        "cotal.main.svc.reviewer.local.mallory",
    ];
    for subject in subjects {
        let body = Bytes::from_static(b"{}");
        let stored = mallory.connection.publish_confirmed(subject, None, body.clone(), None).await;
        stored.expect("a plain message");
        for scope in ["all", "sub"] {
            let headers = header("Nats-Rollup", scope);
            let refused =
                mallory.connection.publish_confirmed(subject, headers, body.clone(), None);
            let refused = refused.await;
            assert!(matches!(refused, Err(NatsError::Refused { .. })), "{subject}: {refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trace_is_sent_where_its_user_may_not_publish() {
    let mesh = Mesh::start().await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    let mut denials = mallory.connection.denials();
    let own = "cotal.main.chat.local.mallory.team.backend";
    for target in ["$KV.cotal_channels_main.=defaults", "cotal.main.chat.local.bob.team.backend"] {
        let headers = header("Nats-Trace-Dest", target);
        mallory.connection.publish(own, headers, Bytes::from_static(b"{}")).await.expect("sent");
        let denial = tokio::time::timeout(std::time::Duration::from_secs(5), denials.recv()).await;
        assert_eq!(denial.expect("a denial").expect("a denial").subject, target);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_squats_anothers_id() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    assert!(bob.join("team.backend").await.durable);
    // The same id in the body, under message ids of its own: before and after the victim's post.
    let squat = |msg_id: &'static str| {
        let body = mallory.body("team.backend", "one", "squatted", &[]).to_string();
        let mallory = &mallory;
        async move { mallory.post_raw("team.backend", body.into(), Some(msg_id)).await }
    };
    squat("m1").await.expect("stored");
    assert!(!alice.post("team.backend", "one", &[]).await.duplicate);
    squat("m2").await.expect("stored");
    let copies = bob.take(2).await;
    let from = |index: usize| {
        let value: serde_json::Value = serde_json::from_slice(&copies[index].payload).unwrap();
        value["from"]["id"].as_str().unwrap().to_owned()
    };
    assert_eq!([from(0), from(1)], ["local.mallory", "local.alice"]);
    bob.receives_nothing().await;
}

/// A row that was written by revision cannot be put back by the broker: the condition is stored
/// with it and does not hold any more.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_row_that_agents_may_read_is_not_replayed_over_its_successor() {
    let mesh = Mesh::of_one_account().await;
    let mallory: Peer = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    let channels = Bucket::new(&mesh.operator().await, "cotal_channels_main");
    let old = channels.create("team.x", r#"{"deliveryClass":"live"}"#.into()).await.expect("a row");
    let new = channels.update("team.x", "{}".into(), old).await.expect("its successor");
    let (stream, subject) = ("KV_cotal_channels_main", "$KV.cotal_channels_main.team.x");
    let config = json!({ "name": "replay", "ack_policy": "none", "filter_subject": subject });
    let action = ConsumerAction::Create;
    let made = mallory.connection.create_consumer(stream, "replay", Some(subject), &config, action);
    made.await.expect("a consumer of the bucket");
    let god = mesh.god().await;
    let mut witness = god.subscribe(subject, None).await.expect("a witness");
    let next = Subject::from("$JS.API.CONSUMER.MSG.NEXT.KV_cotal_channels_main.replay");
    let sent = mallory.connection.publish_with_reply(next, subject, None, "1".into());
    sent.await.expect("sent");
    let replayed = witness.next().await.expect("the old row passes by again");
    assert_eq!(replayed.payload, r#"{"deliveryClass":"live"}"#);
    god.round_trip().await.expect("a round trip");
    let stands = channels.get("team.x").await.expect("the bucket").expect("a row");
    assert_eq!(stands.revision, new, "the old row was written over its successor");
}
