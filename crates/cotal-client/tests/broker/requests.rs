//! Role requests from both ends: a sender that follows its request, and a holder that processes it.

use std::collections::BTreeSet;
use std::time::Duration;

use cotal_client::{
    Cancel, Draft, Endpoint, Holder, NoTakes, Notice, RequestState, Role, RoleRequest, Standing,
};
use cotal_nats::{Connection, Message, Subscription};
use cotal_testkit::{God, Mesh, eventually};
use cotal_wire::control::{Code, Reply};
use cotal_wire::names::{ANYCAST_TAKE, DELIVERY};
use cotal_wire::profile::Profile;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{QUIET, SOON, endpoint, message, notice, sender, stopped};

fn role() -> Role {
    Role::parse("reviewer").expect("a role")
}

async fn request(holder: &mut Holder) -> RoleRequest {
    let next = timeout(SOON, holder.next()).await;
    next.expect("a request in time").expect("an open endpoint")
}

async fn none(holder: &mut Holder) {
    let surprise = timeout(QUIET, holder.next()).await;
    assert!(surprise.is_err(), "unexpected: {surprise:?}");
}

/// A sender and a holder, both connected.
async fn pair(mesh: &Mesh) -> (Endpoint, Endpoint) {
    let alice = mesh.add_agent("alice", &[], &[], None).await;
    let bob = mesh.add_agent("bob", &[], &[], Some("reviewer")).await;
    (endpoint(mesh, &alice).await, sender(mesh, &bob).await)
}

/// A daemon of the test's own, which answers takes as it is told.
struct Fake {
    connection: Connection,
    takes: Subscription,
    _probes: tokio::task::JoinHandle<()>,
}

impl Fake {
    async fn new(mesh: &Mesh) -> Self {
        let connection = mesh.connect(&mesh.creds(Profile::Delivery)).await;
        let takes = connection.subscribe(mesh.space().ctl_all(ANYCAST_TAKE), None).await;
        let takes = takes.expect("a rail");
        Self { _probes: probes(mesh, &connection).await, takes, connection }
    }

    /// The next take.
    async fn take(&mut self) -> Message {
        timeout(SOON, self.takes.next()).await.expect("a take in time").expect("a take")
    }

    async fn answer(&self, take: &Message, reply: &Reply) {
        let to = take.reply.clone().expect("a reply subject");
        let body = serde_json::to_vec(reply).expect("JSON");
        self.connection.publish(to, None, body.into()).await.expect("sent");
    }

    async fn refuse(&self, take: &Message, reason: &str) {
        let reply = Reply::refused(Code::Conflict, "no").with_data(json!({ "reason": reason }));
        self.answer(take, &reply).await;
    }

    async fn grant(&self, take: &Message) {
        self.answer(take, &Reply::done(json!({ "taken": true }))).await;
    }
}

/// Answers that a daemon serves, and nothing else.
async fn probes(mesh: &Mesh, connection: &Connection) -> tokio::task::JoinHandle<()> {
    let probes = connection.subscribe(mesh.space().live_all(DELIVERY), None).await;
    let mut probes = probes.expect("the probes");
    let connection = connection.clone();
    tokio::spawn(async move {
        while let Ok(probe) = probes.next().await {
            let Some(reply) = probe.reply else { continue };
            let sent = connection.publish(reply, None, r#"{"state":"bound"}"#.into()).await;
            sent.expect("sent");
        }
    })
}

fn args(take: &Message) -> Value {
    serde_json::from_slice::<Value>(&take.payload).expect("JSON")["args"].take()
}

#[tokio::test]
async fn any_1_a_request_is_shown_once_its_take_is_recorded() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    let asked = alice.ask(&role(), "look at this").await.unwrap();
    assert_eq!(alice.request_status(asked.seq).await.unwrap(), RequestState::Queued);
    let shown = request(&mut holder).await;
    assert_eq!((shown.seq, shown.text().as_str()), (asked.seq, "look at this"));
    assert_eq!((&shown.sender, shown.delivery), (alice.principal(), 1));
    let RequestState::Taken(row) = alice.request_status(asked.seq).await.unwrap() else {
        panic!("shown and not recorded");
    };
    assert_eq!((row.holder.as_ref(), row.gone), (Some(bob.principal()), 0));
    // The sender is told by an ordinary direct message.
    let told = message(&alice).await;
    assert!(told.text().contains("local.bob"), "{}", told.text());
    assert_eq!(
        alice.cancel_request(asked.seq).await.unwrap(),
        Cancel::Held(bob.principal().clone())
    );
    shown.ack().await.unwrap();
    let requests = alice.requests().await.unwrap();
    assert_eq!((requests[0].seq, requests[0].state), (asked.seq, Standing::Done));
    none(&mut holder).await;
    stopped(daemon).await;
}

