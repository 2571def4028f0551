//! Streams that were restored from a copy, re-created or purged.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cotal_delivery::Lane;
use cotal_nats::NatsError;
use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually, logged};
use cotal_wire::control::Code;
use cotal_wire::names::{Bucket, DELIVERY, FANOUT, READER, dead_key};
use cotal_wire::rows::{AclRow, DeadReason, DeadRow, DeadState, DeliveryClass};
use cotal_wire::{Channel, Lifecycle, Space};
use serde_json::json;

const TEAM: &str = "team.backend";

/// The directory in which the broker keeps `stream`.
fn folder_of(mesh: &Mesh, stream: &str) -> PathBuf {
    fn find(dir: &Path, name: &str) -> Option<PathBuf> {
        for entry in fs::read_dir(dir).ok()?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if path.ends_with(Path::new("streams").join(name)) {
                    return Some(path);
                }
                if let Some(found) = find(&path, name) {
                    return Some(found);
                }
            }
        }
        None
    }
    find(&mesh.root().broker_jetstream(), stream).expect("the stream's folder")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
        }
    }
}

async fn stopped(mut lane: Lane) {
    lane.stop();
    lane.ended().await.expect("a clean end");
}

async fn back_again(mesh: &mut Mesh, peers: &[&Peer], god: &God) {
    mesh.restart_broker().await;
    for connection in peers.iter().map(|peer| &peer.connection).chain([&god.connection]) {
        connection.connected(Duration::from_secs(20)).await.expect("connected again");
    }
    let chat = || god.connection.last_seq("CHAT_main");
    eventually("CHAT", chat, Result::is_ok).await.expect("CHAT");
}

/// The copy is older than a join and a leave, so both name posts that CHAT no longer has. The
/// sequences are given out again to new posts.
#[tokio::test(flavor = "multi_thread")]
async fn fan_1_rdr_10_a_chat_that_went_back_withholds_no_post_and_gives_none_away() {
    let mut mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    let lane = mesh.lane().await;
    alice.post_many(TEAM, "old", 3).await;
    god.wait_until_settled(FANOUT).await;
    stopped(lane).await;
    mesh.kill_broker().await;
    let (chat, away) = (folder_of(&mesh, "CHAT_main"), mesh.dir().join("away"));
    copy(&chat, &away);

    back_again(&mut mesh, &[&alice, &bob, &carol], &god).await;
    let lane = mesh.lane().await;
    alice.post_many(TEAM, "lost", 6).await;
    assert!(bob.join(TEAM).await.durable);
    assert!(carol.join(TEAM).await.durable);
    alice.post_many(TEAM, "seen", 2).await;
    assert_eq!(bob.receive(2).await, ["seen0", "seen1"]);
    assert_eq!(carol.receive(2).await, ["seen0", "seen1"]);
    carol.leave(TEAM, 1).await;
    god.wait_until_settled(READER).await;
    stopped(lane).await;
    mesh.kill_broker().await;
    fs::remove_dir_all(&chat).expect("removed");
    copy(&away, &chat);

    back_again(&mut mesh, &[&alice, &bob, &carol], &god).await;
    assert_eq!(god.connection.last_seq("CHAT_main").await.expect("CHAT"), 3, "it went back");
    let _lane = mesh.lane().await;
    let (row, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    assert_eq!((row.join_cursor, row.leave_cursor, row.generation), (3, None, 1));
    let (row, _) = god.member(TEAM, &carol.lifecycle).await.expect("a row");
    assert_eq!((row.join_cursor, row.leave_cursor), (3, Some(3)));
    assert!(Supervisor::of(&mesh).await.status().await.corrected >= 2);
    alice.post_many(TEAM, "new", 8).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    assert_eq!(new_copies(&god, &bob).await, 8);
    assert_eq!(new_copies(&god, &carol).await, 0, "she had left");
}

/// How many of the new posts were handed off. What the agents receive tells less, because copies
/// that they acked just before the kill may be redelivered.
async fn new_copies(god: &God, peer: &Peer) -> usize {
    let copies = god.stored("DLV_main", &peer.space.dlv(&peer.lifecycle)).await;
    let is_new = |body: &[u8]| String::from_utf8_lossy(body).contains("\"new");
    copies.iter().filter(|copy| is_new(&copy.payload)).count()
}

fn parked(seq: u64, member: &Lifecycle, next_at: i64) -> DeadRow {
    DeadRow {
        seq,
        owner: member.principal.clone(),
        lifecycle_uid: member.uid,
        channel: Channel::parse(TEAM).expect("a channel"),
        chat_seq: 1,
        state: DeadState::Parked,
        reason: DeadReason::HandoffFailed,
        attempts: 1,
        first_at: 1,
        next_at,
    }
}

async fn put_dead(god: &God, row: &DeadRow) {
    let value = serde_json::to_vec(row).expect("JSON");
    god.kv(Bucket::Dead).put(&dead_key(row.seq), value.into()).await.expect("a dead row");
}

async fn no_dead(god: &God, seq: u64) {
    let dead = god.kv(Bucket::Dead);
    let key = dead_key(seq);
    let gone = |row: &Result<Option<cotal_nats::Entry>, NatsError>| {
        row.as_ref().is_ok_and(|row| row.as_ref().is_none_or(|row| row.live().is_none()))
    };
    eventually("no dead row", || dead.get(&key), gone).await.expect("the dead bucket");
}

/// The entry that gets the sequence next is another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_row_beyond_the_end_of_inbox_is_deleted_and_counted_as_missed() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    put_dead(&god, &parked(7, &bob.lifecycle, i64::MAX)).await;
    let _lane = mesh.lane().await;
    no_dead(&god, 7).await;
    let status = Supervisor::of(&mesh).await.status().await;
    assert_eq!((status.corrected, status.missed.len()), (1, 1), "{status:?}");
}

