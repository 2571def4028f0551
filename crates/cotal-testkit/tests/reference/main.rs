//! A space as the TypeScript reference provisions it: none of the write paths that this project
//! adds where the broker offers them, other defaults, consumers already there. The daemon serves
//! it.
//!
//! `space.json` holds every stream, bucket and consumer in the form in which nats.js sends it.

use cotal_nats::Connection;
use cotal_testkit::{God, Mesh};
use cotal_wire::rows::DeliveryClass;
use serde_json::{Value, json};

fn fixture() -> Value {
    serde_json::from_str(include_str!("space.json")).expect("JSON")
}

/// Makes the space anew, as the reference would have it.
async fn reference() -> (Mesh, God) {
    let mesh = Mesh::of_one_account().await;
    let god = God::of(&mesh).await;
    let space = fixture();
    for config in space["streams"].as_array().expect("streams") {
        let name = config["name"].as_str().expect("a name");
        god.connection.delete_stream(name).await.expect("a stream to replace");
        god.connection.create_stream(name, config).await.expect("the reference's stream");
    }
    for (stream, consumers) in space["consumers"].as_object().expect("consumers") {
        for config in consumers.as_array().expect("consumers") {
            durable(&god.connection, stream, config).await;
        }
    }
    let defaults = json!({ "deliveryClass": "durable" }).to_string();
    let channels = god.kv(cotal_wire::names::Bucket::Channels);
    channels.create("=defaults", defaults.into()).await.expect("the defaults");
    (mesh, god)
}

/// The older of the two ways to make a durable consumer, which the reference's client still speaks.
async fn durable(god: &Connection, stream: &str, config: &Value) {
    let name = config["durable_name"].as_str().expect("a name");
    let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
    let body = json!({ "stream_name": stream, "config": config });
    god.js_call::<Value>(&subject, &body, None).await.expect("the reference's consumer");
}

async fn configs(god: &God) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for config in fixture()["streams"].as_array().expect("streams") {
        let name = config["name"].as_str().expect("a name").to_owned();
        let info = god.connection.stream_info(&name).await.expect("a stream");
        assert!(!info.config.allow_batched, "{name}: a reference space has no fast ingest");
        all.push((name, serde_json::to_value(&info.config).expect("JSON")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_of_the_reference_is_served_as_it_is() {
    let (mesh, god) = reference().await;
    let before = (configs(&god).await, god.consumers().await);
    let mut lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>", "ops"], &["team.>", "ops"]).await;
    let bob = mesh.peer("bob", &["team.>", "ops"], &[]).await;
    mesh.set_class("ops", DeliveryClass::Live).await;

    let joined = bob.join("team.backend").await;
    assert!(joined.durable);
    let wanted: Vec<_> = (0..300).map(|n| format!("m{n}")).collect();
    for id in &wanted {
        alice.post("team.backend", id, &[]).await;
    }
    assert_eq!(bob.receive(wanted.len()).await, wanted);
    alice.post("ops", "unmentioned", &[]).await;
    alice.post("ops", "mentioned", &["bob"]).await;
    assert_eq!(bob.receive(1).await, ["mentioned"]);

    bob.leave("team.backend", joined.generation).await;
    alice.post("team.backend", "gap", &[]).await;
    assert_eq!(bob.join("team.backend").await.generation, joined.generation + 1);
    alice.post("team.backend", "back", &[]).await;
    assert_eq!(bob.receive(1).await, ["back"]);
    bob.receives_nothing().await;

    lane.stop();
    lane.ended().await.expect("a clean end");
    assert_eq!(configs(&god).await, before.0, "the daemon changes no stream");
    assert!(god.consumers().await.is_superset(&before.1), "and takes no consumer away");
    let fanout = god.connection.consumer_info("CHAT_main", "fanout").await.expect("the fan-out");
    let floor = god.connection.last_seq("CHAT_main").await.expect("a sequence");
    assert_eq!(fanout.ack_floor.stream_seq, floor, "every post was processed");
}
