//! An agent plays the deputy (`wire.md` §8, "Reply subjects are not checked by the broker").
//!
//! `volley.rs` tries a space of three accounts, where nothing comes of it. The rest tries what the
//! daemon makes of it in a space of one account, where it cannot be prevented.
//!
//! Whatever it makes the broker publish over rows, into streams and onto rails: nothing is granted,
//! nobody's membership changes, and deliveries go on.

mod headers;
mod shots;
mod uid;
mod volley;

use cotal_nats::{Get, Operation, PullConsumer, PullOptions, Subject};
use cotal_testkit::{Mesh, Peer, eventually, serving};
use cotal_wire::rows::{DeliveryClass, LeaseRow};
use serde_json::{Value, json};
use shots::Deputy;
use tokio::time::{Duration, timeout};

/// What the deputy aims at: a subject, and the body that would serve it best there.
fn targets(mallory: &Peer) -> Vec<(String, Value)> {
    let uid = mallory.lifecycle.uid.to_string();
    let member = |channel: &str| {
        json!({
            "channel": channel, "owner": "local.mallory", "lifecycleUid": uid, "joinCursor": 0,
            "state": "durable-active", "generation": 7, "activated": true, "writerIdentity": "x",
            "updatedAt": 0,
        })
    };
    let acl = json!({ "allowSubscribe": [">"], "revision": 9, "updatedAt": 0, "name": "alice" });
    let lease = json!({ "holder": "local.mallory", "incarnation": "x", "since": 0, "ready": true });
    let post = json!({
        "id": "forged", "ts": 1, "space": "main", "channel": "team.backend",
        "from": { "id": "local.alice", "name": "alice" }, "parts": [],
    });
    let leave = json!({
        "op": "durableLeave", "args": { "channel": "team.backend", "generation": 1 },
        "from": { "id": "local.bob", "name": "bob" },
    });
    let live = json!({ "deliveryClass": "live" });
    let row = |bucket: &str, key: &str| format!("$KV.cotal_{bucket}_main.{key}");
    let subject = |tail: &str| format!("cotal.main.{tail}");
    vec![
        (row("acl", &format!("local.mallory.{uid}")), acl),
        (row("members", &format!("team.backend/local.mallory.{uid}")), member("team.backend")),
        (row("members", &format!("secret/local.mallory.{uid}")), member("secret")),
        (row("channels", "=defaults"), live.clone()),
        (row("channels", "team.backend"), live),
        (row("channels", "team.live"), json!({ "deliveryClass": "durable" })),
        (row("delivery", "lease.0"), lease),
        (row("anycast", "req.1"), json!({})),
        (row("dead", "e.1"), json!({})),
        (row("manager", "renewal"), json!({})),
        (row("membership", "=feed"), json!({})),
        (row("presence", "local.bob"), json!({})),
        (
            subject(&format!("dinbox.local.mallory.{uid}")),
            json!({ "msg": post, "channel": "secret" }),
        ),
        (subject(&format!("dlv.local.mallory.{uid}")), post.clone()),
        (subject("dinbox.local.bob.00000000000000000000000000"), post.clone()),
        (subject("dlv.local.bob.00000000000000000000000000"), post.clone()),
        (subject("inst.local.bob.local.alice"), post.clone()),
        (subject("svc.reviewer.local.alice"), post.clone()),
        (subject("chat.local.alice.team.backend"), post),
        (subject("ept.e.i.1.t.schedule"), json!({})),
        (subject("ept.e.i.1.t.armed"), json!({})),
        (subject("ept.e.i.1.t.fire"), json!({})),
        (subject("ctl.delivery.local.bob"), leave.clone()),
        (subject("ctl.delivery-admin.local.bob"), leave.clone()),
        (subject("ctl.anycast-take.local.bob"), leave.clone()),
        (subject("live.delivery.local.bob"), leave),
        (subject("ctl.delivery.local.bob.reply.0123456789abcdef"), json!({ "ok": true })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_1_a_deputy_grants_itself_nothing_and_takes_nothing_from_others() {
    let mesh = Mesh::of_one_account().await;
    let mut lane = mesh.lane().await;
    mesh.set_class("team.live", DeliveryClass::Live).await;
    mesh.set_class("team.backend", DeliveryClass::Durable).await;
    let alice = mesh.peer("alice", &["team.>", "secret"], &["team.>", "secret"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    for peer in [&bob, &mallory] {
        assert!(peer.join("team.backend").await.durable);
    }
    mallory.claim_name("mallory").await;
    let deputy = Deputy::enter(&mesh, mallory).await;
    let targets = targets(&deputy.peer);
    for (target, body) in &targets {
        deputy.pub_ack(target).await;
        deputy.api_answer(target).await;
        deputy.no_messages(target).await;
        deputy.message(target, body).await;
    }
    futures_util::future::join_all(targets.iter().map(|(target, _)| deputy.push(target))).await;

    all_is_right(&alice, &bob, &deputy, "after").await;
    lease_is_repaired(&deputy).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    // A daemon that knows nothing yet finds the last valid rows in the buckets' history.
    let _lane = serving(cotal_delivery::Lane::start(mesh.lane_options())).await;
    all_is_right(&alice, &bob, &deputy, "restarted").await;
}

/// Posts reach exactly whom they should.
async fn all_is_right(alice: &Peer, bob: &Peer, deputy: &Deputy, tag: &str) {
    let id = |channel: &str| format!("{tag}-{channel}");
    for channel in ["secret", "team.live", "team.backend"] {
        alice.post(channel, &id(channel), &[]).await;
    }
    let wanted = [id("team.backend")];
    assert_eq!(bob.receive(1).await, wanted);
    assert_eq!(authorized(deputy).await, wanted);
    bob.receives_nothing().await;
}

/// What the deputy's own delivery consumer gives beside what it shot there itself.
async fn authorized(deputy: &Deputy) -> Vec<String> {
    let mut pull = deputy.peer.deliveries().await;
    let mut ids = Vec::new();
    loop {
        let within = Duration::from_secs(if ids.is_empty() { 30 } else { 1 });
        let batch = pull.next_batch(100, within).await.expect("a pull");
        if batch.is_empty() {
            pull.close().await;
            return ids;
        }
        for delivery in batch {
            // The daemon's copies carry the post's sequence; the broker's answers do not.
            let is_copy = delivery.header("Cotal-Seq").is_some();
            let value = serde_json::from_slice::<Value>(&delivery.payload).unwrap_or_default();
            if is_copy {
                ids.push(value["id"].as_str().expect("an id").to_owned());
            }
            delivery.ack_confirmed().await.expect("an ack");
        }
    }
}

async fn lease_is_repaired(deputy: &Deputy) {
    let look = async || {
        let get = Get::LastBySubject("$KV.cotal_delivery_main.lease.0");
        let row = deputy.god.connection.get_message("KV_cotal_delivery_main", get).await;
        row.expect("the bucket").map(|row| LeaseRow::parse(&row.payload).is_ok())
    };
    eventually("a valid lease row", look, |valid| *valid == Some(true)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_5_no_reply_goes_outside_the_callers_own_subtree() {
    let mesh = Mesh::of_one_account().await;
    let _lane = mesh.lane().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    let mut heard = bob
        .connection
        .subscribe("cotal.main.ctl.delivery.local.bob.reply.*", None)
        .await
        .expect("an own subtree");
    let ask = "cotal.main.ctl.delivery.local.mallory";
    let body = json!({
        "op": "listMemberships", "args": {}, "from": { "id": "local.mallory", "name": "mallory" },
    });
    let body = body.to_string();
    for reply in [
        "cotal.main.ctl.delivery.local.bob.reply.0123456789abcdef",
        "$KV.cotal_members_main.x",
        "cotal.main.ctl.delivery.local.mallory.reply.short",
        "cotal.main.ctl.delivery.local.mallory",
    ] {
        let (ask, reply) = (Subject::from(ask), Subject::from(reply));
        let sent = mallory.connection.publish_with_reply(ask, reply, None, body.clone().into());
        sent.await.expect("sent");
    }
    // The rail answers in order of arrival or in parallel, so a whole later exchange bounds the
    // wait.
    let answer =
        mallory.control("delivery", "listMemberships", json!({})).await.expect("an answer");
    assert!(answer.ok);
    assert!(timeout(Duration::from_millis(500), heard.next()).await.is_err(), "bob was answered");
    let forged = json!({
        "op": "listMemberships", "args": {}, "from": { "id": "local.bob", "name": "bob" },
    });
    let raw = mallory.ask(ask.to_owned(), forged.to_string().into(), Duration::from_secs(5)).await;
    let reply: Value = serde_json::from_slice(&raw.expect("an answer")).expect("JSON");
    assert_eq!((&reply["ok"], &reply["code"]), (&json!(false), &json!("denied")));
}

/// An empty body is an acknowledgement, so neither a reply nor a heartbeat may be aimed at one.
#[tokio::test(flavor = "multi_thread")]
async fn no_reply_subject_acknowledges_for_the_daemon() {
    let mesh = Mesh::of_one_account().await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    let deputy = Deputy::enter(&mesh, mallory).await;
    let god = deputy.god.connection.clone();
    deputy.peer.post("team.x", "one", &[]).await;
    let opened = PullConsumer::open(&god, "CHAT_main", "fanout", PullOptions::default()).await;
    let mut pull = opened.expect("a pull");
    let taken = pull.next_batch(1, Duration::from_secs(10)).await.expect("a pull");
    assert_eq!(taken.len(), 1);
    let ack = "$JS.ACK.CHAT_main.fanout.1.1.1.1.0";
    let mut denials = deputy.connection().denials();
    for call in [deputy.dm_next().as_str(), "$JS.API.INFO"] {
        deputy.shoot(call, ack, json!({ "batch": 1, "no_wait": true }).to_string().into()).await;
        let denial = timeout(Duration::from_secs(5), denials.recv()).await.expect("a denial");
        let denial = denial.expect("a denial");
        assert_eq!((denial.operation, denial.subject.as_str()), (Operation::Reply, ack));
    }
    let made = deputy.push_consumer(ack).await;
    // Two heartbeats and a half: the broker offers no event for what it does not send.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let info = god.consumer_info("CHAT_main", "fanout").await.expect("the fan-out");
    assert_eq!(info.num_ack_pending, 1, "acknowledged by another than the daemon: {made:?}");
}
