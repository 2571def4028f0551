//! The fan-out writer against a real broker (FAN-1…7, `wire.md` §4 and §5).

use std::time::Duration;

use cotal_nats::Bytes;
use cotal_testkit::{God, Mesh, Peer, Supervisor};
use cotal_wire::Channel;
use cotal_wire::names::{Bucket, DEFAULTS_KEY, DELIVERY, FANOUT, READER};
use cotal_wire::rows::DeliveryClass;
use serde_json::{Value, json};

const TEAM: &str = "team.backend";
const OPS: &str = "ops.live";

fn message_id(message: &cotal_nats::StoredMessage) -> Option<&str> {
    cotal_nats::headers::get(message.headers.as_ref(), cotal_nats::headers::MSG_ID)
}

/// Waits until every delivered post and entry is processed.
async fn settled(god: &God) {
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
}

/// A mesh with a lane, and alice, who may post everywhere.
async fn serving() -> (Mesh, cotal_delivery::Lane, Peer) {
    let mesh = Mesh::start().await;
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &[">"], &[">"]).await;
    (mesh, lane, alice)
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_1_a_durable_post_reaches_every_member_whose_interval_holds_it() {
    let (mesh, mut lane, alice) = serving().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;

    // On a durable channel a mention gives no copy: only a membership does.
    alice.post(TEAM, "before", &["bob", "carol"]).await;
    assert!(bob.join(TEAM).await.durable);
    assert!(alice.join(TEAM).await.durable);
    alice.post(TEAM, "one", &[]).await;
    let generation = carol.join(TEAM).await.generation;
    alice.post(TEAM, "two", &[]).await;
    carol.leave(TEAM, generation).await;
    alice.post(TEAM, "three", &[]).await;

    assert_eq!(bob.receive(3).await, ["one", "two", "three"]);
    assert_eq!(carol.receive(1).await, ["two"]);
    bob.receives_nothing().await;
    carol.receives_nothing().await;
    alice.receives_nothing().await;
    lane.stop();
    lane.ended().await.expect("a clean end");
}

