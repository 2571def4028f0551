//! What a manager's start waits for, and how a restart proves its predecessor gone (ADM-4, ADM-6,
//! ADM-7).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cotal_manager::{AgentName, BrokerAddress, Gate, Manager, ManagerError, Office, Rail};
use cotal_nats::{ConnectOptions, Connection, NatsError};
use cotal_testkit::{God, Mesh, Proxy, eventually};
use cotal_wire::control::{Code, Reply, op};
use serde_json::json;

use super::support::{Answer, Asked, Running, bytes_of, identity_or, options, pretend, refusal};
use super::{agent, supervisor};

#[tokio::test(flavor = "multi_thread")]
async fn adm_4_a_manager_that_starts_first_waits_for_the_rail() {
    let mesh = Mesh::start().await;
    let start = Manager::start(options(&mesh));
    tokio::pin!(start);
    let early = tokio::time::timeout(Duration::from_millis(1_500), &mut start).await;
    assert!(early.is_err(), "started without a daemon: {early:?}");
    let (started, _lane) = tokio::join!(start, mesh.lane());
    started.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_4_silence_for_the_whole_wait_fails_and_the_rail_is_named() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut short = options(&mesh);
    short.start_wait = Duration::from_millis(1_200);
    let began = Instant::now();
    let silent = Manager::start(short).await.unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(1_100), "gave up early");
    assert!(matches!(silent, ManagerError::RailSilent { .. }), "{silent}");
    assert!(silent.to_string().contains("ctl.delivery-admin"), "{silent}");

    // A daemon that hears and says nothing: the attempt is cut off in time, and none follows.
    let asked = pretend(&mesh, &god, |_| None).await;
    let mut short = options(&mesh);
    short.start_wait = Duration::from_millis(1_000);
    let began = Instant::now();
    let silent = Manager::start(short).await.unwrap_err();
    assert!(matches!(silent, ManagerError::RailSilent { .. }), "{silent}");
    assert!(began.elapsed() < Duration::from_secs(10), "the wait did not end on time");
    god.connection.flush().await.unwrap();
    assert_eq!(asked.count(op::RELOAD_STORE_IDENTITY), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_4_a_refusal_or_an_unreadable_reply_fails_the_start_at_once() {
    let denied: Answer = |_| Some(refusal(Code::Denied));
    let garbage: Answer = |_| Some(b"garbage".to_vec());
    for answer in [denied, garbage] {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        let asked = pretend(&mesh, &god, answer).await;
        let refused = Manager::start(options(&mesh)).await.unwrap_err();
        let is_answer = matches!(
            refused,
            ManagerError::Refused { .. }
                | ManagerError::Broker { source: NatsError::Malformed { .. }, .. }
        );
        assert!(is_answer, "{refused}");
        assert_eq!(asked.count(op::RELOAD_STORE_IDENTITY), 1, "asked again after an answer");
    }
}

async fn sessions(running: &Running, count: usize) {
    for _ in 0..count {
        running.sessions.attach().unwrap();
    }
}

fn frozen(mesh: &Mesh) -> Option<String> {
    let gate = Gate::of(mesh.root(), mesh.space());
    gate.frozen().unwrap().map(|frozen| frozen.reason)
}

async fn provision(mesh: &Mesh, name: &str) -> Result<(), ManagerError> {
    supervisor(mesh).await.add(&agent(name, &["team"], &[], None)).await.map(drop)
}

/// 257 holders and more: two requests. The first restart is cut after the first.
#[tokio::test(flavor = "multi_thread")]
async fn adm_6_a_restart_evicts_the_whole_family_and_goes_on_where_it_was_cut() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let _lane = mesh.lane().await;
    let first = Running::start(options(&mesh)).await;
    let session = first.sessions.attach().unwrap();
    sessions(&first, 259).await;
    let last = first.sessions.holders().pop().unwrap().principal;
    let connect = ConnectOptions::new(mesh.url(), "a session", session.into());
    let session = Connection::connect(connect).await.unwrap();
    first.stop().await;
    assert_eq!(frozen(&mesh), None);

    let asked = Asked::listen(&god).await;
    // The answer to the second request, which alone names the last holder, never comes.
    let proxy = Proxy::to(&mesh.host_port()).await;
    proxy.deafen_at(last.as_str());
    let mut through = options(&mesh);
    through.broker.url = proxy.url();
    let cut = tokio::select! {
        started = Manager::start(through) => Some(started),
        () = proxy.deafened() => None,
    };
    assert!(cut.is_none(), "it started before its predecessor was gone");
    let sizes = || async { asked.batches() };
    eventually("both requests", sizes, |sizes| *sizes == [256, 5]).await;
    assert!(frozen(&mesh).is_some_and(|why| why.contains("predecessor")));
    let refused = provision(&mesh, "bob").await.unwrap_err();
    assert!(matches!(refused, ManagerError::GateFrozen { .. }), "{refused}");

    let second = Running::start(options(&mesh)).await;
    assert_eq!(asked.batches()[2..], [5], "what was verified is not asked again");
    assert_eq!(frozen(&mesh), None);
    let gone = || async { session.is_connected() };
    eventually("the session's connection is ended", gone, |connected| !connected).await;
    assert_eq!(second.sessions.holders().len(), 1, "the sessions are forgotten");
    provision(&mesh, "bob").await.unwrap();
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_6_a_daemon_without_the_verb_leaves_the_gate_frozen() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    Running::start(options(&mesh)).await.stop().await;
    lane.stop();
    lane.ended().await.unwrap();

    let old: Answer = |request| identity_or(request, refusal(Code::UnknownOp));
    pretend(&mesh, &god, old).await;
    let refused = Manager::start(options(&mesh)).await.unwrap_err();
    assert!(matches!(refused, ManagerError::Refused { .. }), "{refused}");
    assert!(frozen(&mesh).is_some());
    let refused = provision(&mesh, "bob").await.unwrap_err();
    assert!(matches!(refused, ManagerError::GateFrozen { .. }), "{refused}");
}

