//! What agents are told that would otherwise be lost in silence: posts that they missed, and posts
//! of their own that were refused or stand already.

use std::time::Duration;

use cotal_client::{Draft, MissedPosts, Notice, RETRY_WITHIN, SendError};
use cotal_testkit::{God, Mesh, Supervisor};
use cotal_wire::names::{FANOUT, READER};
use cotal_wire::posts::RefusedPost;

use crate::support::{
    channel, chat, endpoint, message, nothing, notice, post_raw, sender, stopped,
};

fn is_missed(notice: &Notice) -> bool {
    matches!(notice, Notice::PostsMissed(_))
}

/// How many losses of bob the daemon has counted, once it counts no more.
async fn counted(mesh: &Mesh) -> u64 {
    let supervisor = Supervisor::of(mesh).await;
    let look = || async {
        let missed = supervisor.status().await.missed;
        missed.iter().find(|m| m.member.actor() == "bob").map_or(0, |m| m.missed)
    };
    let mut last = cotal_testkit::eventually("a loss", look, |count| *count > 0).await;
    let mut same = 0;
    while same < 3 {
        // Full members are looked at every second.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let count = look().await;
        same = if count == last { same + 1 } else { 0 };
        last = count;
    }
    last
}

/// A mesh in which bob has lost some of what alice posted on `team.a`; says how much was lost.
async fn with_losses(posts: usize) -> (Mesh, cotal_delivery::Lane, String, u64) {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &[], &["team.>"]).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let on = channel("team.a");
    sender(&mesh, &bob).await.join(&on).await;
    alice.post_many(on.as_str(), "m", posts).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    let counted = counted(&mesh).await;
    (mesh, daemon, bob, counted)
}

/// Unix milliseconds so long ago that the broker does not recognize an id any more.
fn long_ago() -> i64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("the test's own step");
    i64::try_from((now - RETRY_WITHIN * 2).as_millis()).expect("the test's own step")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_posts_is_told_which_and_how_many_once() {
    let (mesh, daemon, bob, counted) = with_losses(1_500).await;
    assert!((1..=500).contains(&counted), "{counted} of 500");

    let reader = sender(&mesh, &bob).await;
    let episodes = reader.missed_posts().await.unwrap();
    let lost: u64 = episodes.iter().map(|episode| episode.missed).sum();
    let bounds = (episodes[0].from, episodes.last().unwrap().to);
    assert_eq!((lost, bounds), (counted, (1, 500)));
    assert_eq!(reader.missed_posts().await.unwrap(), [], "they were given already");
    reader.close().await;
    // It did not say that it showed them, so the next one is told again.
    let reader = sender(&mesh, &bob).await;
    for episode in reader.missed_posts().await.unwrap() {
        reader.missed_shown(&episode).await;
    }
    reader.close().await;

    // The next endpoint is told nothing of what was shown, and reads on where the store begins.
    let reader = endpoint(&mesh, &bob).await;
    let first = message(&reader).await;
    assert_eq!(first.text(), "m500");
    assert_eq!(reader.missed_posts().await.unwrap(), []);
    stopped(daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_tells_its_caller_of_posts_that_were_lost_before_it_came() {
    let (mesh, daemon, bob, counted) = with_losses(1_200).await;
    let reader = endpoint(&mesh, &bob).await;
    let mut lost = 0;
    while lost < counted {
        let Notice::PostsMissed(MissedPosts { missed, .. }) = notice(&reader, is_missed).await
        else {
            unreachable!()
        };
        lost += missed;
    }
    assert_eq!(lost, counted);
    reader.close().await;
    let reader = sender(&mesh, &bob).await;
    assert_eq!(reader.missed_posts().await.unwrap(), [], "it was shown and is not told again");
    stopped(daemon).await;
}

#[tokio::test]
async fn a_sender_is_told_by_the_daemon_that_its_posts_are_refused_once_an_episode() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let god = God::of(&mesh).await;
    let alice = mesh.add_agent("alice", &[], &["a"], None).await;
    let raw = mesh.connect(&alice).await;
    let forged = r#"{"id":"x","from":{"id":"local.alice"},"channel":"b","parts":[]}"#;
    for body in [forged, "not JSON", "{}"] {
        post_raw(&raw, &mesh, "alice", "a", body).await;
    }
    god.wait_until_settled(FANOUT).await;
    let alice = endpoint(&mesh, &alice).await;
    let told = message(&alice).await;
    let data = serde_json::to_value(&told.message.parts[1]).unwrap();
    let data: RefusedPost = serde_json::from_value(data["data"].clone()).unwrap();
    assert_eq!((data.kind.as_str(), data.seq, data.channel.as_str()), ("post.refused", 1, "a"));
    assert_eq!(told.message.from.name, "delivery");
    assert!(told.text().contains(&data.reason), "{}", told.text());
    told.ack_confirmed().await.unwrap();
    nothing(&alice).await;
    stopped(daemon).await;
}

#[tokio::test]
async fn a_post_that_is_stored_is_not_stored_again_however_late_it_is_sent_again() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let creds = mesh.add_agent("alice", &[], &["a"], None).await;
    let on = channel("a");
    let first = sender(&mesh, &creds).await.post(&on, "once").await.unwrap();
    // The broker forgets its ids, as it does after two minutes.
    forget_ids(&mesh).await;

    let alice = sender(&mesh, &creds).await;
    let again = Draft::text("once").retry_of(first.id.as_str());
    let posted = alice.post(&on, again.clone().first_sent(long_ago())).await.unwrap();
    assert_eq!(posted, first);
    let posted = alice.post(&on, again.clone()).await.unwrap();
    assert_eq!(posted, first, "also by who does not know when it was first sent");
    let other = Draft::text("other").retry_of("another-id").first_sent(long_ago());
    let other = alice.post(&on, other).await.unwrap();
    let messages = chat(&mesh).await.messages;
    assert!(other.seq > first.seq && messages == 2, "what is not stored is posted: {other:?}");
    stopped(daemon).await;

    let unverified = sender(&mesh, &creds).await.post(&on, again).await.unwrap_err();
    assert!(matches!(unverified, SendError::Unverified { .. }), "{unverified:?}");
    assert_eq!(chat(&mesh).await.messages, 2);
}

