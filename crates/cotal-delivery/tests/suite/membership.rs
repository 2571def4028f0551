//! The membership registry against a real broker (MEM-1, 2, 5, 6, 7), and the rule on garbled rows
//! (`wire.md` §4).

use std::collections::BTreeSet;
use std::time::Duration;

use cotal_delivery::Lane;
use cotal_nats::{Delivery, NatsError, Subject};
use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually};
use cotal_wire::control::{Code, JoinShortfall, Reply};
use cotal_wire::envelope::parse_entry;
use cotal_wire::names::{Bucket, DEFAULTS_KEY, DELIVERY, FANOUT, READER, member_key};
use cotal_wire::rows::{DeliveryClass, MemberRow};
use cotal_wire::{Channel, Lifecycle};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const TEAM: &str = "team.backend";

async fn start() -> (Mesh, Lane, Peer, God) {
    start_on(Mesh::start().await).await
}

async fn start_on(mesh: Mesh) -> (Mesh, Lane, Peer, God) {
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let god = God::of(&mesh).await;
    (mesh, lane, alice, god)
}

fn key(member: &Lifecycle) -> String {
    member_key(&Channel::parse(TEAM).expect("a channel"), member)
}

fn seq_of(copy: &Delivery) -> u64 {
    copy.header("Cotal-Seq").and_then(|seq| seq.parse().ok()).expect("a sequence")
}

async fn request(peer: &Peer, op: &str, args: Value) -> Reply {
    peer.control(DELIVERY, op, args).await.expect("a reply")
}

async fn memberships(peer: &Peer) -> Value {
    request(peer, "listMemberships", json!({})).await.data.expect("data")["memberships"].take()
}

async fn wait_for_row(
    god: &God,
    member: &Lifecycle,
    what: &str,
    good: impl Fn(&MemberRow) -> bool,
) {
    let look = || god.member(TEAM, member);
    eventually(what, look, |row| row.as_ref().is_some_and(|(row, _)| good(row))).await;
}

