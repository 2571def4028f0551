//! Takes, and the notices to senders.

use cotal_testkit::{God, eventually};
use cotal_wire::control::Code;
use cotal_wire::rows::RequestState;
use serde_json::{Value, json};

use super::support::{ROLE, Scene, ask, cancel, pull, pull_many, reason, row_of, state, take};

#[tokio::test(flavor = "multi_thread")]
async fn any_1_a_take_is_recorded_under_the_creation_time_that_the_holder_saw() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "look at this").await;
    let copy = pull(&scene.bob).await;
    for other in ["2020-01-01T00:00:00Z", "yesterday", ""] {
        let refused = take(&scene.bob, seq, other, 1).await;
        assert_eq!((reason(&refused), refused.code), ("recreated".into(), Some(Code::Superseded)));
    }
    assert!(scene.god.request(seq).await.is_none(), "a refused take leaves no record");
    let taken = scene.take(&scene.bob, &copy).await;
    assert_eq!(taken.data, Some(json!({ "taken": true })));
    let row = scene.row(seq).await;
    assert_eq!(row.holder.as_ref(), Some(scene.bob.principal()));
    assert_eq!((row.state, row.delivery, row.role.as_str()), (RequestState::Taken, Some(1), ROLE));
    assert_eq!(row.stream_created, scene.created().await);
}

