//! The control rails against a real broker (ADM-2, ADM-5, and hostile requests).

use std::time::Duration;

use cotal_nats::{Connection, Subject, Subscription};
use cotal_testkit::{God, Mesh, Peer, Supervisor};
use cotal_wire::control::{Code, Reply};
use cotal_wire::names::{ANYCAST_TAKE, Bucket, DELIVERY, DELIVERY_ADMIN, member_key};
use cotal_wire::rows::{MemberRow, MemberState};
use cotal_wire::{Channel, Principal};
use serde_json::{Value, json};

async fn start() -> (Mesh, cotal_delivery::Lane, Peer) {
    start_on(Mesh::start().await).await
}

async fn start_on(mesh: Mesh) -> (Mesh, cotal_delivery::Lane, Peer) {
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    (mesh, lane, alice)
}

async fn ask_raw(peer: &Peer, body: String) -> Reply {
    let subject = peer.space.ctl(DELIVERY, peer.principal());
    let reply = peer.ask(subject, body.into(), Duration::from_secs(15)).await.expect("a reply");
    serde_json::from_slice(&reply).expect("a reply")
}

fn list_request(id: &str) -> String {
    json!({ "op": "listMemberships", "args": {}, "from": { "id": id, "name": "x" } }).to_string()
}

async fn send(connection: &Connection, subject: &str, reply: &str, body: String) {
    let (subject, reply) = (Subject::from(subject), Subject::from(reply));
    connection.publish_with_reply(subject, reply, None, body.into()).await.expect("sent");
}

/// The broker checks no reply subject, so the daemon does: it replies only below the request's
/// subject.
#[tokio::test(flavor = "multi_thread")]
async fn adm_5_a_reply_target_outside_the_callers_own_subtree_is_dropped() {
    nothing_is_answered_elsewhere(Mesh::of_one_account().await).await;
}