/// Fan-out sees a new row while the join still copies older posts: fan-out's own copies wait. Every
/// second post is on another channel of the member.
#[tokio::test(flavor = "multi_thread")]
async fn mem_2_a_member_that_joins_under_load_gets_its_posts_in_order() {
    const OTHER: &str = "team.other";
    let (mesh, _lane, alice, god) = start().await;
    mesh.set_class(OTHER, DeliveryClass::Durable).await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    bob.join(OTHER).await;
    let done = CancellationToken::new();
    let posting = tokio::spawn({
        let done = done.clone();
        async move {
            let mut n = 0;
            while !done.is_cancelled() {
                let channel = if n % 2 == 0 { TEAM } else { OTHER };
                alice.post(channel, &format!("p{n}"), &[]).await;
                n += 1;
            }
        }
    });
    for _ in 0..20 {
        let joined = bob.join(TEAM).await;
        bob.leave(TEAM, joined.generation).await;
    }
    done.cancel();
    posting.await.expect("the poster");
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    let entries = god.entries(&bob.lifecycle).await;
    let seqs: Vec<u64> =
        entries.iter().map(|entry| parse_entry(&entry.payload).expect("an entry").seq).collect();
    assert!(seqs.len() > 40, "{seqs:?}");
    let late: Vec<_> = seqs.windows(2).filter(|pair| pair[0] >= pair[1]).collect();
    assert!(late.is_empty(), "out of order: {late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_1_an_agent_changes_no_member_row_by_any_way_of_writing() {
    changes_no_member_row(Mesh::start().await, false).await;
}

/// The confused deputy: the broker writes wherever a reply subject points, and does not check it.
#[tokio::test(flavor = "multi_thread")]
async fn mem_1_in_a_space_of_one_account_what_lands_on_a_member_row_changes_nothing() {
    changes_no_member_row(Mesh::of_one_account().await, true).await;
}

/// `lands` says whether the broker lets an agent's answers reach the bucket.
async fn changes_no_member_row(mesh: Mesh, lands: bool) {
    let (mesh, _lane, alice, god) = start_on(mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    bob.join(TEAM).await;
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    let wanted = MemberRow { join_cursor: 0, generation: 9, ..row.clone() };
    let forged = serde_json::to_string(&wanted).expect("JSON");
    let target = bob.space.kv_subject(Bucket::Members, &key(&bob.lifecycle));
    let stored = || async { god.connection.last_seq("KV_cotal_members_main").await.expect("KV") };

    let direct =
        bob.connection.publish_confirmed(target.clone(), None, forged.clone().into(), None);
    let denied = direct.await.expect_err("a denial");
    assert!(matches!(denied, NatsError::Denied { .. }), "{denied}");
    let before = stored().await;

    // The PubAck of the agent's own post is stored over the row.
    let subject =
        Subject::from(bob.space.chat(bob.principal(), &Channel::parse(TEAM).expect("one")));
    let reply = Subject::from(target.clone());
    let sent =
        bob.connection.publish_with_reply(subject, reply.clone(), None, forged.clone().into());
    sent.await.expect("sent");
    if lands {
        eventually("the PubAck and the repaired row", stored, |last| *last >= before + 2).await;
    }

    // A stored post whose body is a row. A pull with the row's key as reply subject stores it in
    // the bucket's stream, under its own subject; a push to that subject is not stored.
    let landed = stored().await;
    deliver_onto(&bob, &target, true).await;
    deliver_onto(&bob, &target, false).await;
    if lands {
        eventually("a delivery into the bucket", stored, |last| *last > landed).await;
    } else {
        bob.receives_nothing().await;
        assert_eq!(stored().await, before, "something came as far as the bucket");
    }
    let (now, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    let what = |row: &MemberRow| (row.generation, row.join_cursor, row.leave_cursor, row.activated);
    assert_eq!(what(&now), what(&row));
    alice.post(TEAM, "still a member", &[]).await;
    assert_eq!(bob.receive(1).await, ["still a member"]);
    let listed = json!([{ "channel": TEAM, "generation": 1, "activated": true }]);
    assert_eq!(memberships(&bob).await, listed);
}

/// Uses the one consumer that an agent may create to deliver its own post to `target`.
async fn deliver_onto(peer: &Peer, target: &str, push: bool) {
    let name = peer.space.chathist_consumer(&peer.lifecycle);
    let filter = "cotal.main.chat.*.*.team.>";
    let mut config = json!({
        "name": name, "filter_subject": filter, "deliver_policy": "all", "ack_policy": "none",
        "replay_policy": "instant", "inactive_threshold": 30_000_000_000_u64,
    });
    if push {
        config["deliver_subject"] = target.into();
    }
    let create = format!("$JS.API.CONSUMER.CREATE.CHAT_main.{name}.{filter}");
    let body = json!({ "stream_name": "CHAT_main", "config": config });
    peer.connection.js_call::<Value>(&create, &body, None).await.expect("a history consumer");
    if push {
        peer.receives_nothing().await;
        let delete = format!("$JS.API.CONSUMER.DELETE.CHAT_main.{name}");
        peer.connection.js_call::<Value>(&delete, &json!({}), None).await.expect("a deletion");
    } else {
        let next = Subject::from(format!("$JS.API.CONSUMER.MSG.NEXT.CHAT_main.{name}"));
        let reply = Subject::from(target);
        let asked = peer.connection.publish_with_reply(next, reply, None, "1".into()).await;
        asked.expect("asked");
    }
}

/// A cursor is the stream's exact last sequence, however far behind fan-out is.
#[tokio::test(flavor = "multi_thread")]
async fn mem_2_a_cursor_is_the_streams_last_sequence_and_not_what_was_routed() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    god.pause(FANOUT).await;
    alice.post_many(TEAM, "before", 3).await;
    let generation = bob.join(TEAM).await.generation;
    alice.post_many(TEAM, "inside", 2).await;
    bob.leave(TEAM, generation).await;
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    assert_eq!((row.join_cursor, row.leave_cursor), (3, Some(5)));
    alice.post(TEAM, "after", &[]).await;
    god.resume(FANOUT).await;
    assert_eq!(bob.receive(2).await, ["inside0", "inside1"]);
    god.wait_until_settled(FANOUT).await;
    bob.receives_nothing().await;
}

/// The row holds exactly the posts that arrive: posts race every join and leave.
#[tokio::test(flavor = "multi_thread")]
async fn mem_2_a_post_that_races_a_join_or_a_leave_is_ordered_by_sequence() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let posting = async {
        let mut seqs = Vec::new();
        for n in 0..600 {
            seqs.push(alice.post(TEAM, &format!("m{n}"), &[]).await.seq);
        }
        seqs
    };
    let newest = async || god.connection.last_seq("CHAT_main").await.expect("CHAT");
    let joining = async {
        let mut intervals = Vec::new();
        for _ in 0..6 {
            let from = newest().await;
            let joined = bob.join(TEAM).await;
            assert!(joined.durable, "{joined:?}");
            let (joined_by, leaving) = (newest().await, newest().await);
            bob.leave(TEAM, joined.generation).await;
            let left_by = newest().await;
            let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
            let leave = row.leave_cursor.expect("a closed row");
            assert!((from..=joined_by).contains(&row.join_cursor), "{row:?}");
            assert!((leaving..=left_by).contains(&leave), "{row:?}");
            intervals.push((row.join_cursor, leave));
        }
        intervals
    };
    let (seqs, intervals) = tokio::join!(posting, joining);
    let inside = |seq: &u64| intervals.iter().any(|(join, leave)| join < seq && seq <= leave);
    let expected: Vec<_> = seqs.into_iter().filter(inside).collect();
    assert!(expected.len() > 5, "nothing raced: {intervals:?}");
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    let got = bob.take(expected.len()).await;
    let mut got_seqs: Vec<_> = got.iter().map(seq_of).collect();
    got_seqs.sort_unstable();
    assert_eq!(got_seqs, expected);
    bob.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_5_the_rail_serves_the_authenticated_caller_alone() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let foreign = json!({ "channel": TEAM, "lifecycleUid": bob.lifecycle.uid });
    let refused = request(&alice, "durableJoin", foreign.clone()).await;
    assert_eq!(refused.code, Some(Code::NotProvisioned));
    let mut leave = foreign;
    leave["generation"] = 1.into();
    let refused = request(&alice, "durableLeave", leave).await;
    assert_eq!(refused.code, Some(Code::NotProvisioned));
    assert_eq!(memberships(&alice).await, json!([]));
    assert!(god.member(TEAM, &bob.lifecycle).await.expect("a row").0.leave_cursor.is_none());

    let subject = bob.space.ctl(DELIVERY, bob.principal());
    let denied = alice.ask(subject, "{}".into(), Duration::from_secs(5)).await;
    assert!(denied.is_err(), "another's request subject: {denied:?}");

    let outside = request(&bob, "durableJoin", json!({ "channel": "secret" })).await;
    assert_eq!(outside.code, Some(Code::Denied), "the ACL does not cover it");
    let pattern = request(&bob, "durableJoin", json!({ "channel": "team.>" })).await;
    assert_eq!(pattern.code, Some(Code::Invalid), "a join names a concrete channel");
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_6_a_join_is_idempotent_and_a_leave_of_an_older_generation_is_refused() {
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let revision = || async { god.member(TEAM, &bob.lifecycle).await.expect("a row").1 };
    assert_eq!(bob.join(TEAM).await.generation, 1);
    let at = revision().await;
    let (one, two) = tokio::join!(bob.join(TEAM), bob.join(TEAM));
    assert!(one.durable && two.durable);
    assert_eq!((one.generation, two.generation, revision().await), (1, 1, at));

    assert_eq!(bob.leave(TEAM, 1).await.already_left, None);
    let left = revision().await;
    assert_eq!(bob.leave(TEAM, 1).await.already_left, Some(true));
    assert_eq!(revision().await, left);
    assert_eq!(bob.join(TEAM).await.generation, 2);

    let at = revision().await;
    let stale = request(&bob, "durableLeave", json!({ "channel": TEAM, "generation": 1 })).await;
    assert_eq!(stale.code, Some(Code::StaleGeneration));
    assert_eq!(revision().await, at);
    let never =
        request(&bob, "durableLeave", json!({ "channel": "team.x", "generation": 1 })).await;
    assert_eq!(never.data.expect("data")["alreadyLeft"], true);
}

/// The rows of its time tell whose a post is that waits for fan-out. A membership writes three rows
/// and the bucket keeps eight, so the third rejoin waits for such posts.
#[tokio::test(flavor = "multi_thread")]
async fn mem_6_fan_1_no_rejoin_costs_a_post_of_an_earlier_membership() {
    let (mesh, lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    assert_eq!(bob.join(TEAM).await.generation, 1);
    god.pause(FANOUT).await;
    alice.post_many(TEAM, "m", 5).await;
    bob.leave(TEAM, 1).await;
    for generation in 2..=3 {
        assert_eq!(bob.join(TEAM).await.generation, generation);
        bob.leave(TEAM, generation).await;
    }
    drop(lane);
    god.free_lease().await;
    let _next = mesh.lane().await;
    let again = bob.join(TEAM);
    tokio::pin!(again);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut again).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    god.resume(FANOUT).await;
    assert_eq!(again.await.generation, 4);
    assert_eq!(bob.receive(5).await, ["m0", "m1", "m2", "m3", "m4"]);
}

/// A daemon died between the row and its activation: the next one copies the window, which is
/// longer than one page, and nothing from before it.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_an_activation_copies_the_window_that_fan_out_has_not_covered() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    let lane = mesh.lane().await;
    alice.post(TEAM, "before", &[]).await;
    alice.post_many(TEAM, "m", 450).await;
    bob.post(TEAM, "own", &[]).await;
    alice.post("team.other", "elsewhere", &[]).await;
    god.wait_until_settled(FANOUT).await;
    drop(lane);
    god.free_lease().await;
    god.put_member(&bob.half_joined(TEAM, 1)).await;

    let _next = mesh.lane().await;
    wait_for_row(&god, &bob.lifecycle, "an activated row", |row| row.activated).await;
    let got: Vec<_> = bob.take(450).await.iter().map(seq_of).collect();
    assert_eq!(got, (2..=451).collect::<Vec<_>>());
    bob.receives_nothing().await;
    assert!(bob.join(TEAM).await.durable);
}

/// A daemon died within a join, and posts came while none ran: the window is copied before the
/// posts that fan-out still has to route.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_a_resumed_join_goes_before_what_fan_out_has_to_make_up_for() {
    let (mesh, lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    alice.post_many(TEAM, "m", 450).await;
    god.wait_until_settled(FANOUT).await;
    drop(lane);
    god.free_lease().await;
    god.put_member(&bob.half_joined(TEAM, 0)).await;
    alice.post_many(TEAM, "later", 450).await;

    let _next = mesh.lane().await;
    let got: Vec<_> = bob.take(900).await.iter().map(seq_of).collect();
    assert_eq!(got, (1..=900).collect::<Vec<_>>());
}

/// The channel became live before the next daemon started: a live channel makes no copies for
/// members.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_fan_7_a_join_is_not_resumed_on_a_channel_that_became_live() {
    let (mesh, lane, alice, god) = start().await;
    let [bob, carol] =
        [mesh.peer("bob", &["team.>"], &[]).await, mesh.peer("carol", &["team.>"], &[]).await];
    alice.post(TEAM, "m", &[]).await;
    god.wait_until_settled(FANOUT).await;
    drop(lane);
    god.free_lease().await;
    god.put_member(&bob.half_joined(TEAM, 0)).await;
    let other = MemberRow {
        channel: Channel::parse("team.z").expect("a channel"),
        ..carol.half_joined(TEAM, 0)
    };
    god.put_member(&other).await;
    mesh.set_class(TEAM, DeliveryClass::Live).await;

    let _next = mesh.lane().await;
    // The join after it is resumed.
    let resumed = || god.member("team.z", &carol.lifecycle);
    eventually("an activated row", resumed, |row| row.as_ref().is_some_and(|r| r.0.activated))
        .await;
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    assert!(!row.activated && row.leave_cursor.is_none(), "{row:?}");
    bob.receives_nothing().await;
    mesh.set_class(TEAM, DeliveryClass::Durable).await;
    assert!(bob.join(TEAM).await.durable);
    assert_eq!(bob.receive(1).await, ["m"]);
}