/// A row that was written before the clock was set back by a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_entry_waits_no_longer_than_its_delay_whatever_the_clock_says() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let _lane = mesh.lane().await;
    assert!(bob.join(TEAM).await.durable);
    alice.post(TEAM, "m", &[]).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    let tomorrow =
        i64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis());
    put_dead(&god, &parked(1, &bob.lifecycle, tomorrow.expect("a date") + 86_400_000)).await;
    no_dead(&god, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_made_again_under_a_lane_ends_it_with_its_own_line() {
    let dead = Space::parse("main").expect("a space").kv_stream(Bucket::Dead);
    for stream in ["CHAT_main", "INBOX_main", dead.as_str()] {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
        let mut lane = mesh.lane().await;
        alice.post_many(TEAM, "m", 3).await;
        god.wait_until_settled(FANOUT).await;
        let config = god.connection.stream_info(stream).await.expect("a stream").config;
        god.connection.delete_stream(stream).await.expect("deleted");
        god.connection.create_stream(stream, &config).await.expect("created");
        let ended = tokio::time::timeout(Duration::from_secs(30), lane.ended()).await;
        let error = ended.expect("an end").expect_err("a reason").to_string();
        let name = stream.trim_start_matches("KV_");
        assert!(error.contains(&format!("{name} was deleted")), "{error}");
        let fanout = format!("CHAT_main/{FANOUT}");
        let stands = god.consumers().await.contains(&fanout);
        assert_eq!(stands, stream != "CHAT_main", "a consumer at an old number");
    }
}

/// A purge is not shown by any watch.
#[tokio::test(flavor = "multi_thread")]
async fn memberships_that_are_purged_under_a_lane_are_written_back() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    let _lane = mesh.lane().await;
    assert!(bob.join(TEAM).await.durable);
    assert!(carol.join(TEAM).await.durable);
    let (before, _) = god.member(TEAM, &bob.lifecycle).await.expect("a row");
    let subject = mesh.space().kv_subject(
        Bucket::Members,
        &cotal_wire::names::member_key(&Channel::parse(TEAM).expect("one"), &bob.lifecycle),
    );
    for filter in [None, Some(subject.as_str())] {
        god.connection.purge_stream("KV_cotal_members_main", filter).await.expect("purged");
        let row = || god.member(TEAM, &bob.lifecycle);
        let (row, _) = eventually("bob's row", row, Option::is_some).await.expect("a row");
        let what = |it: &cotal_wire::rows::MemberRow| (it.generation, it.join_cursor, it.activated);
        assert_eq!(what(&row), what(&before));
        let row = || god.member(TEAM, &carol.lifecycle);
        eventually("carol's row", row, Option::is_some).await;
    }
    assert!(!logged(&["a member row was purged from its bucket"]).is_empty());
}