/// The take names the stream as it was before the copy was pulled, and nothing is shown before the
/// answer.
#[tokio::test]
async fn any_1_nothing_is_shown_before_the_daemon_has_answered() {
    let mesh = Mesh::start().await;
    let mut daemon = Fake::new(&mesh).await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    let asked = alice.ask(&role(), "work").await.unwrap();
    let god = God::of(&mesh).await;
    let created = god.connection.stream_info("TASK_main").await.unwrap().created;
    let take = {
        let take = daemon.take();
        tokio::select! {
            take = take => take,
            shown = holder.next() => panic!("shown before its take was answered: {shown:?}"),
        }
    };
    let wanted = json!({ "seq": asked.seq, "streamCreated": created, "delivery": 1 });
    assert_eq!(args(&take), wanted);
    // The cancelled call lost nothing: the same copy is asked for again.
    let answering = async {
        let take = daemon.take().await;
        assert_eq!(args(&take), wanted);
        daemon.grant(&take).await;
    };
    let (shown, ()) = tokio::join!(request(&mut holder), answering);
    assert_eq!((shown.seq, shown.delivery), (asked.seq, 1));
    shown.ack().await.unwrap();
}

/// The stream goes while the take is on its way: what is shown is the new stream's request.
#[tokio::test]
async fn any_1_a_copy_of_a_stream_that_was_recreated_meanwhile_is_not_shown() {
    let mesh = Mesh::start().await;
    let mut daemon = Fake::new(&mesh).await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    let old = alice.ask(&role(), "of the old stream").await.unwrap();
    let god = God::of(&mesh).await;
    let daemon_side = async {
        let take = daemon.take().await;
        god.recreate_task(&["reviewer"]).await;
        let new = alice.ask(&role(), "of the new stream").await.unwrap();
        assert_eq!(new.seq, old.seq);
        daemon.grant(&take).await;
        let again = daemon.take().await;
        assert_ne!(args(&again)["streamCreated"], args(&take)["streamCreated"]);
        daemon.grant(&again).await;
    };
    let (shown, ()) = tokio::join!(request(&mut holder), daemon_side);
    assert_eq!(shown.text(), "of the new stream");
    shown.ack().await.unwrap();
}

#[tokio::test]
async fn any_1_a_take_refused_as_recreated_gives_the_copy_back_at_once() {
    let mesh = Mesh::start().await;
    let mut daemon = Fake::new(&mesh).await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    alice.ask(&role(), "work").await.unwrap();
    let daemon_side = async {
        let take = daemon.take().await;
        daemon.refuse(&take, "recreated").await;
        let again = daemon.take().await;
        assert_eq!(args(&again)["delivery"], 2);
        daemon.grant(&again).await;
    };
    let (shown, ()) = tokio::join!(request(&mut holder), daemon_side);
    assert_eq!(shown.delivery, 2);
    shown.ack().await.unwrap();
}

/// A refused copy is somebody else's by now: it is neither shown nor answered.
#[tokio::test]
async fn any_5_a_copy_whose_take_is_refused_is_forgotten_without_an_answer() {
    let mesh = Mesh::start().await;
    let mut daemon = Fake::new(&mesh).await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    let mut seqs = Vec::new();
    for n in 0..4 {
        seqs.push(alice.ask(&role(), Draft::text(n.to_string())).await.unwrap().seq);
    }
    let daemon_side = async {
        for reason in ["cancelled", "held", "gone"] {
            let take = daemon.take().await;
            daemon.refuse(&take, reason).await;
        }
        let take = daemon.take().await;
        daemon.grant(&take).await;
    };
    let (shown, ()) = tokio::join!(request(&mut holder), daemon_side);
    assert_eq!(shown.seq, seqs[3]);
    shown.ack().await.unwrap();
    let god = God::of(&mesh).await;
    let info = god.connection.consumer_info("TASK_main", "svc_reviewer").await.unwrap();
    assert_eq!(info.num_ack_pending, 3, "none of the three was acked or given back");
}