/// The same with an incomplete window: its closed row holds no post, so nothing is delivered.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_rdr_10_a_resumed_join_that_is_closed_surfaces_nothing() {
    let (mesh, lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    alice.post(TEAM, "first", &[]).await;
    god.wait_until_settled(FANOUT).await;
    drop(lane);
    god.free_lease().await;
    god.put_member(&bob.half_joined(TEAM, 1)).await;
    god.cap_subjects("CHAT_main", 1_000).await;
    alice.post_many(TEAM, "m", 1_010).await;

    let _next = mesh.lane().await;
    wait_for_row(&god, &bob.lifecycle, "a closed row", |row| row.leave_cursor == Some(1)).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    bob.receives_nothing().await;
}

/// CHAT discarded posts of the window, in a space whose CHAT keeps no more than history shows: the
/// shortfall is reported, and the row holds no post at all.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_a_window_that_retention_cut_is_reported_and_its_row_closed() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    god.cap_subjects("CHAT_main", 1_000).await;
    alice.post_many(TEAM, "m", 1_010).await;
    god.wait_until_settled(FANOUT).await;
    // With the running daemon's own identity; it would finish another daemon's row before the test
    // can ask.
    let writer_identity = Supervisor::of(&mesh).await.status().await.incarnation;
    god.put_member(&MemberRow { writer_identity, ..bob.half_joined(TEAM, 5) }).await;
    let joined = bob.join(TEAM).await;
    assert!(!joined.durable);
    assert_eq!(joined.reason, Some(JoinShortfall::Evicted));
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    assert_eq!((row.leave_cursor, row.activated), (Some(5), false));
    assert_eq!(memberships(&bob).await, json!([]));
    god.wait_until_settled(READER).await;
    bob.receives_nothing().await;

    let again = bob.join(TEAM).await;
    assert!(again.durable && again.generation == 2, "a fresh join is whole: {again:?}");
}

