//! Requests that arm nothing (TMR-5), and foreign messages on a timer's subjects.

use cotal_nats::{HeaderMap, HeaderName};
use cotal_testkit::{Mesh, Supervisor, eventually, logged};
use cotal_wire::timers::TimerBody;
use serde_json::json;

use super::support::{Endpoint, fired, nothing_fires, soon};

fn headers(pairs: &[(&'static str, &str)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.insert(HeaderName::from_static(name), *value);
    }
    Some(map)
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_5_what_carries_scheduling_headers_or_disagrees_with_its_subject_arms_nothing() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let supervisor = Supervisor::of(&mesh).await;
    let honest = |id: &str, deadline| {
        serde_json::to_vec(&TimerBody::new(&wf.timer(id), 1, deadline)).expect("JSON")
    };
    let fire = wf.space.ept_fire(&wf.timer("h"));
    let mut refused = 0;
    for header in [
        ("Nats-Schedule-Target", fire.as_str()),
        ("Nats-Schedule-TTL", "5m"),
        ("nats-schedule", "@at 2030-01-01T00:00:00Z"),
    ] {
        wf.ask_raw("h", headers(&[header]), honest("h", soon(0))).await.expect("a stored request");
        refused += 1;
    }
    let other = json!({ "v": 1, "timerId": "other", "generation": 1, "deadline": soon(0) });
    let far = json!({ "v": 1, "timerId": "h", "generation": 1, "deadline": 9_300_000_000_000_i64 });
    for body in [other.to_string(), far.to_string(), "{}".to_owned(), "no JSON".to_owned()] {
        wf.ask_raw("h", None, body.into_bytes()).await.expect("a stored request");
        refused += 1;
    }
    // It never blocks the requests behind it.
    let mut fires = wf.fires().await;
    wf.ask("behind", 1, soon(0)).await;
    assert_eq!(fired(&mut fires).await.0.timer_id, "behind");
    nothing_fires(&mut fires).await;
    assert_eq!(wf.last(&wf.space.ept_of(&wf.timer("h"))).await.map(|m| m.seq), None);
    let counted = || async {
        let status = supervisor.status().await;
        (status.armed_timers, status.refused_timers)
    };
    eventually("the counters", counted, |&counted| counted == (1, refused)).await;
    for why in ["scheduling header", "names the timer", "the deadline", "is not a timer request"] {
        let said = logged(&["a timer request arms nothing", why]);
        assert!(!said.is_empty(), "nothing in the log says {why:?}");
    }
}

/// A broker refuses to store headers that would have an effect by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn tmr_5_headers_that_schedule_roll_up_or_expire_are_not_even_stored() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let later =
        serde_json::to_vec(&TimerBody::new(&wf.timer("t"), 1, soon(600_000))).expect("JSON");
    for header in [
        ("Nats-Schedule", "@at 2030-01-01T00:00:00Z"),
        ("Nats-Schedule", "@every 1s"),
        ("Nats-Scheduler", "cotal.main.ept.wf.i1.1.t.armed"),
        ("Nats-Rollup", "sub"),
        ("Nats-Rollup", "all"),
        ("Nats-TTL", "1s"),
    ] {
        let stored = wf.ask_raw("t", headers(&[header]), later.clone()).await;
        assert!(stored.is_err(), "{header:?} was stored: {stored:?}");
    }
    wf.ask("t", 1, soon(600_000)).await;
    wf.is_armed("t", 1).await;
}

/// An agent can make the broker publish an answer on any subject (`wire.md` §8). Such an answer
/// arms nothing and blocks no generation, and the schedule that it overwrote is armed again by the
/// next request.
#[tokio::test(flavor = "multi_thread")]
async fn tmr_5_an_answer_that_is_aimed_at_a_timer_neither_arms_nor_blocks() {
    // In a space of three accounts no answer reaches EPT.
    let mesh = Mesh::of_one_account().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let deputy = mesh.peer("eve", &["ops"], &["ops"]).await;
    let mut fires = wf.fires().await;
    wf.ask("t", 5, soon(600_000)).await;
    wf.is_armed("t", 5).await;
    let (armed, fire) = (wf.space.ept_armed(&wf.timer("t")), wf.space.ept_fire(&wf.timer("t")));
    let request = wf.space.ept_schedule(&wf.timer("t"));
    let post = deputy.body("ops", "id1", "x", &[]).to_string();
    let channel = cotal_wire::Channel::parse("ops").expect("a channel");
    let subject = wf.space.chat(deputy.principal(), &channel);
    for target in [&request, &fire, &armed] {
        let (subject, body) = (subject.clone(), post.clone().into());
        let shot = deputy.connection.publish_with_reply(subject, target.clone(), None, body);
        shot.await.expect("a shot");
    }
    let last = || async { wf.last(&armed).await.map(|m| m.payload.starts_with(b"{\"stream\"")) };
    eventually("the PubAck on the schedule", last, |&hit| hit == Some(true)).await;
    wf.ask("t", 4, soon(0)).await;
    wf.ask("t", 5, soon(1_500)).await;
    let (body, _) = fired_timer(&mut fires).await;
    assert_eq!(body.generation, 5, "written over, and armed again by the same generation");
}

/// The next timer that fires; foreign messages on its subject are acked and skipped.
async fn fired_timer(fires: &mut cotal_nats::PullConsumer) -> (TimerBody, ()) {
    loop {
        let next = fires.next_one(std::time::Duration::from_secs(30)).await.expect("a pull");
        let next = next.expect("a fired timer");
        let body = TimerBody::parse(&next.payload);
        next.ack_confirmed().await.expect("an ack");
        if let Ok(body) = body {
            return (body, ());
        }
    }
}