#[tokio::test]
async fn a_direct_message_or_a_request_that_the_broker_would_store_twice_is_not_sent_again() {
    let mesh = Mesh::start().await;
    let alice = mesh.add_agent("alice", &[], &[], None).await;
    let alice = sender(&mesh, &alice).await;
    let late = || Draft::text("x").retry_of("some-id").first_sent(long_ago());
    let refused = alice.dm(alice.principal(), late()).await.unwrap_err();
    assert!(matches!(refused, SendError::TooLate { .. }), "{refused:?}");
    let role = cotal_client::Role::parse("reviewer").unwrap();
    let refused = alice.ask(&role, late()).await.unwrap_err();
    assert!(matches!(refused, SendError::TooLate { .. }), "{refused:?}");
    let dm = alice.dm(alice.principal(), Draft::text("x").with_id("some-id")).await.unwrap();
    let again = alice.dm(alice.principal(), Draft::text("x").retry_of("some-id")).await.unwrap();
    assert_eq!(again, dm, "within the broker's window it is the same one");
}

/// Makes CHAT's duplicate window short for a moment, so that it knows no id any more.
async fn forget_ids(mesh: &Mesh) {
    let god = mesh.god().await;
    let stream = mesh.space().chat_stream();
    let mut config = god.stream_info(&stream).await.expect("the test's own step").config;
    let window = std::mem::replace(&mut config.duplicate_window, 100_000_000);
    god.update_stream(&stream, &config).await.expect("the test's own step");
    let probe = || async {
        let principal =
            cotal_client::Principal::new("local", "probe").expect("the test's own step");
        let subject = mesh.space().chat(&principal, &channel("probe"));
        let sent = god
            .publish_confirmed(subject, None, "{}".into(), Some("probe"))
            .await
            .expect("the test's own step");
        // What the probe stored is taken away again, so that CHAT holds the test's posts alone.
        if !sent.duplicate {
            god.delete_message(&stream, sent.seq).await.expect("the test's own step");
        }
        sent.duplicate
    };
    probe().await;
    cotal_testkit::eventually("a broker that has forgotten", probe, |duplicate| !duplicate).await;
    config.duplicate_window = window;
    god.update_stream(&stream, &config).await.expect("the test's own step");
}