/// An answer that tells of nobody verifies nobody.
#[tokio::test(flavor = "multi_thread")]
async fn adm_6_a_holder_that_is_not_verified_keeps_the_gate_frozen() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let mut lane = mesh.lane().await;
    Running::start(options(&mesh)).await.stop().await;
    lane.stop();
    lane.ended().await.unwrap();

    let blind: Answer = |request| {
        let results = serde_json::json!({ "results": [] });
        identity_or(request, bytes_of(&Reply::done(results)))
    };
    pretend(&mesh, &god, blind).await;
    let mut short = options(&mesh);
    short.evict_wait = Duration::from_millis(300);
    Manager::start(short).await.unwrap_err();
    assert!(frozen(&mesh).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_7_restarts_keep_the_identities_and_add_no_holder_and_a_session_adds_one() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let mut before = None;
    for _ in 0..3 {
        let running = Running::start(options(&mesh)).await;
        let holders = running.sessions.holders();
        let who: Vec<_> = holders.iter().map(|holder| holder.principal.clone()).collect();
        assert_eq!(who.len(), 1, "{who:?}");
        assert_eq!(*before.get_or_insert_with(|| who.clone()), who);
        running.stop().await;
    }
    let running = Running::start(options(&mesh)).await;
    running.sessions.attach().unwrap();
    running.sessions.attach().unwrap();
    assert_eq!(running.sessions.holders().len(), 3);
    let another = Manager::start(options(&mesh)).await.unwrap_err();
    assert!(matches!(another, ManagerError::Lock(_)), "one manager a root: {another}");
    running.stop().await;
}