#[tokio::test]
async fn any_5_a_cancelled_request_is_never_shown() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = pair(&mesh).await;
    let asked = alice.ask(&role(), "never mind").await.unwrap();
    assert_eq!(alice.cancel_request(asked.seq).await.unwrap(), Cancel::Cancelled);
    assert_eq!(alice.cancel_request(asked.seq + 1).await.unwrap(), Cancel::Unknown);
    let state = alice.request_status(asked.seq).await.unwrap();
    assert!(matches!(state, RequestState::Cancelled(_)), "{state:?}");
    assert_eq!(bob.request_status(asked.seq).await.unwrap(), RequestState::Unknown);
    let mut holder = bob.holder().expect("a role");
    none(&mut holder).await;
    stopped(daemon).await;
}

/// Two holders share what is asked; one that dies with a request leaves it to the other.
#[tokio::test]
async fn any_3_two_holders_share_the_requests_and_each_is_done_once() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = pair(&mesh).await;
    let carol = mesh.add_agent("carol", &[], &[], Some("reviewer")).await;
    let carol = sender(&mesh, &carol).await;
    let god = God::of(&mesh).await;
    god.hasten("TASK_main", "svc_reviewer").await;
    let first = alice.ask(&role(), "first").await.unwrap();
    let mut dying = bob.holder().expect("a role");
    let held = request(&mut dying).await;
    assert_eq!(held.seq, first.seq);
    drop((held, dying));
    bob.close().await;
    for n in 0..10 {
        alice.ask(&role(), Draft::text(n.to_string())).await.unwrap();
    }
    let mut holder = carol.holder().expect("a role");
    let mut done = BTreeSet::new();
    while done.len() < 11 {
        let request = request(&mut holder).await;
        assert!(done.insert(request.seq), "{} twice", request.seq);
        request.ack().await.unwrap();
    }
    let all = alice.requests().await.unwrap();
    assert!(all.iter().all(|request| request.holder.as_ref() == Some(carol.principal())));
    let mut moved = 0;
    for _ in 0..12 {
        moved += usize::from(message(&alice).await.text().contains("moved to local.carol"));
    }
    assert_eq!(moved, 1);
    stopped(daemon).await;
}

/// Without a daemon a request waits on the queue and its holder says so; with one it is processed.
#[tokio::test]
async fn any_8_without_a_daemon_requests_wait_and_the_holder_says_so() {
    let mesh = Mesh::start().await;
    let (alice, bob) = pair(&mesh).await;
    let asked = alice.ask(&role(), "work").await.unwrap();
    let mut holder = bob.holder().expect("a role");
    let working = tokio::spawn(async move { holder.next().await });
    let wait = notice(&bob, |n| matches!(n, Notice::RequestsWait { .. })).await;
    assert!(wait.to_string().contains("no delivery daemon is answering"), "{wait}");
    let god = God::of(&mesh).await;
    assert_eq!(god.connection.stream_state("TASK_main").await.unwrap().messages, 1);
    let daemon = mesh.lane().await;
    notice(&bob, |n| matches!(n, Notice::RequestsServed { .. })).await;
    let shown = timeout(SOON, working).await.expect("in time").unwrap().expect("a request");
    assert_eq!(shown.seq, asked.seq);
    shown.ack().await.unwrap();
    stopped(daemon).await;
}

/// The daemon goes while the holder waits for a request.
#[tokio::test]
async fn any_8_a_daemon_that_went_is_noticed_at_the_next_request() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    none(&mut holder).await;
    stopped(daemon).await;
    let asked = alice.ask(&role(), "work").await.unwrap();
    let working = tokio::spawn(async move { holder.next().await });
    let none = |n: &Notice| matches!(n, Notice::RequestsWait { why: NoTakes::NoDaemon, .. });
    notice(&bob, none).await;
    let daemon = mesh.lane().await;
    let shown = timeout(SOON, working).await.expect("in time").unwrap().expect("a request");
    assert_eq!(shown.seq, asked.seq);
    shown.ack().await.unwrap();
    stopped(daemon).await;
}

