//! Headers and subjects that the broker stores and no client can read (`security.md`).

use std::time::Duration;

use cotal_nats::{PullConsumer, PullOptions, headers};
use cotal_testkit::{God, Mesh, Peer, RawPublisher, eventually};
use cotal_wire::names::{Bucket, DELIVERY, reply_to};
use cotal_wire::{Channel, Principal, Role, Timer};
use serde_json::json;

const TEAM: &str = "team.backend";
const TIMERS: &str = "wf";

/// One block of each kind: the library panics on the first, and redials for ever on the others.
const BLOCKS: [&[u8]; 6] = [
    b"NATS/1.0\r\nA: b\rc\r\n\r\n",
    b"NATS/1.0\r\nA: \xff\r\n\r\n",
    b"NATS/1.0\r\nno header\r\n\r\n",
    b"NATS/1.0\r\na name: b\r\n\r\n",
    b"NATS/1.0\r\n\xc3\xa4: b\r\n\r\n",
    b"nothing",
];

/// What an agent and an endpoint with these credentials can do with them.
#[tokio::test(flavor = "multi_thread")]
async fn headers_that_no_client_can_read_stop_nobody_and_their_sender_is_told() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    let creds = mesh.add_agent("mallory", &["team.>"], &["team.>"], None).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer_with_role("bob", &["team.>"], &[], Some("helper")).await;
    assert!(bob.join(TEAM).await.durable);
    let endpoint = mesh.add_endpoint(TIMERS).await;
    let god = God::of(&mesh).await;

    let mut mallory = RawPublisher::connect(&mesh.host_port(), &creds).await;
    let mut timers = RawPublisher::connect(&mesh.host_port(), &endpoint).await;
    let own = Principal::parse("local.mallory").expect("a principal");
    let space = mesh.space();
    let post = space.chat(&own, &Channel::parse(TEAM).expect("a channel"));
    let rail = space.ctl(DELIVERY, &own);
    let live = space.live(DELIVERY, &own);
    let role = Role::parse("helper").expect("a role");
    let presence = format!("$KV.{}.{own}", space.bucket(Bucket::Presence));
    let subjects = [
        post.clone(),
        space.inst(bob.principal(), &own),
        space.svc(&role, &own),
        presence,
        format!("{rail} {}", reply_to(&rail, "0123456789abcdef")),
        format!("{live} {}", reply_to(&live, "0123456789abcdef")),
    ];
    let message = |id: usize| {
        json!({
            "id": format!("bad{id}"), "ts": 1, "space": space, "channel": TEAM,
            "from": { "id": own, "name": "mallory" },
            "parts": [{ "kind": "text", "text": "bad" }],
        })
        .to_string()
    };
    for (id, block) in BLOCKS.into_iter().enumerate() {
        for subject in &subjects {
            mallory.publish(subject.as_bytes(), block, message(id).as_bytes()).await;
        }
        let timer = Timer::parse(&format!("{TIMERS}.i1.1.t{id}")).expect("a timer");
        let timer = space.ept_schedule(&timer);
        timers.publish(timer.as_bytes(), block, b"{}").await;
    }
    // A name that is no text, and one with a space that only the library takes for one.
    let live_post = b"NATS/1.0\r\n\r\n";
    for odd in [&b"\xff"[..], "\u{3000}".as_bytes()] {
        let subject = [post.as_bytes(), b".", odd].concat();
        mallory.publish(&subject, live_post, b"{}").await;
        let reply = [rail.as_bytes(), b" ", rail.as_bytes(), b".reply.", odd].concat();
        mallory.publish(&reply, live_post, b"{}").await;
    }
    // As many lines as a message can have.
    let countless = [b"NATS/1.0\r\n", b"a:\r\n".repeat(200_000).as_slice(), b"\r\n"].concat();
    mallory.publish(subjects[5].as_bytes(), &countless, b"").await;
    mallory.settled().await;
    timers.settled().await;

    alice.post(TEAM, "good", &[]).await;
    assert_eq!(bob.receive(1).await, ["good"], "nothing of what cannot be read, and the rest");
    let joined = alice.join(TEAM).await;
    assert!(joined.durable, "the rails answer");
    let (dms, to_mallory) = (space.dm_stream(), space.inst_to(&own));
    let told = || god.stored(&dms, &to_mallory);
    let told = eventually("the sender is told", told, |told| !told.is_empty()).await;
    let text = String::from_utf8_lossy(&told[0].payload).into_owned();
    assert!(text.contains("its headers cannot be read"), "{text}");

    takes_every_unreadable_message(&bob).await;
    for connection in [&alice.connection, &bob.connection, &god.connection] {
        assert_eq!(connection.state().borrow().drops, 0, "a redial");
    }
    lane.stop();
    lane.ended().await.expect("a clean end");
}

/// A client takes direct messages whose headers cannot be read, and acks them.
async fn takes_every_unreadable_message(member: &Peer) {
    let (stream, consumer) =
        (member.space.dm_stream(), member.space.dm_consumer(&member.lifecycle));
    let opened = PullConsumer::open(&member.connection, &stream, &consumer, PullOptions::default());
    let mut direct = opened.await.expect("the member's direct messages");
    let mut unreadable = 0;
    while unreadable < BLOCKS.len() {
        let batch = direct.next_batch(BLOCKS.len(), Duration::from_secs(10)).await;
        for delivery in batch.expect("a pull") {
            assert!(!headers::are_readable(delivery.headers.as_ref()), "{delivery:?}");
            unreadable += 1;
            delivery.ack().await.expect("an ack");
        }
    }
    direct.close().await;
}