/// An attempt that had the whole wait to itself left no time for another.
#[tokio::test(flavor = "multi_thread")]
async fn adm_4_a_request_that_was_lost_on_its_way_is_asked_again() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let forgetful: Answer = |_| (ASKED.fetch_add(1, Ordering::SeqCst) > 0).then(Vec::new);
    pretend(&mesh, &god, forgetful).await;
    let mut short = options(&mesh);
    short.start_wait = Duration::from_millis(9_000);
    Manager::start(short).await.unwrap();
    assert!(ASKED.load(Ordering::SeqCst) >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_4_a_broker_that_is_away_before_the_request_is_sent_is_waited_for() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let address = BrokerAddress { url: proxy.url(), ..mesh.address() };
    let (own, connection) = mesh.authority().connect(Office::Supervisor, &address).await.unwrap();
    let mut state = connection.state();
    proxy.cut();
    state.wait_for(|state| !state.is_connected()).await.unwrap();
    let rail = Rail::new(&connection, mesh.space(), &own);
    let asked = rail.admin_patiently(op::RELOAD_STORE_IDENTITY, json!({}), Duration::from_secs(15));
    tokio::pin!(asked);
    let early = tokio::time::timeout(Duration::from_millis(500), &mut asked).await;
    assert!(early.is_err(), "it gave up: {early:?}");
    proxy.heal();
    asked.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_an_eviction_that_contradicts_itself_or_tells_of_another_proves_nothing() {
    fn told(of: &str, remaining: u64, complete: bool) -> Vec<u8> {
        bytes_of(&Reply::done(json!({
            "principal": of, "kicked": 1, "remaining": remaining, "verifiedGone": true,
            "scanComplete": complete,
        })))
    }
    let answers: [Answer; 3] = [
        |_| Some(told("local.carol", 0, true)),
        |_| Some(told("local.bob", 1, true)),
        |_| Some(told("local.bob", 0, false)),
    ];
    for answer in answers {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        provision(&mesh, "bob").await.unwrap();
        static EVICTION: std::sync::Mutex<Option<Answer>> = std::sync::Mutex::new(None);
        *EVICTION.lock().unwrap() = Some(answer);
        let daemon: Answer = |request| match request.op.as_str() {
            op::EVICT_PRINCIPAL => EVICTION.lock().unwrap().and_then(|answer| answer(request)),
            _ => Some(bytes_of(&Reply::done(json!({ "channels": [] })))),
        };
        pretend(&mesh, &god, daemon).await;
        let agents = supervisor(&mesh).await;
        let bob = AgentName::parse("bob").unwrap();
        let refused = agents.retire(&bob).await.unwrap_err();
        let is_unusable =
            matches!(refused, ManagerError::Broker { source: NatsError::Malformed { .. }, .. });
        assert!(is_unusable, "{refused}");
    }
}

/// Somebody listens on the rail and never answers for the eviction: it is asked again, given up
/// after 15 s in total, and the name stays held.
#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_silent_responder_is_asked_again_and_given_up_within_the_wait() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    provision(&mesh, "bob").await.unwrap();
    let daemon: Answer = |request| match request.op.as_str() {
        op::EVICT_PRINCIPAL => None,
        _ => Some(bytes_of(&Reply::done(json!({ "channels": [] })))),
    };
    let asked = pretend(&mesh, &god, daemon).await;
    let agents = supervisor(&mesh).await;
    let started = Instant::now();
    let silent = agents.retire(&AgentName::parse("bob").unwrap()).await.unwrap_err();
    assert!(matches!(silent, ManagerError::RailSilent { .. }), "{silent}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(asked.count(op::EVICT_PRINCIPAL) > 1, "a request that was lost is not asked again");
    let held = agents.add(&agent("bob", &[], &[], None)).await.unwrap_err();
    assert!(matches!(held, ManagerError::Retiring(_)), "{held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_retirement_outlives_a_gap_of_the_daemon_and_a_refusal_fails_it_at_once() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    for name in ["bob", "carol"] {
        provision(&mesh, name).await.unwrap();
    }
    let agents = supervisor(&mesh).await;
    let bob = AgentName::parse("bob").unwrap();
    let retire = agents.retire(&bob);
    tokio::pin!(retire);
    let early = tokio::time::timeout(Duration::from_millis(1_500), &mut retire).await;
    assert!(early.is_err(), "retired without a proof: {early:?}");
    let (retired, mut lane) = tokio::join!(retire, mesh.lane());
    retired.unwrap();
    lane.stop();
    lane.ended().await.unwrap();

    let asked = pretend(&mesh, &god, |_| Some(refusal(Code::Denied))).await;
    let refused = agents.retire(&AgentName::parse("carol").unwrap()).await.unwrap_err();
    assert!(matches!(refused, ManagerError::Refused { .. }), "{refused}");
    assert_eq!(asked.count(op::LIFECYCLE_MEMBERSHIPS), 1, "a refusal is not asked again");
}
