//! A workflow endpoint's timers through the library.

use std::time::Duration;

use cotal_client::{Credential, NatsError, Timer, TimerError, Timers, TlsMode};
use cotal_testkit::{Mesh, eventually, unix_millis};

use crate::support::{QUIET, SOON};

async fn timers(mesh: &Mesh, endpoint: &str) -> Timers {
    let creds = Credential::Text(mesh.add_endpoint(endpoint).await);
    Timers::connect(mesh.url(), creds, TlsMode::Plain).await.expect("an endpoint")
}

fn timer(text: &str) -> Timer {
    Timer::parse(text).expect("a timer")
}

fn in_ms(ms: i64) -> i64 {
    unix_millis() + ms
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_an_endpoint_is_told_of_its_own_timers_until_it_acks() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let (mut wf, mut other) = (timers(&mesh, "wf").await, timers(&mesh, "other").await);
    let (mine, theirs) = (timer("wf.run.1.t"), timer("other.run.1.t"));
    wf.set(&mine, 1, in_ms(600_000)).await.expect("stored");
    wf.set(&mine, 2, in_ms(300)).await.expect("stored");
    other.set(&theirs, 1, in_ms(0)).await.expect("stored");
    let fired = wf.next(SOON).await.expect("a pull").expect("a firing");
    assert_eq!((&fired.timer, fired.generation), (&mine, 2));
    fired.give_back().await.expect("a nak");
    wf.close().await;
    let mut again = timers(&mesh, "wf").await;
    let fired = again.next(SOON).await.expect("a pull").expect("a firing");
    assert_eq!((&fired.timer, fired.generation), (&mine, 2));
    fired.ack().await.expect("an ack");
    assert!(again.next(QUIET).await.expect("a pull").is_none(), "told again after the ack");
    let fired = other.next(SOON).await.expect("a pull").expect("a firing");
    assert_eq!(fired.timer, theirs);
    fired.ack().await.expect("an ack");
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_5_another_endpoints_timer_and_a_deadline_that_cannot_be_armed_are_refused() {
    let mesh = Mesh::start().await;
    let wf = timers(&mesh, "wf").await;
    let refused = wf.set(&timer("other.run.1.t"), 1, in_ms(0)).await;
    assert!(matches!(refused, Err(TimerError::OtherEndpoint { .. })), "{refused:?}");
    let refused = wf.set(&timer("wf.run.1.t"), 1, 0).await;
    assert!(matches!(refused, Err(TimerError::Deadline(0))), "{refused:?}");
    // An agent's credential is no endpoint's.
    let agent = mesh.add_agent("alice", &["ops"], &["ops"], None).await;
    let refused = Timers::connect(mesh.url(), Credential::Text(agent), TlsMode::Plain).await;
    assert!(matches!(refused, Err(TimerError::Credential(_))), "{refused:?}");
    // What the library refuses the broker refuses too.
    let bare = mesh.connect(&mesh.add_endpoint("wf").await).await;
    let subject = mesh.space().ept_schedule(&timer("other.run.1.t"));
    let denied = bare.publish_confirmed(subject, None, "{}".into(), None).await;
    assert!(matches!(denied, Err(NatsError::Denied { .. })), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_a_cancelled_timer_does_not_fire() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let mut wf = timers(&mesh, "wf").await;
    let t = timer("wf.run.1.t");
    wf.set(&t, 1, in_ms(2_000)).await.expect("stored");
    wf.cancel(&t, 2).await.expect("stored");
    let operator = mesh.operator().await;
    let (stream, armed) = (mesh.space().ept_stream(), mesh.space().ept_armed(&t));
    let generation = || async {
        let last = cotal_nats::Get::LastBySubject(&armed);
        let message = operator.get_message(&stream, last).await.expect("EPT")?;
        cotal_wire::timers::TimerBody::parse(&message.payload).ok().map(|body| body.generation)
    };
    eventually("the later request", generation, |seen| *seen == Some(2)).await;
    let after = Duration::from_millis(2_500);
    assert!(wf.next(after).await.expect("a pull").is_none(), "it fired");
}
