//! Posts that are not routed yet: neither a burst nor an absent daemon loses one, and posts that
//! CHAT cannot keep are counted, reported and shown (FAN-1, `wire.md` §3).

use cotal_testkit::{God, Peer, Supervisor, eventually, logged, with_member};
use cotal_wire::control::UnroutedPosts;
use cotal_wire::names::{FANOUT, READER};
use serde_json::Value;

const TEAM: &str = "team.backend";
const CHAT: &str = "CHAT_main";
const FELL_OUT: &[&str] = &["CHAT's cap discarded posts before they were routed", "local.alice"];

/// Waits until each of `peers` has `count` copies.
async fn each_holds(god: &God, peers: &[&Peer], count: u64) {
    let held = || async {
        let page = god.connection.stream_info_subjects("DLV_main", "cotal.main.dlv.>", 0).await;
        page.expect("DLV").subjects
    };
    let wanted: Vec<_> = peers.iter().map(|peer| peer.space.dlv(&peer.lifecycle)).collect();
    eventually("every copy is handed off", held, |held| {
        let of = |subject: &String| held.iter().find(|(it, _)| it == subject).map_or(0, |it| it.1);
        wanted.iter().all(|subject| of(subject) == count)
    })
    .await;
}

async fn settled(god: &God) {
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
}

async fn posts_kept(god: &God) -> u64 {
    god.connection.stream_state(CHAT).await.expect("CHAT").messages
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_1_a_burst_of_twenty_thousand_posts_is_routed_whole_and_then_trimmed() {
    let (mesh, _lane, alice, bob, god) = with_member(TEAM).await;
    god.lift_cap("DLV_main").await;
    alice.post_many(TEAM, "p", 20_000).await;
    for _ in 0..4 {
        // Each wait may take half a minute.
        let floor = || async {
            let info = god.connection.consumer_info(CHAT, FANOUT).await.expect("the consumer");
            info.ack_floor.stream_seq
        };
        let before = floor().await;
        eventually("posts are routed", floor, |floor| *floor >= 20_000 || *floor > before + 4_000)
            .await;
    }
    settled(&god).await;
    each_holds(&god, &[&bob], 20_000).await;
    let kept = eventually("CHAT is trimmed", || posts_kept(&god), |kept| *kept < 1_500).await;
    assert!(kept >= 1_000, "history keeps a thousand, not {kept}");
    assert_eq!(Supervisor::of(&mesh).await.status().await.unrouted, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_1_ten_thousand_posts_wait_for_a_daemon_that_is_away() {
    let (mesh, mut lane, alice, bob, god) = with_member(TEAM).await;
    god.lift_cap("DLV_main").await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    alice.post_many(TEAM, "p", 10_000).await;
    let _next = mesh.lane().await;
    god.wait_for_entries(9_000).await;
    settled(&god).await;
    each_holds(&god, &[&bob], 10_000).await;
    assert_eq!(Supervisor::of(&mesh).await.status().await.unrouted, []);
}

/// Counted per sender, as exactly as CHAT allows.
#[tokio::test(flavor = "multi_thread")]
async fn fan_1_posts_that_fall_out_of_chat_are_counted_told_once_and_shown() {
    let (mesh, mut lane, alice, bob, god) = with_member(TEAM).await;
    let carol = mesh.peer("carol", &["team.>"], &["team.>"]).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    god.cap_subjects(CHAT, 500).await;
    alice.post_many(TEAM, "a", 800).await;
    carol.post_many(TEAM, "c", 10).await;
    let _next = mesh.lane().await;
    let supervisor = Supervisor::of(&mesh).await;
    let count = |posts: &[UnroutedPosts]| posts.iter().map(|it| it.at_least).sum::<u64>();
    let status = eventually(
        "the loss is found",
        || supervisor.status(),
        |status| count(&status.unrouted) > 0,
    );
    let lost = |first, last, count| UnroutedPosts {
        sender: Some(alice.principal().clone()),
        channel: Some(cotal_wire::Channel::parse(TEAM).expect("a channel")),
        first,
        last,
        at_least: count,
        at_most: count,
    };
    assert_eq!(status.await.unrouted, [lost(1, 300, 300)]);
    assert_eq!(bob.receive(510).await.len(), 510);

    // The same episode: counted, and not reported again.
    settled(&god).await;
    god.pause(FANOUT).await;
    alice.post_many(TEAM, "b", 700).await;
    god.resume(FANOUT).await;
    eventually("more is found", || supervisor.status(), |s| count(&s.unrouted) >= 500).await;
    assert_eq!(supervisor.status().await.unrouted, [lost(1, 1_010, 500)]);
    assert_eq!(bob.receive(500).await.len(), 500);
    assert_eq!(logged(FELL_OUT).len(), 1);

    let told = god.stored("DM_main", "cotal.main.inst.local.alice.>").await;
    let [told] = &told[..] else { panic!("told {} times", told.len()) };
    let body: Value = serde_json::from_slice(&told.payload).expect("JSON");
    assert_eq!(body["parts"][1]["data"]["type"], "unrouted");
    assert_eq!(body["parts"][1]["data"]["channel"], TEAM);
    assert!(told.subject.ends_with(body["from"]["id"].as_str().expect("a sender")));
}

/// Somebody deletes posts: no sender posted too much, and the loss is still noticed.
#[tokio::test(flavor = "multi_thread")]
async fn fan_1_posts_that_are_deleted_before_they_are_routed_are_counted() {
    let (mesh, _lane, alice, bob, god) = with_member(TEAM).await;
    god.pause(FANOUT).await;
    alice.post_many(TEAM, "a", 5).await;
    for seq in [2, 3] {
        god.connection.delete_message(CHAT, seq).await.expect("a deleted post");
    }
    god.resume(FANOUT).await;
    assert_eq!(bob.receive(3).await, ["a0", "a3", "a4"]);
    let supervisor = Supervisor::of(&mesh).await;
    let status = eventually("they are counted", || supervisor.status(), |s| !s.unrouted.is_empty());
    let unrouted = status.await.unrouted;
    let [lost] = &unrouted[..] else { panic!("{unrouted:?}") };
    assert_eq!((&lost.sender, lost.first, lost.last), (&None, 2, 3));
    assert_eq!((lost.at_least, lost.at_most), (2, 2));
}