/// The new stream gives the same number to another request.
#[tokio::test(flavor = "multi_thread")]
async fn any_1_a_take_of_a_stream_that_was_recreated_since_is_refused() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "of the old stream").await;
    let (copy, old) = (pull(&scene.bob).await, scene.created().await);
    assert!(scene.take(&scene.bob, &copy).await.ok);
    scene.god.recreate_task(&[ROLE]).await;
    assert_eq!(ask(&scene.alice, "of the new stream").await, seq);
    assert_eq!(reason(&take(&scene.carol, seq, &old, 1).await), "recreated");
    assert_eq!(state(&scene.alice, seq).await, "queued", "the old record is none of it");
    let copy = pull(&scene.carol).await;
    assert!(scene.take(&scene.carol, &copy).await.ok);
    let row = scene.row(seq).await;
    assert_eq!(row.holder.as_ref(), Some(scene.carol.principal()));
    assert_eq!(row.stream_created, scene.created().await);
    let told = scene.told(2).await;
    assert!(told.iter().all(|(_, data)| data["type"] == "anycast.taken"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_2_of_takes_and_a_cancel_exactly_one_wins() {
    let scene = Scene::new().await;
    let created = scene.created().await;
    let mut won = [0, 0];
    for n in 0..32 {
        let seq = ask(&scene.alice, &format!("m{n}")).await;
        let copy = pull(&scene.bob).await;
        assert_eq!(copy.stream_seq, seq);
        // The delay grows, so that the two meet at every step.
        let later = async |holder| {
            for _ in 0..n % 8 {
                scene.god.connection.round_trip().await.expect("a broker");
            }
            take(holder, seq, &created, 1).await
        };
        let (one, other, back) =
            tokio::join!(later(&scene.bob), later(&scene.carol), cancel(&scene.alice, seq));
        let winners = [one.ok, other.ok, back.ok];
        assert_eq!(winners.iter().filter(|won| **won).count(), 1, "{winners:?}: {back:?}");
        let row = scene.row(seq).await;
        if back.ok {
            assert_eq!((row.state, row.holder), (RequestState::Cancelled, None));
            assert!(!scene.stands(seq).await, "cancelled and still queued");
            assert!(!one.ok && ["cancelled", "gone"].contains(&reason(&one).as_str()));
        } else {
            let holder = if one.ok { &scene.bob } else { &scene.carol };
            assert_eq!(row.holder.as_ref(), Some(holder.principal()));
            let held = back.data.expect("details");
            assert_eq!((back.code, &held["holder"]), (Some(Code::Conflict), &json!(row.holder)));
            assert!(scene.stands(seq).await);
        }
        won[usize::from(back.ok)] += 1;
        copy.term().await.expect("sent");
    }
    assert!(won.iter().all(|times| *times > 0), "nothing raced: {won:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_3_the_sender_is_told_who_has_its_request_and_when_it_moved() {
    let scene = Scene::new().await;
    scene.god.hasten("TASK_main", &format!("svc_{ROLE}")).await;
    let seq = ask(&scene.alice, "work").await;
    let first = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &first).await.ok);
    // The ack wait runs out and the same holder gets it again: the sender is not told.
    let second = pull(&scene.bob).await;
    assert_eq!((second.stream_seq, second.delivered), (seq, 2));
    assert!(scene.take(&scene.bob, &second).await.ok);
    let third = pull(&scene.carol).await;
    assert!(scene.take(&scene.carol, &third).await.ok);

    let created = cotal_wire::anycast::Created::parse(&scene.created().await).expect("a time");
    let data = |kind: &str, holder: &str| json!({ "type": kind, "seq": seq, "role": ROLE, "holder": holder });
    let id = |delivery| format!("anycast-{}-{seq}-{delivery}", created.millis());
    let told = scene.told(2).await;
    assert_eq!(told[0], (id(1), data("anycast.taken", "local.bob")));
    assert_eq!(told[1], (id(3), data("anycast.moved", "local.carol")));
    // The sender reads it as any direct message, from the daemon's own principal.
    let message: Value = serde_json::from_slice(&scene.notices().await[0].payload).expect("JSON");
    let (to, from) = scene.alice.space.parse_inst(&scene.notices().await[0].subject).expect("one");
    assert_eq!(to, *scene.alice.principal());
    assert_eq!(message["from"], json!({ "id": from, "name": "delivery", "role": "delivery" }));
    assert!(message["parts"][0]["text"].as_str().expect("a text").contains("local.bob"));
    let consumer = scene.alice.space.dm_consumer(&scene.alice.lifecycle);
    let info = scene.alice.connection.consumer_info("DM_main", &consumer).await;
    assert_eq!(info.expect("its consumer").num_pending, 2);
    assert_eq!(holder_of_lease(&scene.god).await, from.to_string());
}

async fn holder_of_lease(god: &God) -> String {
    let kv = god.kv(cotal_wire::names::Bucket::Delivery);
    let row = kv.get(cotal_wire::names::LEASE_KEY).await.expect("the lease").expect("a lease");
    let row: Value = serde_json::from_slice(&row.value).expect("a row");
    row["holder"].as_str().expect("a holder").to_owned()
}

/// A take is requested again after a lost reply, after the work was done, and by others.
#[tokio::test(flavor = "multi_thread")]
async fn any_2_a_replayed_take_changes_nothing() {
    let scene = Scene::new().await;
    let created = scene.created().await;
    let seq = ask(&scene.alice, "work").await;
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    let (_, revision) = scene.god.request(seq).await.expect("a record");
    for _ in 0..3 {
        assert!(take(&scene.bob, seq, &created, 1).await.ok);
        assert_eq!(reason(&take(&scene.carol, seq, &created, 1).await), "held");
        assert_eq!(reason(&take(&scene.bob, seq, &created, 0).await), "gone");
    }
    assert_eq!(scene.god.request(seq).await.expect("a record").1, revision);
    copy.ack_confirmed().await.expect("an ack");
    assert_eq!(reason(&take(&scene.bob, seq, &created, 1).await), "gone");
    assert_eq!(reason(&take(&scene.carol, seq, &created, 2).await), "gone");
    assert_eq!(scene.told(1).await.len(), 1);
}

/// A request that a dead holder had taken goes to another holder, and its sender is told that it
/// moved.
#[tokio::test(flavor = "multi_thread")]
async fn any_3_a_holder_that_dies_after_its_take_loses_the_request_to_another() {
    let scene = Scene::new().await;
    scene.god.hasten("TASK_main", &format!("svc_{ROLE}")).await;
    let creds = scene.mesh.add_agent("dave", &[], &[], Some(ROLE)).await;
    let seq = ask(&scene.alice, "work").await;
    let dave = cotal_testkit::Peer::connect(scene.mesh.url(), &creds).await;
    let copy = pull(&dave).await;
    assert!(scene.take(&dave, &copy).await.ok);
    drop((copy, dave));
    let copy = pull(&scene.carol).await;
    assert_eq!((copy.stream_seq, copy.delivered), (seq, 2));
    assert!(scene.take(&scene.carol, &copy).await.ok);
    copy.ack_confirmed().await.expect("an ack");
    let told = scene.told(2).await;
    assert_eq!(told[1].1["type"], "anycast.moved");
    assert!(!scene.stands(seq).await);
}

/// Records are removed a day after their request has left the queue, at start and at every sweep;
/// others stay.
#[tokio::test(flavor = "multi_thread")]
async fn any_6_a_record_goes_a_day_after_its_request_left_the_queue() {
    let mut scene = Scene::new().await;
    assert_eq!(scene.mesh.lane_options().sweep_every.as_secs(), 600);
    scene.kill().await;
    let created = scene.created().await;
    let now = cotal_manager::clock::unix_millis();
    let day = 24 * 3_600 * 1_000;
    for (seq, gone) in [(1_001, now - day - 1), (1_002, now - day + 3_600_000), (1_003, 1)] {
        let state = RequestState::Taken;
        let row = cotal_wire::rows::RequestRow { gone, ..row_of(seq, &created, state) };
        scene.god.put_request(&row).await;
    }
    let mut options = scene.mesh.lane_options();
    options.sweep_every = std::time::Duration::from_millis(200);
    scene.lane = Some(cotal_testkit::serving(cotal_delivery::Lane::start(options)).await);
    for seq in [1_001, 1_003] {
        eventually("an old record goes", || scene.god.request(seq), Option::is_none).await;
        let key = cotal_wire::names::request_key(seq);
        let left = scene.god.kv(cotal_wire::names::Bucket::Anycast).history(&key).await;
        assert_eq!(left.expect("the bucket").len(), 1, "and its history with it");
    }
    assert!(scene.god.request(1_002).await.is_some());

    // A record whose request leaves the queue now is dated at the next sweep, and kept.
    let seq = ask(&scene.alice, "work").await;
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    assert_eq!(scene.row(seq).await.gone, 0);
    copy.ack_confirmed().await.expect("an ack");
    let dated = |seen: &Option<(cotal_wire::rows::RequestRow, u64)>| {
        seen.as_ref().is_some_and(|(row, _)| row.gone >= now)
    };
    eventually("the record is dated", || scene.god.request(seq), dated).await;
    assert_eq!(state(&scene.alice, seq).await, "taken");
}

/// The sender need not wait for the sweep to see that a request is done.
#[tokio::test(flavor = "multi_thread")]
async fn any_4_a_status_shows_at_once_that_the_request_has_left_the_queue() {
    let scene = Scene::new().await;
    let seq = ask(&scene.alice, "work").await;
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    let gone = async || {
        let reply = super::support::status(&scene.alice, seq).await;
        reply.data.expect("data")["gone"].as_i64().expect("an instant")
    };
    assert_eq!(gone().await, 0);
    copy.ack_confirmed().await.expect("an ack");
    assert!(gone().await > 0);
    assert_eq!(scene.row(seq).await.gone, gone().await);
}

/// The procedure of `docs/operations.md`: stop, wait for the exit and the closed connection,
/// re-create, start. Nothing of the old stream affects the requests of the new one.
#[tokio::test(flavor = "multi_thread")]
async fn any_7_the_task_stream_is_recreated_while_no_daemon_runs() {
    let page = include_str!("../../../../../docs/operations.md");
    let section = page.split("## Recreating the task stream").nth(1).expect("the procedure");
    for step in ["Stop every daemon", "connection has closed", "start"] {
        assert!(section.contains(step), "{step:?} is not in the procedure");
    }
    let mut scene = Scene::new().await;
    let seqs = [ask(&scene.alice, "cancelled").await, ask(&scene.alice, "taken").await];
    assert!(cancel(&scene.alice, seqs[0]).await.ok);
    let copy = pull(&scene.bob).await;
    assert!(scene.take(&scene.bob, &copy).await.ok);
    let mut lane = scene.lane.take().expect("a daemon");
    lane.stop();
    lane.ended().await.expect("a clean end");
    scene.god.recreate_task(&[ROLE]).await;
    scene.serve().await;
    for (seq, text) in seqs.into_iter().zip(["one", "two"]) {
        assert_eq!(ask(&scene.alice, text).await, seq);
        assert_eq!(state(&scene.alice, seq).await, "queued");
    }
    for copy in pull_many(&scene.bob, 2).await {
        assert!(scene.take(&scene.bob, &copy).await.ok, "{}", copy.stream_seq);
    }
}