#[tokio::test]
async fn any_8_a_daemon_or_a_credential_that_predates_takes_is_named() {
    let mesh = Mesh::start().await;
    let connection = mesh.connect(&mesh.creds(Profile::Delivery)).await;
    let _probes = probes(&mesh, &connection).await;
    let (alice, bob) = pair(&mesh).await;
    alice.ask(&role(), "work").await.unwrap();
    let mut holder = bob.holder().expect("a role");
    let working = tokio::spawn(async move { holder.next().await });
    let wait = notice(&bob, |n| matches!(n, Notice::RequestsWait { .. })).await;
    assert!(wait.to_string().contains("restart the daemon"), "{wait}");
    working.abort();

    let carol = mesh.add_agent("carol", &[], &[], Some("reviewer")).await;
    let carol = sender(&mesh, &mesh.predating_takes(&carol)).await;
    let mut holder = carol.holder().expect("a role");
    let working = tokio::spawn(async move { holder.next().await });
    let wait = notice(&carol, |n| matches!(n, Notice::RequestsWait { .. })).await;
    assert!(wait.to_string().contains("respawn the seat"), "{wait}");
    working.abort();
    let god = God::of(&mesh).await;
    assert_eq!(god.connection.stream_state("TASK_main").await.unwrap().messages, 1);
}

#[tokio::test]
async fn a_garbled_request_is_not_shown_and_ends_visibly() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = pair(&mesh).await;
    let subject = mesh.space().svc(&role(), alice.principal());
    let god = God::of(&mesh).await;
    let forged = r#"{"id":"x","from":{"id":"local.eve"},"toService":"reviewer","parts":[]}"#;
    for body in ["garbage", forged] {
        let sent = god.connection.publish_confirmed(subject.clone(), None, body.into(), None);
        sent.await.unwrap();
    }
    let asked = alice.ask(&role(), "honest").await.unwrap();
    let mut holder = bob.holder().expect("a role");
    let shown = request(&mut holder).await;
    assert_eq!(shown.seq, asked.seq);
    shown.ack().await.unwrap();
    for _ in 0..2 {
        notice(&bob, |n| matches!(n, Notice::Rejected { .. })).await;
    }
    let left = || async { god.connection.stream_state("TASK_main").await.unwrap().messages };
    eventually("an empty queue", left, |left| *left == 0).await;
    // Nobody took it, so its alleged sender hears nothing of it.
    let requests = alice.requests().await.unwrap();
    assert_eq!(requests.iter().map(|r| r.seq).collect::<Vec<_>>(), [asked.seq]);
    stopped(daemon).await;
}

#[tokio::test]
async fn a_holder_outlives_its_broker_and_works_on() {
    let mut mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    let first = alice.ask(&role(), "before").await.unwrap();
    let held = request(&mut holder).await;
    assert_eq!(held.seq, first.seq);
    let working = tokio::spawn(async move { holder.next().await });
    mesh.kill_broker().await;
    notice(&bob, |n| *n == Notice::Disconnected).await;
    mesh.restart_broker().await;
    notice(&alice, |n| *n == Notice::Reconnected).await;
    notice(&bob, |n| *n == Notice::Reconnected).await;
    let second = alice.ask(&role(), "after").await.unwrap();
    let shown = timeout(SOON, working).await.expect("in time").unwrap().expect("a request");
    assert_eq!((shown.seq, shown.text().as_str()), (second.seq, "after"));
    held.ack().await.unwrap();
    shown.ack().await.unwrap();
    let god = God::of(&mesh).await;
    let left = || async { god.connection.stream_state("TASK_main").await.unwrap().messages };
    eventually("an empty queue", left, |left| *left == 0).await;
    stopped(daemon).await;
}

/// What was pulled and not shown goes back when the holder closes, so that nobody waits for it.
#[tokio::test]
async fn a_holder_that_closes_gives_back_what_it_pulled() {
    let mesh = Mesh::start().await;
    let mut daemon = Fake::new(&mesh).await;
    let (alice, bob) = pair(&mesh).await;
    let mut holder = bob.holder().expect("a role");
    alice.ask(&role(), "work").await.unwrap();
    tokio::select! {
        _ = daemon.take() => {}
        shown = holder.next() => panic!("not granted: {shown:?}"),
    }
    holder.close().await;
    let mut other = bob.holder().expect("a role");
    let answering = async {
        let take = daemon.take().await;
        daemon.grant(&take).await;
    };
    let (shown, ()) = tokio::join!(request(&mut other), answering);
    assert_eq!(shown.delivery, 2);
    let silent = timeout(Duration::from_millis(100), other.next()).await;
    assert!(silent.is_err(), "one request only");
    assert!(alice.holder().is_err(), "no role, no requests");
}
