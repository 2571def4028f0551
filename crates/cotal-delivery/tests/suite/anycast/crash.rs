//! The daemon dies between any two of its steps.

use std::time::Duration;

use cotal_testkit::eventually;
use cotal_wire::names::{ANYCAST_TAKE, DELIVERY};
use cotal_wire::rows::{RequestRow, RequestState};
use serde_json::json;

use super::support::{Burst, ROLE, SOON, Scene, ask, cancel, pull, reason, row_of, state};

fn is_marked(seen: &Option<(RequestRow, u64)>) -> bool {
    seen.as_ref().is_some_and(|(row, _)| row.notified)
}

#[tokio::test(flavor = "multi_thread")]
async fn any_6_a_notice_that_a_crash_left_unsent_is_sent_at_the_next_start() {
    let mut scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    drop(scene.taken_and_killed().await);
    assert!(scene.notices().await.is_empty());
    scene.serve().await;
    let told = scene.told(1).await;
    assert_eq!(
        (&told[0].1["type"], &told[0].1["holder"]),
        (&"anycast.taken".into(), &"local.bob".into())
    );
    eventually("the mark", || scene.god.request(seq), is_marked).await;
}

/// A notice that was sent and not marked is sent again under the same id, which changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn any_3_a_notice_that_a_crash_left_unmarked_is_not_told_twice() {
    let mut scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    let told = scene.told(1).await;
    scene.kill().await;
    let row = scene.row(seq).await;
    assert!(row.notified);
    scene.god.put_request(&RequestRow { notified: false, ..row }).await;
    scene.serve().await;
    eventually("the mark", || scene.god.request(seq), is_marked).await;
    assert_eq!(scene.told(1).await, told);
}

/// Before a row with an unsent notice is replaced, that notice is sent, with its original content.
#[tokio::test(flavor = "multi_thread")]
async fn any_3_a_take_after_a_crash_settles_the_notice_before_it() {
    let mut scene = Scene::new().await;
    scene.god.hasten("TASK_main", &format!("svc_{ROLE}")).await;
    let seq = ask(&scene.alice, "work").await;
    let first = pull(&scene.carol).await;
    assert!(scene.take(&scene.carol, &first).await.ok);
    scene.told(1).await;
    // A daemon moved it to bob and died before it could send the notice.
    let second = scene.taken_and_killed().await;
    assert_eq!(second.delivered, 2);
    let third = pull(&scene.carol).await;
    scene.serve().await;
    assert!(scene.take(&scene.carol, &third).await.ok);
    let told = scene.told(3).await;
    let told: Vec<_> =
        told.iter().map(|(_, data)| (data["type"].clone(), data["holder"].clone())).collect();
    let moved = |to: &str| ("anycast.moved".into(), to.into());
    assert_eq!(told[1..], [moved("local.bob"), moved("local.carol")]);
    assert_eq!(scene.row(seq).await.delivery, Some(third.delivered));
}

/// The row is written and the request is not deleted: the next daemon deletes it, and until then no
/// holder gets it.
#[tokio::test(flavor = "multi_thread")]
async fn any_5_a_cancel_that_a_crash_cut_short_is_completed() {
    let mut scene = Scene::new().await;
    let seq = ask(&scene.alice, "never mind").await;
    let copy = pull(&scene.bob).await;
    let row = row_of(seq, &scene.created().await, RequestState::Cancelled);
    scene.god.put_request(&row).await;
    assert!(scene.stands(seq).await);
    assert_eq!(reason(&scene.take(&scene.bob, &copy).await), "cancelled");
    assert_eq!(state(&scene.alice, seq).await, "cancelled");
    scene.kill().await;
    scene.serve().await;
    eventually("the request is deleted", || scene.stands(seq), |stands| !stands).await;
    assert!(cancel(&scene.alice, seq).await.ok);
}

/// Cancels and takes are in progress when the daemon is killed. Those that were answered hold; each
/// other one was done completely, or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn any_2_a_daemon_killed_in_the_middle_leaves_nothing_half() {
    let mut scene = Scene::new().await;
    let created = scene.created().await;
    let mut seqs = Vec::new();
    for n in 0..60 {
        seqs.push(ask(&scene.alice, &format!("m{n}")).await);
    }
    let mut cancels = Burst::new(&scene.alice, DELIVERY).await;
    let mut takes = Burst::new(&scene.bob, ANYCAST_TAKE).await;
    for (&first, &last) in seqs.iter().zip(seqs.iter().rev()) {
        cancels.ask(first, "anycastCancel", json!({ "seq": first })).await;
        let args = json!({ "seq": last, "streamCreated": created, "delivery": 1 });
        takes.ask(last, "take", args).await;
    }
    let mut answered = Vec::new();
    for _ in 0..5 {
        answered.extend(cancels.answer(SOON).await.map(|(seq, reply)| (seq, reply.ok, false)));
        answered.extend(takes.answer(SOON).await.map(|(seq, reply)| (seq, false, reply.ok)));
    }
    drop(scene.lane.take());
    let quiet = Duration::from_millis(300);
    while let Some((seq, reply)) = cancels.answer(quiet).await {
        answered.push((seq, reply.ok, false));
    }
    while let Some((seq, reply)) = takes.answer(quiet).await {
        answered.push((seq, false, reply.ok));
    }
    drop((cancels, takes));
    scene.god.free_lease().await;
    scene.serve().await;
    let mut taken = 0;
    for &seq in &seqs {
        let row = scene.god.request(seq).await.map(|(row, _)| row);
        let cancelled = row.as_ref().is_some_and(|row| row.state == RequestState::Cancelled);
        let held = row.as_ref().is_some_and(|row| row.state == RequestState::Taken);
        for (_, back, took) in answered.iter().filter(|(of, ..)| *of == seq) {
            assert!(!back || cancelled, "{seq} was cancelled: {row:?}");
            assert!(!took || held, "{seq} was taken: {row:?}");
        }
        if cancelled {
            eventually("it is deleted", || scene.stands(seq), |stands| !stands).await;
        } else {
            assert!(scene.stands(seq).await, "{seq} is neither done nor taken back: {row:?}");
        }
        if held {
            taken += 1;
            eventually("its notice is marked", || scene.god.request(seq), is_marked).await;
        }
    }
    assert!(answered.len() >= 10, "{answered:?}");
    assert_eq!(scene.notices().await.len(), taken, "one notice a take");
}