/// The row stays open, because only a leave closes it, but nothing of the channel is released any
/// more.
#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_an_acl_covers_no_more_is_not_listed_as_durable() {
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    for channel in [TEAM, "team.other"] {
        bob.join(channel).await;
    }
    god.set_acl(&bob.lifecycle, &["team.other"]).await;
    let listed = memberships(&bob).await;
    assert_eq!(listed, json!([{ "channel": "team.other", "generation": 1, "activated": true }]));
    god.set_acl(&bob.lifecycle, &["team.>"]).await;
    assert_eq!(memberships(&bob).await.as_array().map(Vec::len), Some(2));
}

/// 1,000 posts that are all still stored: nothing was discarded.
#[tokio::test(flavor = "multi_thread")]
async fn mem_7_a_full_but_whole_window_is_durable() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    alice.post_many(TEAM, "m", 1_000).await;
    god.put_member(&bob.half_joined(TEAM, 1)).await;
    let joined = bob.join(TEAM).await;
    assert!(joined.durable, "{joined:?}");
    let got: BTreeSet<_> = bob.take(999).await.iter().map(seq_of).collect();
    assert_eq!(got, (2..=1_000).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_1_a_garbled_member_row_is_no_row_and_no_absence_and_is_written_back() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    let foreign = serde_json::to_string(&MemberRow { generation: 7, ..alice.half_joined(TEAM, 0) });
    let garbage = ["", "{}", r#"{"stream":"CHAT_main","seq":1}"#, &foreign.expect("JSON")];
    for (n, text) in garbage.iter().enumerate() {
        let id = format!("m{n}");
        let kv = god.kv(Bucket::Members);
        let value = (*text).to_owned().into();
        let garbled = kv.put(&key(&bob.lifecycle), value).await.expect("a garbled row");
        alice.post(TEAM, &id, &[]).await;
        assert_eq!(bob.receive(1).await, [id]);
        let repaired = || god.member(TEAM, &bob.lifecycle);
        let (now, _) = eventually("the row is written back", repaired, |r| {
            r.as_ref().is_some_and(|r| r.1 > garbled)
        })
        .await
        .expect("a row");
        assert_eq!((now.join_cursor, now.generation, now.activated), (row.join_cursor, 1, true));
    }
    assert_eq!(Supervisor::of(&mesh).await.status().await.garbled_rows, 4);
}

/// No memory has the row, but the bucket's history does, even before several garbled values.
#[tokio::test(flavor = "multi_thread")]
async fn mem_1_a_row_garbled_while_no_daemon_runs_is_taken_from_the_history() {
    let (mesh, mut lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    mesh.set_class(TEAM, DeliveryClass::Durable).await;
    let live = json!({ "deliveryClass": "live" }).to_string();
    god.kv(Bucket::Channels).put(DEFAULTS_KEY, live.into()).await.expect("defaults");
    lane.stop();
    lane.ended().await.expect("a clean end");
    let rows = [
        (Bucket::Members, key(&bob.lifecycle)),
        (Bucket::Acl, bob.lifecycle.dotted()),
        (Bucket::Channels, TEAM.to_owned()),
    ];
    for (bucket, key) in rows {
        for garbage in [r#"{"stream":"CHAT_main","seq":1}"#, "", "[]"] {
            god.kv(bucket).put(&key, garbage.into()).await.expect("a garbled row");
        }
    }
    alice.post(TEAM, "m", &[]).await;
    let _next = mesh.lane().await;
    assert_eq!(bob.receive(1).await, ["m"]);
    wait_for_row(&god, &bob.lifecycle, "a repaired row", |row| row.activated).await;
    let joined = bob.join(TEAM).await;
    assert_eq!((joined.durable, joined.generation), (true, 1));
}

/// A PubAck over the ACL row neither widens nor removes its rights; the manager repairs it.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_1_a_garbled_acl_row_leaves_the_last_valid_one_in_force() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let ack = r#"{"stream":"CHAT_main","seq":1}"#;
    god.kv(Bucket::Acl).put(&bob.lifecycle.dotted(), ack.into()).await.expect("a garbled row");
    alice.post(TEAM, "m", &[]).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    let joined = request(&bob, "durableJoin", json!({ "channel": "team.more" })).await;
    assert!(joined.ok, "{joined:?}");
    let refused = request(&bob, "durableJoin", json!({ "channel": "secret" })).await;
    assert_eq!(refused.code, Some(Code::Denied));
}