/// If agents have an account of their own, the broker itself keeps replies out of every other
/// account.
#[tokio::test(flavor = "multi_thread")]
async fn adm_5_no_answer_to_an_agent_goes_anywhere_in_the_durable_account() {
    nothing_is_answered_elsewhere(Mesh::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_5_an_agent_of_three_accounts_may_ask_with_any_inbox() {
    let (_mesh, _lane, alice) = start().await;
    let own = alice.space.ctl(DELIVERY, alice.principal());
    let asked = alice.connection.request(own, None, list_request("local.alice").into(), None);
    let reply: Reply =
        serde_json::from_slice(&asked.await.expect("a reply").payload).expect("a reply");
    assert!(reply.ok, "{reply:?}");
}

async fn nothing_is_answered_elsewhere(mesh: Mesh) {
    let (mesh, _lane, alice) = start_on(mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let god = God::of(&mesh).await;
    let own = alice.space.ctl(DELIVERY, alice.principal());
    let inbox = format!("{}.x", alice.connection.inbox_prefix());
    let row = bob.space.kv_subject(Bucket::Members, "team.a/local.bob.x");
    let targets = [
        "cotal.main.ctl.delivery.local.bob.reply.0123456789abcdef".to_owned(),
        "cotal.main.ctl.delivery.local.bob".to_owned(),
        "cotal.main.live.delivery.local.alice.reply.0123456789abcdef".to_owned(),
        "cotal.main.dlv.local.bob.x".to_owned(),
        inbox,
        row,
        own.clone(),
        format!("{own}.reply"),
        format!("{own}.reply.short"),
        format!("{own}.reply.0123456789abcdef.more"),
    ];
    let mut everything = god.connection.subscribe(">", None).await.expect("a subscription");
    for target in &targets {
        send(&alice.connection, &own, target, list_request("local.alice")).await;
        let probe = alice.space.live(DELIVERY, alice.principal());
        let is_its_own = target.starts_with(&format!("{probe}.reply."));
        if !is_its_own {
            send(&alice.connection, &probe, target, "{}".into()).await;
        }
    }
    // Replies to the earlier requests would have come before this one.
    assert!(ask_raw(&alice, list_request("local.alice")).await.ok);
    god.connection.round_trip().await.expect("a broker");
    while let Ok(message) =
        tokio::time::timeout(Duration::from_millis(300), everything.next()).await
    {
        let message = message.expect("a message");
        let answered = targets.iter().any(|target| target.as_str() == message.subject.as_str());
        let is_request = message.reply.is_some();
        assert!(!answered || is_request, "answered on {}", message.subject);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_5_a_body_that_is_from_another_is_refused() {
    let (_mesh, _lane, alice) = start().await;
    for id in ["local.bob", "local.Alice", "", "local.alice "] {
        let refused = ask_raw(&alice, list_request(id)).await;
        assert_eq!((refused.ok, refused.code), (false, Some(Code::Denied)), "{id:?}");
    }
    assert!(ask_raw(&alice, list_request("local.alice")).await.ok);
}

/// Every rail compares the body's sender with its subject: the managers' and the rail of takes too.
#[tokio::test(flavor = "multi_thread")]
async fn adm_5_a_body_that_is_from_another_is_refused_on_every_rail() {
    let (mesh, _lane, alice) = start().await;
    let manager = Supervisor::of(&mesh).await;
    let holder = mesh.peer_with_role("holder", &[], &[], Some("reviewer")).await;
    let god = God::of(&mesh).await;
    let own = (manager.principal.as_str(), holder.principal().as_str());
    let asks = [
        (DELIVERY_ADMIN, own.0, "deliveryStatus", json!({})),
        (ANYCAST_TAKE, own.1, "take", json!({ "seq": 1, "created": "x", "deliveries": 1 })),
    ];
    for (service, caller, op, args) in asks {
        let principal = Principal::parse(caller).expect("a principal");
        let subject = alice.space.ctl(service, &principal);
        for (from, denied) in [("local.alice", true), (caller, false)] {
            let body = json!({ "op": op, "args": args, "from": { "id": from, "name": "x" } });
            let reply = format!("{subject}.reply.0123456789abcdef");
            let mut replies =
                god.connection.subscribe(reply.clone(), None).await.expect("a subscription");
            send(&god.connection, &subject, &reply, body.to_string()).await;
            let heard = tokio::time::timeout(Duration::from_secs(15), replies.next()).await;
            let heard = heard.expect("a reply").expect("a message").payload;
            let heard: Reply = serde_json::from_slice(&heard).expect("a reply");
            let is_denied = heard.code == Some(Code::Denied);
            assert_eq!(is_denied, denied, "{service} for {from}: {heard:?}");
        }
    }
}

/// A request of a principal that no deployment creates is dropped without a reply.
#[tokio::test(flavor = "multi_thread")]
async fn adm_5_a_caller_without_a_real_owner_is_dropped() {
    let (mesh, _lane, alice) = start().await;
    let god = God::of(&mesh).await;
    for caller in ["nobody.eve", "local.a-b"] {
        let subject = format!("cotal.main.ctl.delivery.{caller}");
        let reply = format!("{subject}.reply.0123456789abcdef");
        let replies = god.connection.subscribe(reply.clone(), None).await;
        let mut replies = replies.expect("a subscription");
        send(&god.connection, &subject, &reply, list_request(caller)).await;
        // A reply would have come before this one.
        assert!(ask_raw(&alice, list_request("local.alice")).await.ok);
        let heard = tokio::time::timeout(Duration::from_millis(200), replies.next()).await;
        assert!(heard.is_err(), "{caller} was answered: {heard:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_5_what_is_no_request_is_refused_with_its_reason_and_the_rail_goes_on() {
    let (_mesh, _lane, alice) = start().await;
    let from = json!({ "id": "local.alice", "name": "alice" });
    let request =
        |op: &str, args: Value| json!({ "op": op, "args": args, "from": from }).to_string();
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let padded = json!({ "pad": "x".repeat(256 * 1024) });
    let nested = request("durableJoin", Value::Null).replace("null", &deep(100_000));
    let table = [
        (request("dance", json!({})), Code::UnknownOp),
        (request(&"x".repeat(10_000), json!({})), Code::UnknownOp),
        (request("deliveryStatus", json!({})), Code::UnknownOp),
        (request("listMemberships", padded), Code::Invalid),
        (nested, Code::Invalid),
        (deep(50_000), Code::Invalid),
        (String::new(), Code::Invalid),
        ("{}".to_owned(), Code::Invalid),
        (json!([request("listMemberships", json!({}))]).to_string(), Code::Invalid),
        (request("durableJoin", json!({})), Code::Invalid),
        (request("durableJoin", json!([])), Code::Invalid),
        (request("durableJoin", json!({ "channel": "a..b" })), Code::Invalid),
        (request("durableJoin", json!({ "channel": "x".repeat(5_000) })), Code::Invalid),
        (request("durableLeave", json!({ "channel": "team.a" })), Code::Invalid),
        (request("durableLeave", json!({ "channel": "team.a", "generation": -1 })), Code::Invalid),
    ];
    for (body, code) in table {
        let start: String = body.chars().take(80).collect();
        let reply = ask_raw(&alice, body).await;
        assert_eq!((reply.ok, reply.code), (false, Some(code)), "{start}");
        let why = reply.error.expect("a sentence");
        assert!(!why.is_empty() && why.len() < 1_000, "{why}");
    }
    assert!(ask_raw(&alice, list_request("local.alice")).await.ok);
}

/// Sends control requests at once on the peer's one connection. Every reply goes below the same
/// subject, so the replies are received in the order in which they were sent.
async fn pipeline(peer: &Peer, requests: &[(&str, Value)]) -> Subscription {
    let subject = peer.space.ctl(DELIVERY, peer.principal());
    let replies = peer.connection.subscribe(format!("{subject}.reply.*"), None).await;
    let from = json!({ "id": peer.principal(), "name": "x" });
    for (n, (op, args)) in requests.iter().enumerate() {
        let body = json!({ "op": op, "args": args, "from": from }).to_string();
        send(&peer.connection, &subject, &format!("{subject}.reply.{n:016}"), body).await;
    }
    replies.expect("a subscription")
}

/// The next reply, and the number of its request.
async fn hear(replies: &mut Subscription) -> (usize, Reply) {
    let heard = tokio::time::timeout(Duration::from_secs(30), replies.next()).await;
    let message = heard.expect("a reply in time").expect("a reply");
    let nonce = message.subject.as_str().rsplit('.').next().expect("a nonce");
    let reply = serde_json::from_slice(&message.payload).expect("a reply");
    (nonce.parse().expect("a number"), reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_6_what_one_caller_asks_without_waiting_is_done_in_the_order_in_which_it_asked() {
    let (mesh, _lane, alice) = start().await;
    let god = God::of(&mesh).await;
    for round in 0..5 {
        let channel = format!("team.{round}");
        let join = ("durableJoin", json!({ "channel": channel }));
        let leave = ("durableLeave", json!({ "channel": channel, "generation": 1 }));
        let list = ("listMemberships", json!({}));
        let mut replies = pipeline(&alice, &[join.clone(), leave, join, list]).await;
        let mut data = Vec::new();
        for n in 0..4 {
            let (which, reply) = hear(&mut replies).await;
            assert_eq!((which, reply.ok), (n, true), "{reply:?}");
            data.push(reply.data.expect("data"));
        }
        assert_eq!(data[0], json!({ "durable": true, "generation": 1 }));
        assert_eq!(data[1], json!({ "channel": channel }), "it left what it had joined");
        assert_eq!(data[2], json!({ "durable": true, "generation": 2 }));
        assert_eq!(data[3]["memberships"].as_array().map(Vec::len), Some(round + 1));
        let (row, _) = god.member(&channel, &alice.lifecycle).await.expect("a row");
        assert_eq!((row.generation, row.leave_cursor), (2, None));
    }
}

/// More requests of one caller than the service processes at once: nobody else waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_with_many_requests_holds_nobody_else_up() {
    let (mesh, _lane, alice) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let joins = (0..400).map(|n| ("durableJoin", json!({ "channel": format!("team.{n}") })));
    let joins: Vec<_> = joins.collect();
    let mut replies = pipeline(&alice, &joins).await;
    // The broker has received all of them, so they come before later requests.
    alice.connection.round_trip().await.expect("a broker");
    assert_eq!(hear(&mut replies).await.0, 0);
    bob.join("team.x").await;
    let mut passed = 1;
    while tokio::time::timeout(Duration::ZERO, replies.next()).await.is_ok() {
        passed += 1;
    }
    assert!(passed < 200, "it waited until {passed} of another's 400 were done");
    for n in passed..400 {
        let (which, reply) = hear(&mut replies).await;
        assert_eq!((which, reply.ok), (n, true), "{reply:?}");
    }
}

/// The caller fails at once and learns the size, instead of waiting for a reply that no broker
/// would accept.
#[tokio::test(flavor = "multi_thread")]
async fn adm_2_a_reply_over_max_payload_becomes_a_refusal_with_its_size() {
    let (mesh, _lane, alice) = start().await;
    let god = God::of(&mesh).await;
    let kv = god.kv(Bucket::Members);
    let rows = 300;
    for n in 0..rows {
        let channel = format!("team.{n:03}{}", "x".repeat(3_993));
        let row = MemberRow {
            channel: Channel::parse(&channel).expect("a channel"),
            owner: alice.principal().clone(),
            lifecycle_uid: alice.lifecycle.uid,
            state: MemberState::DurableActive,
            join_cursor: 0,
            leave_cursor: None,
            generation: 1,
            activated: true,
            writer_identity: "test".into(),
            updated_at: 1,
        };
        let value = serde_json::to_vec(&row).expect("JSON");
        kv.put(&member_key(&row.channel, &alice.lifecycle), value.into()).await.expect("a row");
    }
    let refused = ask_raw(&alice, list_request("local.alice")).await;
    assert_eq!((refused.ok, refused.code), (false, Some(Code::TooLarge)));
    let item = json!({ "channel": "x".repeat(4_001), "generation": 1, "activated": true });
    let data = 19 + rows * (item.to_string().len() + 1);
    let why = refused.error.expect("a sentence");
    let sizes: Vec<usize> = why.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let close = |size: &usize| size.abs_diff(data) < 64;
    assert!(sizes.iter().any(close), "about {data} bytes: {why}");
}
