//! Which requests arm a timer, what fires, and which generation counts.

use std::time::Duration;

use cotal_testkit::{Mesh, eventually};
use cotal_wire::names::TIMER_WRITER;

use super::support::{Endpoint, fired, nothing_fires, soon};

/// Far enough away not to fire in a test.
const LATER: i64 = 600_000;

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_a_timer_fires_within_a_second_of_its_deadline_and_a_past_one_at_once() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let mut fires = wf.fires().await;
    for (id, ahead) in [("a", 1_300), ("b", 2_750), ("c", 400)] {
        wf.ask(id, 1, soon(ahead)).await;
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        let (body, late) = fired(&mut fires).await;
        assert!((0..1_000).contains(&late), "{} fired {late} ms after its deadline", body.timer_id);
        order.push(body.timer_id);
    }
    assert_eq!(order, ["c", "a", "b"]);
    let asked = soon(0);
    wf.ask("past", 1, asked - 86_400_000).await;
    let (body, late) = fired(&mut fires).await;
    assert_eq!(body.timer_id, "past");
    assert!(late - 86_400_000 < 1_500, "a past deadline waited {} ms", late - 86_400_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_what_was_asked_for_while_the_daemon_was_down_is_armed_when_it_is_back() {
    let mesh = Mesh::start().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let mut fires = wf.fires().await;
    wf.ask("past", 1, soon(-1_000)).await;
    wf.ask("later", 1, soon(LATER)).await;
    nothing_fires(&mut fires).await;
    assert_eq!(wf.armed("later").await, None, "nobody arms");
    let mut lane = mesh.lane().await;
    assert_eq!(fired(&mut fires).await.0.timer_id, "past");
    wf.is_armed("later", 1).await;
    lane.stop();
    lane.ended().await.expect("a clean stop");
    wf.ask("later", 2, soon(LATER)).await;
    let _lane = mesh.lane().await;
    wf.is_armed("later", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_the_same_generation_changes_nothing_and_a_lower_one_replaces_none() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let first = soon(LATER);
    wf.ask("t", 5, first).await;
    wf.is_armed("t", 5).await;
    let before = wf.last(&wf.space.ept_armed(&wf.timer("t"))).await.expect("a schedule").seq;
    let unchanged = async |what: &str| {
        settled(&mesh, &wf).await;
        let now = wf.last(&wf.space.ept_armed(&wf.timer("t"))).await.expect("a schedule");
        assert_eq!(now.seq, before, "{what}");
    };
    wf.ask("t", 5, first + 1_000).await;
    unchanged("the same generation").await;
    wf.ask("t", 4, soon(-1)).await;
    unchanged("a lower generation").await;
    // What counts is what the broker holds, not what a process remembers.
    lane.stop();
    lane.ended().await.expect("a clean stop");
    wf.ask("t", 4, soon(-1)).await;
    wf.ask("t", 5, soon(-1)).await;
    let _lane = mesh.lane().await;
    unchanged("after a restart of the daemon").await;
    wf.ask("t", 6, soon(LATER)).await;
    wf.is_armed("t", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_what_has_fired_never_fires_again() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let mut fires = wf.fires().await;
    wf.ask("t", 3, soon(0)).await;
    assert_eq!(fired(&mut fires).await.0.generation, 3);
    // The broker removes a schedule that has fired; the fired message still shows the generation.
    assert_eq!(wf.armed("t").await, None);
    wf.ask("t", 3, soon(0)).await;
    wf.ask("t", 2, soon(0)).await;
    settled(&mesh, &wf).await;
    nothing_fires(&mut fires).await;
    lane.stop();
    lane.ended().await.expect("a clean stop");
    // A writer that crashed before its acks, or lost its consumer, gets every request again.
    let god = mesh.god().await;
    let stream = wf.space.ept_req_stream();
    god.delete_consumer(&stream, TIMER_WRITER).await.expect("the writer's consumer");
    let _lane = mesh.lane().await;
    settled(&mesh, &wf).await;
    nothing_fires(&mut fires).await;
    wf.ask("t", 4, soon(0)).await;
    assert_eq!(fired(&mut fires).await.0.generation, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_a_timer_outlives_the_brokers_end_between_arming_and_firing() {
    let mut mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    wf.ask("due", 1, soon(3_000)).await;
    wf.ask("later", 1, soon(LATER)).await;
    wf.is_armed("due", 1).await;
    wf.is_armed("later", 1).await;
    mesh.kill_broker().await;
    mesh.restart_broker().await;
    wf.connection.connected(Duration::from_secs(30)).await.expect("a broker");
    let mut fires = wf.fires().await;
    let (body, _) = fired(&mut fires).await;
    assert_eq!((body.timer_id.as_str(), body.generation), ("due", 1));
    wf.is_armed("later", 1).await;
    // The writer works again after the broker is back.
    wf.ask("later", 2, soon(LATER)).await;
    wf.is_armed("later", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_ten_thousand_timers_are_armed_and_half_of_them_again() {
    const TIMERS: usize = 10_000;
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let deadline = soon(LATER);
    let ask = async |n: usize, generation: u64| {
        let timer = wf.timer(&format!("t{n}"));
        let body = cotal_wire::timers::TimerBody::new(&timer, generation, deadline);
        let body = serde_json::to_vec(&body).expect("JSON");
        let subject = wf.space.ept_schedule(&timer);
        wf.connection.publish(subject, None, body.into()).await.expect("a request");
    };
    for n in 0..TIMERS {
        ask(n, 1).await;
        if n % 2 == 0 {
            ask(n, 2).await;
        }
    }
    eventually("all armed", || wf.count("armed"), |&armed| armed == TIMERS).await;
    settled(&mesh, &wf).await;
    for n in [0, 1, 4_998, 4_999, 9_998, 9_999] {
        let armed = wf.armed(&format!("t{n}")).await.expect("an armed timer");
        assert_eq!(armed.generation, if n % 2 == 0 { 2 } else { 1 }, "timer {n}");
    }
}

/// Waits until every request so far is answered.
async fn settled(mesh: &Mesh, wf: &Endpoint) {
    let god = mesh.god().await;
    let stream = wf.space.ept_req_stream();
    let last = god.last_seq(&stream).await.expect("EPT_REQ");
    let floor = || async {
        let info = god.consumer_info(&stream, TIMER_WRITER).await;
        info.map_or(0, |info| info.ack_floor.stream_seq)
    };
    eventually("every request answered", floor, |&floor| floor >= last).await;
}