/// `wire.md` §5: the entry, both message ids, the sequence header and the unchanged bytes.
#[tokio::test(flavor = "multi_thread")]
async fn fan_1_a_copy_is_the_post_byte_for_byte_under_the_ids_of_the_wire() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let raw = concat!(
        r#"{ "id":"m-1", "ts":1,"space":"main","from":{"id":"local.alice","name":"A","x":[]},"#,
        r#""channel":"team.backend","future":{"ü":"\u00fc","n":[1,  2.50]},"parts":[]}"#,
        " \r\n"
    );
    let ack = alice.post_raw(TEAM, raw.into(), Some("m-1")).await.expect("a stored post");

    let copy = bob.take(1).await.remove(0);
    let uid = bob.lifecycle.uid;
    let key = format!("m-1:local.alice:local.bob.{uid}:1");
    assert_eq!(copy.payload, raw.as_bytes());
    assert_eq!(copy.header("Cotal-Seq"), Some(ack.seq.to_string().as_str()));
    assert_eq!(copy.msg_id(), Some(key.as_str()));
    assert_eq!(copy.subject.as_str(), format!("cotal.main.dlv.local.bob.{uid}"));

    let entry = god.stored("INBOX_main", &format!("cotal.main.dinbox.local.bob.{uid}")).await;
    assert_eq!(message_id(&entry[0]), Some(key.as_str()));
    let end = r#","channel":"team.backend","seq":1,"reason":"durable-channel","generation":1}"#;
    let body = format!(r#"{{"msg":{raw}{end}"#);
    assert_eq!(entry[0].payload, body.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_mention_on_a_live_channel_reaches_a_peer_who_may_read_it() {
    let (mesh, _lane, alice) = serving().await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let bob = mesh.peer("Bob", &["ops.>"], &[]).await;
    let eve = mesh.peer("eve", &["other"], &[]).await;

    alice.post(OPS, "unmentioned", &[]).await;
    let ack = alice.post(OPS, "hello", &["Bob", "BOB", "eve", "nobody", "alice"]).await;

    let copy = bob.take(1).await.remove(0);
    let key = format!("hello:local.alice:local.bob.{}:0", bob.lifecycle.uid);
    assert_eq!(copy.msg_id(), Some(key.as_str()));
    assert_eq!(copy.header("Cotal-Seq"), Some(ack.seq.to_string().as_str()));
    copy.ack_confirmed().await.expect("an ack");
    let god = God::of(&mesh).await;
    assert!(god.entries(&eve.lifecycle).await.is_empty(), "not even routed");
    for peer in [bob, eve, alice] {
        peer.receives_nothing().await;
    }
}

/// A body with a field of another type is still a post: whoever reads the channel gets it.
#[tokio::test(flavor = "multi_thread")]
async fn fan_1_fan_2_mentions_of_another_type_withhold_a_post_from_nobody() {
    let (mesh, _lane, alice) = serving().await;
    let bob = mesh.peer("bob", &[">"], &[]).await;
    bob.join(TEAM).await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let post = async |channel: &str, id: &str, mentions: Value| {
        let mut body = alice.body(channel, id, id, &[]);
        body["mentions"] = mentions;
        alice.post_raw(channel, body.to_string().into(), Some(id)).await.expect("a stored post")
    };
    let odd = [json!("bob"), json!([1]), json!({ "a": 1 }), json!(["bob", null]), json!(null)];
    for (n, mentions) in odd.iter().enumerate() {
        post(TEAM, &format!("durable-{n}"), mentions.clone()).await;
        post(OPS, &format!("live-{n}"), mentions.clone()).await;
    }
    let all = ["durable-0", "durable-1", "durable-2", "durable-3", "live-3", "durable-4"];
    assert_eq!(bob.receive(all.len()).await, all, "a string in an array stays a mention");
    bob.receives_nothing().await;
    assert_eq!(Supervisor::of(&mesh).await.status().await.refused_posts, 0);
}

/// `wire.md` §4: a name in live ACL rows belongs to those agents, whatever presence claims; two
/// agents with the name, or two claims, give no copy.
#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_name_is_its_acl_bearers_then_its_one_claimants_and_never_ambiguous() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let names = ["bob", "carol", "dave", "erin"];
    let mut peers = Vec::new();
    for name in names {
        peers.push(mesh.peer(name, &["ops.>"], &[]).await);
    }
    let [bob, carol, dave, erin] = &peers[..] else { unreachable!() };
    for twin in [carol, dave] {
        let mut row = god.acl(&twin.lifecycle).await;
        row.name = Some("Twin".into());
        god.put_acl(&twin.lifecycle, &row).await;
    }
    for (peer, claimed) in [(erin, "BOB"), (carol, "Both"), (dave, "both")] {
        peer.claim_name(claimed).await;
    }
    alice.post(OPS, "to-bob", &["bob"]).await;
    alice.post(OPS, "to-twins", &["twin"]).await;
    alice.post(OPS, "to-both", &["both"]).await;
    erin.claim_name("Nick").await;
    alice.post(OPS, "to-nick", &["nick"]).await;

    assert_eq!(bob.receive(1).await, ["to-bob"]);
    assert_eq!(erin.receive(1).await, ["to-nick"]);
    for peer in &peers {
        peer.receives_nothing().await;
    }
}

/// A presence row that nobody renews expires without an event.
#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_claim_that_is_not_fresh_gives_no_copy() {
    let (mesh, _lane, alice) = serving().await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let erin = mesh.peer("erin", &["ops.>"], &[]).await;
    let card = json!({ "id": "local.erin", "name": "Nick", "kind": "agent" });
    let row = json!({ "card": card, "status": "idle", "ts": 1 }).to_string();
    let kv = cotal_nats::Bucket::new(&erin.connection, &erin.space.bucket(Bucket::Presence));
    kv.put("local.erin", row.into()).await.expect("a row");
    alice.post(OPS, "to-nick", &["nick"]).await;
    alice.post(OPS, "to-erin", &["erin"]).await;
    assert_eq!(erin.receive(1).await, ["to-erin"]);
    erin.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_2_an_offline_peer_is_reached_also_after_a_daemon_restart() {
    let (mesh, mut lane, alice) = serving().await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let creds = mesh.add_agent("bob", &["ops.>"], &[], None).await;
    alice.post(OPS, "first", &["bob"]).await;
    God::of(&mesh).await.wait_for_entries(1).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    alice.post(OPS, "while down", &["bob"]).await;
    let _next = mesh.lane().await;
    alice.post(OPS, "after", &["bob"]).await;

    let bob = Peer::connect(mesh.url(), &creds).await;
    assert_eq!(bob.receive(3).await, ["first", "while down", "after"]);
}

/// An entry in INBOX only routes and proves nothing: whoever wrote it, the current row and ACL
/// decide.
#[tokio::test(flavor = "multi_thread")]
async fn fan_3_an_entry_that_routing_would_never_make_is_never_released() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    carol.join(TEAM).await;
    let seq = alice.post("team.other", "elsewhere", &[]).await.seq;

    let post = |channel: &str| alice.body(channel, "forged", "forged", &[]);
    let entry = |channel: &str, reason: &str, generation: u64| {
        let msg = post(channel);
        json!({ "msg": msg, "channel": channel, "seq": seq, "reason": reason, "generation": generation })
    };
    let inbox = |peer: &Peer| peer.space.dinbox(&peer.lifecycle);
    let forged = [
        (inbox(&bob), entry(TEAM, "durable-channel", 1)),
        (inbox(&bob), entry(TEAM, "durable-channel", 0)),
        (inbox(&bob), entry("secret", "live-mention", 0)),
        (inbox(&bob), entry("secret", "durable-channel", 1)),
        (inbox(&bob), entry(TEAM, "because", 0)),
        (inbox(&bob), json!({ "stream": "CHAT_main", "seq": 7 })),
        (inbox(&bob), json!([post(TEAM), TEAM, seq, "live-mention", 0])),
        (inbox(&carol), entry("team.other", "durable-channel", 1)),
        (
            "cotal.main.dinbox.nobody.bob.".to_owned() + bob.lifecycle.uid.as_str(),
            entry(TEAM, "live-mention", 0),
        ),
        ("cotal.main.dinbox.local.bob.short".to_owned(), entry(TEAM, "live-mention", 0)),
    ];
    for (subject, body) in forged {
        let stored = god.connection.publish_confirmed(subject, None, body.to_string().into(), None);
        stored.await.expect("a forged entry");
    }
    bob.join(TEAM).await;
    alice.post(TEAM, "real", &[]).await;
    assert_eq!(bob.receive(1).await, ["real"]);
    assert_eq!(carol.receive(1).await, ["real"]);
    bob.receives_nothing().await;
    carol.receives_nothing().await;
    god.wait_until_settled(READER).await;
    assert_eq!(Supervisor::of(&mesh).await.status().await.denied, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_4_two_posts_without_an_id_both_arrive() {
    let (mesh, _lane, alice) = serving().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    alice.post(TEAM, "", &[]).await;
    alice.post(TEAM, "", &[]).await;
    let copies = bob.take(2).await;
    let keys: Vec<_> = copies.iter().map(|copy| copy.msg_id()).collect();
    assert_eq!(keys, [None, None], "an empty id is never a key");
}

/// Everything is redelivered to both stages, and the catch-up of an unfinished join copies the same
/// posts a third time.
#[tokio::test(flavor = "multi_thread")]
async fn fan_5_a_post_is_copied_once_a_member_and_generation_whatever_comes_again() {
    let (mesh, mut lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    let (bob, carol) =
        (mesh.peer("bob", &["team.>"], &[]).await, mesh.peer("carol", &["team.>"], &[]).await);
    for peer in [&bob, &carol] {
        peer.join(TEAM).await;
    }
    for n in 0..20 {
        alice.post(TEAM, &format!("m{n}"), &[]).await;
    }
    settled(&god).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    for consumer in [FANOUT, READER] {
        god.rewind(consumer).await;
    }
    let (mut row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    row.activated = false;
    god.put_member(&row).await;
    let _next = mesh.lane().await;
    settled(&god).await;
    let active = || async { god.member(TEAM, &bob.lifecycle).await };
    let is_active = |row: &Option<(cotal_wire::rows::MemberRow, u64)>| {
        row.as_ref().is_some_and(|(row, _)| row.activated)
    };
    cotal_testkit::eventually("the join is finished", active, is_active).await;

    for peer in [&bob, &carol] {
        assert_eq!(peer.receive(20).await.len(), 20);
        peer.receives_nothing().await;
        assert_eq!(god.entries(&peer.lifecycle).await.len(), 20);
    }
}

/// The sender is part of the key, and an id that no header can carry is hashed. So nobody can
/// occupy another's id, and the same odd id still means the same post.
#[tokio::test(flavor = "multi_thread")]
async fn fan_5_the_key_is_id_and_sender_for_odd_ids_too() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &["team.>"]).await;
    bob.join(TEAM).await;
    let (edge, long) = ("x".repeat(128), "x".repeat(129));
    let ids = ["plain-1._", &edge, &long, "a b", "a:b", "ünï ✓", "a\nb"];
    for id in ids {
        for sender in [&alice, &alice, &carol] {
            let body = sender.body(TEAM, id, id, &[]).to_string();
            sender.post_raw(TEAM, body.into(), None).await.expect("a stored post");
        }
    }
    let twice: Vec<_> = ids.iter().flat_map(|id| [*id, *id]).collect();
    assert_eq!(bob.receive(2 * ids.len()).await, twice);
    bob.receives_nothing().await;
    let entries = god.entries(&bob.lifecycle).await;
    let rest = format!(":local.alice:local.bob.{}:1", bob.lifecycle.uid);
    let key = |at: usize| message_id(&entries[2 * at]).expect("a key");
    assert_eq!(key(1), format!("{edge}{rest}"));
    let sha256_of_a_b = "c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65";
    assert_eq!(key(3), format!("{sha256_of_a_b}{rest}"));
    assert_eq!(key(2).len(), 64 + rest.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_6_a_post_that_is_none_is_ended_at_once_and_never_copied() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    bob.join(TEAM).await;
    let good = alice.body(TEAM, "x", "x", &[]);
    let with = |key: &str, value: Value| {
        let mut body = good.clone();
        body[key] = value;
        body.to_string()
    };
    let bad = [
        String::new(),
        "{".to_owned(),
        "null".to_owned(),
        json!([good]).to_string(),
        json!(["x", { "id": "local.alice" }, TEAM]).to_string(),
        format!("{good} {{}}"),
        with("id", json!(7)),
        with("from", json!({ "id": "local.eve", "name": "alice" })),
        with("from", json!("local.alice")),
        with("channel", json!("team.other")),
        with("channel", Value::Null),
        with("to", json!("local.bob")),
    ];
    let ended = format!("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.CHAT_main.{FANOUT}");
    let mut ended = god.connection.subscribe(ended, None).await.expect("advisories");
    for body in &bad {
        alice.post_raw(TEAM, body.clone().into(), None).await.expect("a stored post");
    }
    // Invalid UTF-8, in a string that nobody reads.
    let not_text = [&with("z", json!("!")).into_bytes()[..]].concat();
    let not_text: Vec<u8> =
        not_text.iter().map(|it| if *it == b'!' { 0xff } else { *it }).collect();
    alice.post_raw(TEAM, not_text.into(), None).await.expect("a stored post");
    // Each names its true sender, so only its subject is wrong.
    let foreign = [
        ("nobody.alice", "nobody.alice.team.backend"),
        ("local.al-ice", "local.al-ice.team.backend"),
        ("local.alice", "local.alice"),
    ];
    for (from, tail) in foreign {
        let subject = format!("cotal.main.chat.{tail}");
        let body = Bytes::from(with("from", json!({ "id": from, "name": "alice" })));
        god.connection.publish_confirmed(subject, None, body, None).await.expect("stored");
    }
    bob.post(TEAM, "own", &[]).await;
    let last = alice.post(TEAM, "good", &[]).await.seq;

    assert_eq!(bob.receive(1).await, ["good"]);
    bob.receives_nothing().await;
    god.wait_until_settled(FANOUT).await;
    let info = god.connection.consumer_info("CHAT_main", FANOUT).await.expect("a consumer");
    assert_eq!((info.ack_floor.stream_seq, info.num_redelivered), (last, 0));
    let refused = Supervisor::of(&mesh).await.status().await.refused_posts;
    let ended_posts = bad.len() + 1 + foreign.len();
    assert_eq!(refused, ended_posts as u64);
    for _ in 0..ended_posts {
        let told = tokio::time::timeout(Duration::from_secs(10), ended.next()).await;
        told.expect("a post that is terminated and not acked").expect("an advisory");
    }
    assert_eq!(god.entries(&bob.lifecycle).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_7_the_class_is_the_one_at_routing_for_posts_and_joins_alike() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &[">"], &[]).await;
    bob.join(TEAM).await;

    alice.post(TEAM, "durable", &[]).await;
    settled(&god).await;
    mesh.set_class(TEAM, DeliveryClass::Live).await;
    alice.post(TEAM, "live", &[]).await;
    settled(&god).await;
    mesh.set_class(TEAM, DeliveryClass::Durable).await;
    alice.post(TEAM, "durable again", &[]).await;
    assert_eq!(bob.receive(2).await, ["durable", "durable again"]);
    bob.receives_nothing().await;

    let defaults = json!({ "deliveryClass": "live" }).to_string();
    god.kv(Bucket::Channels).put(DEFAULTS_KEY, defaults.into()).await.expect("defaults");
    let args = json!({ "channel": "plain" });
    let refused = bob.control(DELIVERY, "durableJoin", args).await.expect("a reply");
    assert!(!refused.ok, "a join of a live channel has no backstop: {refused:?}");
    alice.post("plain", "mention", &["bob"]).await;
    alice.post("plain", "no mention", &[]).await;
    alice.post(TEAM, "own class", &[]).await;
    assert_eq!(bob.receive(2).await, ["mention", "own class"]);
    bob.receives_nothing().await;
}

/// Nothing older than a lifecycle belongs to it, and a copy goes to the live one.
#[tokio::test(flavor = "multi_thread")]
async fn fan_2_a_mention_goes_to_the_live_lifecycle_alone() {
    let (mesh, _lane, alice) = serving().await;
    let god = God::of(&mesh).await;
    mesh.set_class(OPS, DeliveryClass::Live).await;
    let bob = mesh.peer("bob", &["ops.>"], &[]).await;
    let mut old = bob.lifecycle.clone();
    old.uid = cotal_wire::LifecycleUid::parse(&"a".repeat(26)).expect("a uid");
    let mut tombstone = god.acl(&bob.lifecycle).await;
    tombstone.retired = true;
    god.put_acl(&old, &tombstone).await;
    let channel = Channel::parse(OPS).expect("a channel");
    alice.post(channel.as_str(), "hello", &["bob"]).await;
    assert_eq!(bob.receive(1).await, ["hello"]);
    assert!(god.entries(&old).await.is_empty());
}
