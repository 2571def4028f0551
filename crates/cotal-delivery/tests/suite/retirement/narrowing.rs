//! A narrowing ends only when nothing that it took away can be delivered any more (RDR-1, RDR-12).

use cotal_manager::ManagerError;
use cotal_nats::js::ConsumerAction;
use cotal_nats::{ConnectError, ConnectOptions, Connection, Creds, CredsSource, NatsError};
use cotal_testkit::{God, Mesh, Peer, Proxy, Supervisor, serving};
use cotal_wire::control::{Code, op};
use cotal_wire::names::{FANOUT, READER};
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Channel, ChannelPattern};
use cotal_workspace::Segment;
use serde_json::json;

use super::{Lane, SECRET, TEAM, agents, name, start};

/// More copies than a recall could delete one by one before an agent has read them.
const MANY: usize = 800;

fn team() -> [ChannelPattern; 1] {
    [ChannelPattern::parse(TEAM).expect("a pattern")]
}

/// Bob's credential as it is on the root now.
fn credential(mesh: &Mesh) -> String {
    let principal = name("bob").principal().clone();
    let file = mesh.root().agent_creds(&Segment::from(mesh.space()), &principal);
    std::fs::read_to_string(file).expect("a credential")
}

async fn is_refused(mesh: &Mesh, creds: &str) -> bool {
    let source = CredsSource::new(Creds::parse(creds).expect("a credential"));
    let connected = Connection::connect(ConnectOptions::new(mesh.url(), "old", source)).await;
    matches!(connected, Err(NatsError::Connect(ConnectError::Rejected { .. })))
}

async fn handed_off(god: &God) {
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
}

/// The channels of the copies that DLV holds for the member.
async fn held(god: &God, bob: &Peer) -> Vec<String> {
    let copies = god.stored(&bob.space.dlv_stream(), &bob.space.dlv(&bob.lifecycle)).await;
    let channel = |copy: &cotal_nats::StoredMessage| {
        let post: serde_json::Value = serde_json::from_slice(&copy.payload).expect("a post");
        post["channel"].as_str().expect("a channel").to_owned()
    };
    copies.iter().map(channel).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_12_once_a_narrowing_is_said_to_be_done_nothing_that_it_took_can_be_read() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    bob.join(SECRET).await;
    alice.post(TEAM, "first", &[]).await;
    alice.post_many(SECRET, "s", MANY).await;
    alice.post(TEAM, "last", &[]).await;
    handed_off(&god).await;
    assert_eq!(held(&god, &bob).await.len(), MANY + 2);
    let old = credential(&mesh);

    agents(&mesh).await.narrow(&name("bob"), &team()).await.expect("a narrowing");
    let narrowed = Peer::connect(mesh.url(), &credential(&mesh)).await;
    assert_eq!(narrowed.receive(2).await, ["first", "last"]);
    narrowed.receives_nothing().await;
    assert_eq!(held(&god, &bob).await, [TEAM, TEAM]);
    assert!(is_refused(&mesh, &old).await, "the old credential still works");
}

/// A copy that was judged by the old row is in flight while all of this happens.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_12_a_narrowing_waits_for_a_hand_off_that_is_under_way() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    let _lane: Lane = serving(Lane::start(options)).await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &[">"], &[">"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(SECRET).await;
    let old = credential(&mesh);
    let rail = mesh.space().ctl_all("delivery-admin");
    let mut asked = god.connection.subscribe(rail, None).await.expect("a subscription");
    proxy.stall_at("HPUB cotal.main.dlv.");
    alice.post(SECRET, "secret", &[]).await;
    proxy.stalled().await;

    let (agents, who, read) = (agents(&mesh).await, name("bob"), team());
    let mut narrowing = Box::pin(agents.narrow(&who, &read));
    tokio::select! {
        ended = &mut narrowing => panic!("a hand-off is under way, and yet: {ended:?}"),
        request = asked.next() => drop(request.expect("it asks for a recall")),
    }
    assert_eq!(credential(&mesh), old, "no new credential is published yet");
    assert!(is_refused(&mesh, &old).await, "the old credential still works");
    proxy.heal();
    narrowing.await.expect("a narrowing");
    assert_eq!(held(&god, &bob).await, [""; 0]);
    let narrowed = Peer::connect(mesh.url(), &credential(&mesh)).await;
    handed_off(&god).await;
    narrowed.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_12_a_narrowing_without_a_daemon_is_finished_by_the_next_run() {
    let (mesh, mut lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(SECRET).await;
    alice.post_many(SECRET, "s", 10).await;
    handed_off(&god).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    let (agents, old) = (agents(&mesh).await, credential(&mesh));
    let alone = agents.narrow(&name("bob"), &team()).await.expect_err("nobody recalls");
    assert!(matches!(alone, ManagerError::NotRecalled { .. }), "{alone}");
    assert_eq!(god.acl(&bob.lifecycle).await.allow_subscribe, team(), "the row stands");
    assert!(is_refused(&mesh, &old).await, "the old credential still works");
    assert_eq!(credential(&mesh), old, "a credential is published");

    let _next = mesh.lane().await;
    agents.narrow(&name("bob"), &team()).await.expect("it goes on");
    assert_eq!(held(&god, &bob).await, [""; 0]);
    Peer::connect(mesh.url(), &credential(&mesh)).await.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_of_whom_nobody_knows_is_refused() {
    let (mesh, _lane, alice, _god) = start().await;
    let manager = Supervisor::of(&mesh).await;
    let of = |uid: &str| json!({ "principal": alice.principal(), "lifecycleUid": uid });
    let reply = manager.request(op::RECALL_NARROWED, of(alice.lifecycle.uid.as_str())).await;
    assert_eq!(reply.expect("an answer").data, Some(json!({})));
    let reply = manager.request(op::RECALL_NARROWED, of(&"z".repeat(26))).await;
    assert_eq!(reply.expect("an answer").code, Some(Code::NotProvisioned));
    let reply = manager.request(op::RECALL_NARROWED, json!({})).await;
    assert_eq!(reply.expect("an answer").code, Some(Code::Invalid));
}

/// The broker checks a consumer's channel when the consumer is created, and never again.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_12_a_history_read_ends_with_the_credential_that_began_it() {
    let (mesh, _lane, _alice, god) = start().await;
    let secret = Channel::parse(SECRET).expect("a channel");
    let mut left = Vec::new();
    for agent in ["bob", "carol"] {
        let peer = mesh.peer(agent, &["team.>"], &[]).await;
        let config = ConsumerConfig {
            inactive_threshold: None,
            ..peer.space.chathist_config(&peer.lifecycle, &secret, None)
        };
        let (chat, filter) = (peer.space.chat_stream(), config.filter_subject.clone());
        let create = ConsumerAction::Create;
        let made = peer.connection.create_consumer(
            &chat,
            &config.name,
            filter.as_deref(),
            &config,
            create,
        );
        made.await.expect("a history read");
        left.push((chat, config.name));
    }
    agents(&mesh).await.narrow(&name("bob"), &team()).await.expect("a narrowing");
    agents(&mesh).await.retire(&name("carol")).await.expect("a retirement");
    for (chat, consumer) in left {
        let info = god.connection.consumer_info(&chat, &consumer).await;
        assert!(matches!(info, Err(NatsError::Absent { .. })), "{consumer}: {info:?}");
    }
}
