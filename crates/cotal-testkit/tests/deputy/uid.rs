//! A lifecycle uid is a capability: no agent ever sees another's.

use std::fmt::Write as _;

use cotal_nats::{WatchEvent, WatchOptions};
use cotal_testkit::{Mesh, Peer};
use serde_json::{Value, json};

/// Everything that `peer` can list, read and be told.
async fn all_that_is_visible(peer: &Peer) -> String {
    let mut seen = String::new();
    let connection = &peer.connection;
    for stream in
        ["CHAT_main", "KV_cotal_presence_main", "KV_cotal_channels_main", "KV_cotal_delivery_main"]
    {
        let subject = format!("$JS.API.STREAM.INFO.{stream}");
        let body = json!({ "subjects_filter": ">", "deleted_details": true });
        let info: Value = connection.js_call(&subject, &body, None).await.expect("stream info");
        writeln!(seen, "{info}").expect("text");
    }
    for bucket in ["cotal_presence_main", "cotal_channels_main"] {
        let kv = cotal_nats::Bucket::new(connection, bucket);
        let mut watch = kv.watch(WatchOptions::default()).await.expect("a watch");
        loop {
            match watch.next().await.expect("a row") {
                WatchEvent::InitialDone => break,
                WatchEvent::Put { key, value, .. } => {
                    writeln!(seen, "{key} {}", String::from_utf8_lossy(&value)).expect("text");
                }
                _ => {}
            }
        }
    }
    let lease = json!({ "last_by_subj": "$KV.cotal_delivery_main.lease.0" });
    let get = "$JS.API.STREAM.MSG.GET.KV_cotal_delivery_main";
    let answer: Value = connection.js_call(get, &lease, None).await.expect("the lease");
    let encoded = answer["message"]["data"].as_str().expect("data");
    let lease = data_encoding::BASE64.decode(encoded.as_bytes()).expect("base64");
    writeln!(seen, "{}", String::from_utf8_lossy(&lease)).expect("text");
    for (op, args) in [
        ("listMemberships", json!({})),
        ("durableJoin", json!({ "channel": "team.backend" })),
        ("durableJoin", json!({ "channel": "secret" })),
        ("durableJoin", json!({ "channel": "team.backend", "lifecycleUid": "0".repeat(26) })),
        ("nothing", json!({})),
    ] {
        let reply = peer.control("delivery", op, args).await.expect("an answer");
        writeln!(seen, "{reply:?}").expect("text");
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn no_agent_sees_anothers_uid() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    for peer in [&alice, &bob, &mallory] {
        peer.claim_name(peer.principal().actor()).await;
        assert!(peer.join("team.backend").await.durable);
    }
    let mut live =
        mallory.connection.subscribe("cotal.main.chat.*.*.team.>", None).await.expect("live");
    alice.post("team.backend", "one", &["bob", "mallory"]).await;
    bob.post("team.backend", "two", &["alice"]).await;
    let mut seen = String::new();
    for _ in 0..2 {
        writeln!(seen, "{:?}", live.next().await.expect("a post")).expect("text");
    }
    for copy in mallory.take(2).await {
        writeln!(seen, "{copy:?}").expect("text");
    }
    seen += &all_that_is_visible(&mallory).await;
    let own = mallory.lifecycle.uid.to_string();
    assert!(seen.contains(&own), "a copy names its own member, so the search would find a uid");
    for other in [&alice, &bob] {
        let uid = other.lifecycle.uid.to_string();
        assert!(!seen.contains(&uid), "the uid of {} is visible:\n{seen}", other.principal());
    }
}