/// The newest row of the key is a valid one, and the watch shows no other.
#[tokio::test(flavor = "multi_thread")]
async fn inv_5_a_row_over_a_tombstone_revives_nobody_after_a_restart() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let row = god.acl(&bob.lifecycle).await;
    let tombstone = AclRow { retired: true, allow_subscribe: Vec::new(), ..row.clone() };
    god.put_acl(&bob.lifecycle, &tombstone).await;
    god.put_acl(&bob.lifecycle, &row).await;
    let _lane = mesh.lane().await;
    let named = json!({ "channel": TEAM, "lifecycleUid": bob.lifecycle.uid });
    let reply = bob.control(DELIVERY, "durableJoin", named).await.expect("a reply");
    assert_eq!(reply.code, Some(Code::Retired), "{reply:?}");
    assert!(god.member(TEAM, &bob.lifecycle).await.is_none());
}

/// Nine later rows push it out of the history; by then the daemon has kept it elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn inv_5_a_tombstone_that_is_pushed_out_of_its_history_still_counts() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let lane = mesh.lane().await;
    let row = god.acl(&bob.lifecycle).await;
    let tombstone = AclRow { retired: true, allow_subscribe: Vec::new(), ..row.clone() };
    god.put_acl(&bob.lifecycle, &tombstone).await;
    for _ in 0..9 {
        god.put_acl(&bob.lifecycle, &row).await;
    }
    let dead = god.kv(Bucket::Dead);
    let kept = |keys: &Result<Vec<String>, NatsError>| {
        keys.as_ref().is_ok_and(|keys| keys.iter().any(|key| key.starts_with("k.")))
    };
    eventually("a kept row", || dead.keys(), kept).await.expect("the dead bucket");
    stopped(lane).await;
    let _lane = mesh.lane().await;
    let named = json!({ "channel": TEAM, "lifecycleUid": bob.lifecycle.uid });
    let reply = bob.control(DELIVERY, "durableJoin", named).await.expect("a reply");
    assert_eq!(reply.code, Some(Code::Retired), "{reply:?}");
}

/// The flood comes while no daemon runs, and empties the key's history.
#[tokio::test(flavor = "multi_thread")]
async fn fan_7_a_channel_row_outlives_a_flood_of_garbage_and_a_restart() {
    const LIVE: &str = "team.live";
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let lane = mesh.lane().await;
    mesh.set_class(LIVE, DeliveryClass::Live).await;
    let join = || bob.control(DELIVERY, "durableJoin", json!({ "channel": LIVE }));
    assert_eq!(join().await.expect("a reply").code, Some(Code::Invalid), "it is live");
    stopped(lane).await;
    for _ in 0..9 {
        let garbage = br#"{"stream":"CHAT_main","seq":7}"#.as_slice().into();
        god.kv(Bucket::Channels).put(LIVE, garbage).await.expect("garbage");
    }
    let _lane = mesh.lane().await;
    assert_eq!(join().await.expect("a reply").code, Some(Code::Invalid), "it still is");
}
