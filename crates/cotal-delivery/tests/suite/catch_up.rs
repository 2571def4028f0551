//! The catch-up of a join that a daemon left half done: what it must copy, and what not (FAN-6,
//! MEM-7).

use cotal_delivery::Lane;
use cotal_nats::Bytes;
use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually};
use cotal_wire::Channel;
use cotal_wire::control::JoinShortfall;
use cotal_wire::names::{FANOUT, READER};
use cotal_wire::rows::MemberRow;
use serde_json::json;

const TEAM: &str = "team.backend";

async fn start() -> (Mesh, Lane, Peer, Peer, God) {
    let mesh = Mesh::start().await;
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    let god = God::of(&mesh).await;
    (mesh, lane, alice, bob, god)
}

/// Fan-out refused or skipped these posts before the row was written; the catch-up reads them
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn fan_6_a_catch_up_copies_no_forgery_and_no_own_post() {
    let (_mesh, _lane, alice, bob, god) = start().await;
    let honest = alice.body(TEAM, "forged", "forged", &[]);
    let mut of_eve = honest.clone();
    of_eve["from"] = json!({ "id": "local.eve", "name": "eve" });
    let mut elsewhere = honest.clone();
    elsewhere["channel"] = json!("team.other");
    for body in ["{".to_owned(), of_eve.to_string(), elsewhere.to_string()] {
        alice.post_raw(TEAM, body.into(), None).await.expect("a stored post");
    }
    let mut unreal = honest;
    unreal["from"] = json!({ "id": "nobody.eve", "name": "eve" });
    let subject = "cotal.main.chat.nobody.eve.team.backend".to_owned();
    let body = Bytes::from(unreal.to_string());
    god.connection.publish_confirmed(subject, None, body, None).await.expect("stored");
    bob.post(TEAM, "own", &[]).await;
    alice.post(TEAM, "good", &[]).await;
    god.wait_until_settled(FANOUT).await;
    god.put_member(&bob.half_joined(TEAM, 0)).await;

    assert!(bob.join(TEAM).await.durable);
    assert_eq!(bob.receive(1).await, ["good"]);
    assert_eq!(god.entries(&bob.lifecycle).await.len(), 1);
}

/// CHAT discards posts of the window while the catch-up waits for the reader. Either all of them
/// are copied, or the shortfall is reported.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_what_retention_takes_during_a_catch_up_is_no_silent_gap() {
    let (mesh, _lane, alice, bob, god) = start().await;
    god.cap_subjects("CHAT_main", 1_000).await;
    // An older post elsewhere keeps the stream's first sequence in place.
    alice.post("team.other", "older", &[]).await;
    alice.post_many(TEAM, "window", 600).await;
    god.wait_until_settled(FANOUT).await;
    occupy_reader(&god).await;
    put_own_row(&mesh, &god, bob.half_joined(TEAM, 0)).await;
    let subject = alice.space.chat(alice.principal(), &Channel::parse(TEAM).expect("a channel"));
    let evicting = async {
        // The first page of the window is copied; the next waits for the reader.
        god.wait_for_entries(202).await;
        for _ in 0..900 {
            // It cannot be parsed, so it displaces a post and is copied to nobody.
            alice.connection.publish(subject.clone(), None, "{".into()).await.expect("sent");
        }
        alice.connection.round_trip().await.expect("a broker");
        god.limit("INBOX_main", READER, 10_000).await;
    };
    let (joined, ()) = tokio::join!(bob.join(TEAM), evicting);
    let copied = god.entries(&bob.lifecycle).await.len();
    assert!(!joined.durable || copied == 600, "{copied} of 600 came, and it said {joined:?}");
    assert_eq!(joined.reason, Some(JoinShortfall::Evicted));
}

/// The window is incomplete if CHAT begins after its start, and also if only one subject is full.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_a_window_is_cut_by_the_streams_start_or_by_one_full_subject() {
    for full in [false, true] {
        let (mesh, _lane, alice, bob, god) = start().await;
        alice.post("team.other", "older", &[]).await;
        if full {
            god.cap_subjects("CHAT_main", 1_000).await;
            alice.post_many(TEAM, "m", 1_003).await;
        } else {
            alice.post_many(TEAM, "m", 10).await;
            god.connection.purge_stream("CHAT_main", None).await.expect("a purged stream");
            alice.post(TEAM, "youngest", &[]).await;
        }
        let first = god.connection.stream_state("CHAT_main").await.expect("CHAT").first_seq;
        assert_eq!(first == 1, full, "CHAT begins at {first}");
        god.wait_until_settled(FANOUT).await;
        let row = MemberRow { join_cursor: 3, ..bob.half_joined(TEAM, 0) };
        put_own_row(&mesh, &god, row).await;
        let joined = bob.join(TEAM).await;
        assert_eq!((joined.durable, joined.reason), (false, Some(JoinShortfall::Evicted)));
        let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
        assert_eq!(row.leave_cursor, Some(3), "its interval claims no post");
    }
}

/// Writes a row with the running daemon's own writer identity, as an attempt that nobody finished.
/// Another daemon's row it would finish at once, before the test can ask.
async fn put_own_row(mesh: &Mesh, god: &God, row: MemberRow) {
    let writer_identity = Supervisor::of(mesh).await.status().await.incarnation;
    god.put_member(&MemberRow { writer_identity, ..row }).await;
}

/// Two entries whose owner has no ACL row wait at a reader that gets one entry at a time.
async fn occupy_reader(god: &God) {
    god.limit("INBOX_main", READER, 1).await;
    let subject = format!("cotal.main.dinbox.local.ghost.{}", "a".repeat(26));
    for seq in 1..=2 {
        let msg = json!({ "id": "x", "from": { "id": "local.alice" }, "channel": TEAM });
        let entry = json!({
            "msg": msg, "channel": TEAM, "seq": seq, "reason": "live-mention", "generation": 0,
        });
        let entry = Bytes::from(entry.to_string());
        let stored = god.connection.publish_confirmed(subject.clone(), None, entry, None).await;
        stored.expect("an entry");
    }
    let look = || async { god.connection.consumer_info("INBOX_main", READER).await };
    let occupied = |info: &Result<cotal_nats::js::ConsumerInfo, _>| {
        info.as_ref().is_ok_and(|i| (i.num_ack_pending, i.num_pending) == (1, 1))
    };
    eventually("a reader that waits", look, occupied).await.expect("the reader");
}

/// INBOX refuses the copies of the window, so the join is not durable yet; the member's next
/// attempt finishes it.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_a_catch_up_that_is_not_confirmed_is_no_durable_join() {
    let (mesh, _lane, alice, bob, god) = start().await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    carol.join(TEAM).await;
    alice.post_many(TEAM, "m", 5).await;
    god.wait_for_entries(5).await;
    god.wait_until_settled(FANOUT).await;
    god.refuse_writes("INBOX_main").await;
    god.put_member(&bob.half_joined(TEAM, 0)).await;
    let args = json!({ "channel": TEAM });
    let refused = bob.control("delivery", "durableJoin", args).await.expect("a reply");
    assert!(!refused.ok, "{refused:?}");
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    assert!(!row.activated, "{row:?}");
    god.accept_writes("INBOX_main").await;
    let look = || bob.control("delivery", "durableJoin", json!({ "channel": TEAM }));
    let durable = |reply: &Result<cotal_wire::control::Reply, _>| {
        reply.as_ref().is_ok_and(|r| r.data.as_ref().is_some_and(|d| d["durable"] == true))
    };
    eventually("a durable join", look, durable).await.expect("a reply");
    assert_eq!(bob.receive(5).await, ["m0", "m1", "m2", "m3", "m4"]);
    bob.receives_nothing().await;
}
