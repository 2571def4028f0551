//! Every call that an agent may make, aimed at every subject that matters (`wire.md` §11).
//!
//! Both lists are generated: the calls from the agent's own credential, the subjects from what the
//! daemon, the manager and people's commands may publish and hear, and from every destructive call
//! on every stream. Nothing that the broker answers or delivers for the agent may come as far as
//! the durable account.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use cotal_manager::{Office, Shape, provision_space};
use cotal_nats::{Bytes, Connection, NatsError};
use cotal_testkit::{Mesh, Peer};
use cotal_wire::accounts::{Account, Topology};
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, FANOUT, READER, member_key};
use cotal_wire::profile::Profile;
use cotal_wire::{Channel, Principal};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
/// Shots between two round trips: the broker drops API requests of which too many wait.
const AT_ONCE: usize = 500;

/// What the broker does for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    PubAck,
    ApiAnswer,
    Empty,
    Pulled,
    Pushed,
    RailAnswer,
}

/// One call of the agent and its body; a body may name the target too.
struct Call {
    kind: Kind,
    subject: String,
    body: fn(&str) -> String,
}

/// The best that a stored message of the agent's can be: a pull that takes everything, for long.
const PULL: &str = r#"{"batch":100,"expires":3600000000000}"#;

fn nothing(_: &str) -> String {
    String::new()
}

fn pull(_: &str) -> String {
    PULL.to_owned()
}

fn pull_now(_: &str) -> String {
    r#"{"batch":1,"no_wait":true}"#.to_owned()
}

/// A consumer that delivers to the target, with acknowledgements, so that its messages have a reply
/// that a pull would be answered on, and with heartbeats, which are empty calls.
fn push(target: &str) -> String {
    json!({
        "deliver_subject": target, "deliver_policy": "all", "ack_policy": "explicit",
        "idle_heartbeat": 100_000_000, "inactive_threshold": 600_000_000_000_u64,
    })
    .to_string()
}

/// A subject of a pattern.
fn concrete(pattern: &str) -> String {
    let token = |token: &str| if matches!(token, "*" | ">") { "aim" } else { token }.to_owned();
    pattern.split('.').map(token).collect::<Vec<_>>().join(".")
}

/// The calls that a credential allows, each as often as the broker can answer it differently.
fn calls(creds: &str) -> Vec<Call> {
    let claims = Creds::parse(creds).expect("a credential").claims;
    let mut calls = Vec::new();
    for pattern in &claims.pub_allow {
        let subject = concrete(pattern);
        let mut add = |kind, body| calls.push(Call { kind, subject: subject.clone(), body });
        if pattern.contains(".MSG.NEXT.") {
            add(Kind::Empty, pull_now as fn(&str) -> String);
            add(Kind::Pulled, pull);
        } else if pattern.contains(".CONSUMER.CREATE.") {
            add(Kind::ApiAnswer, nothing);
            add(Kind::Pushed, push);
        } else if pattern.contains(".API.") {
            add(Kind::ApiAnswer, nothing);
        } else if pattern.contains(".ctl.") || pattern.contains(".live.") {
            add(Kind::RailAnswer, nothing);
        } else if pattern.starts_with("$JS.ACK.") || pattern.starts_with("$JS.FC.") {
            add(Kind::Empty, nothing);
        } else {
            add(Kind::PubAck, pull);
        }
    }
    calls
}

/// What whoever lives in the durable account may publish or hear, as one of them.
fn offices(mesh: &Mesh) -> BTreeSet<String> {
    let own = Principal::new("local", "somebody").expect("a principal");
    let profiles = [
        Profile::Delivery(own.clone()),
        Profile::MembershipRw,
        Profile::Supervisor(own.clone()),
        Profile::Operator(own.clone()),
        Profile::Provisioner,
        Profile::SharedProvisioner,
        Profile::Admin(own),
    ];
    let claims = Creds::parse(&mesh.creds(|_| Profile::Provisioner)).expect("creds").claims;
    let mut all = BTreeSet::new();
    for profile in profiles {
        let may = profile.permissions(mesh.space(), &claims.subject, Topology::Three);
        all.extend(may.pub_allow.iter().chain(&may.sub_allow).map(|pattern| concrete(pattern)));
    }
    all
}

/// Every call that destroys or takes, on every stream and every consumer that is not the agent's.
fn destruction(mesh: &Mesh, victim: &Peer) -> BTreeSet<String> {
    let space = mesh.space();
    let streams = space.stream_configs(0, false).into_iter().map(|config| config.name);
    let streams: Vec<_> =
        streams.chain(Bucket::ALL.map(|bucket| space.kv_stream(bucket))).collect();
    let mut all = BTreeSet::new();
    for stream in &streams {
        let calls = ["DELETE", "PURGE", "UPDATE", "MSG.DELETE", "SNAPSHOT", "LEADER.STEPDOWN"];
        all.extend(calls.map(|call| format!("$JS.API.STREAM.{call}.{stream}")));
        all.insert(format!("$JS.API.CONSUMER.CREATE.{stream}"));
        all.insert(format!("$JS.API.CONSUMER.CREATE.{stream}.aim"));
    }
    let consumers = [
        (space.chat_stream(), FANOUT.to_owned()),
        (space.inbox_stream(), READER.to_owned()),
        (space.task_stream(), "svc_reviewer".to_owned()),
        (space.dlv_stream(), space.dlv_consumer(&victim.lifecycle)),
        (space.dm_stream(), space.dm_consumer(&victim.lifecycle)),
    ];
    for (stream, consumer) in consumers {
        for call in ["DELETE", "PAUSE", "MSG.NEXT", "LEADER.STEPDOWN", "UNPIN"] {
            all.insert(format!("$JS.API.CONSUMER.{call}.{stream}.{consumer}"));
        }
        all.insert(format!("$JS.ACK.{stream}.{consumer}.1.1.1.1.0"));
    }
    all
}

/// Rows and messages that only others may write.
fn writings(mesh: &Mesh, victim: &Peer, own: &Peer) -> BTreeSet<String> {
    let space = mesh.space();
    let channel = Channel::parse("team.backend").expect("a channel");
    let of = |peer: &Peer| {
        [
            space.kv_subject(Bucket::Acl, &peer.lifecycle.dotted()),
            space.kv_subject(Bucket::Members, &member_key(&channel, &peer.lifecycle)),
            space.dinbox(&peer.lifecycle),
            space.dlv(&peer.lifecycle),
        ]
    };
    let alice = Principal::new("local", "alice").expect("a principal");
    let mut all: BTreeSet<String> = of(victim).into_iter().chain(of(own)).collect();
    all.extend([
        space.kv_subject(Bucket::Channels, "=defaults"),
        space.kv_subject(Bucket::Delivery, "lease.0"),
        space.kv_subject(Bucket::Manager, "renewal"),
        space.kv_subject(Bucket::Anycast, "req.1"),
        space.kv_subject(Bucket::Dead, "e.1"),
        space.kv_subject(Bucket::Membership, "=feed"),
        space.chat(&alice, &channel),
        space.inst(victim.principal(), &alice),
        space.ctl("delivery", victim.principal()),
        space.ctl("delivery-admin", victim.principal()),
        space.live("delivery", victim.principal()),
    ]);
    all
}

/// The subjects that a witness in the durable account has seen, and what came on them.
type Seen = Arc<Mutex<BTreeSet<(String, Bytes)>>>;

async fn witness(mesh: &Mesh) -> (Seen, Connection, JoinHandle<()>) {
    let god = mesh.god().await;
    let mut all = god.subscribe(">", None).await.expect("a witness");
    let seen = Seen::default();
    let note = Arc::clone(&seen);
    let task = tokio::spawn(async move {
        while let Ok(message) = all.next().await {
            let it = (message.subject.to_string(), message.payload.clone());
            note.lock().expect("a lock").insert(it);
        }
    });
    (seen, god, task)
}

/// Each stream of the durable account with its consumers, but for what posts and time change.
async fn stands(god: &Connection) -> Vec<Value> {
    let list = async |call: String| -> Value {
        god.js_call(&format!("$JS.API.{call}"), &json!({}), None).await.expect("a list")
    };
    let names = list("STREAM.NAMES".to_owned()).await;
    let mut all = Vec::new();
    for name in names["streams"].as_array().expect("streams") {
        let name = name.as_str().expect("a name");
        let info = god.stream_info(name).await.expect("a stream");
        let consumers = list(format!("CONSUMER.NAMES.{name}")).await["consumers"].clone();
        // The mirrors' own consumers come and go with the mirrors.
        let lasting: Vec<_> = consumers
            .as_array()
            .into_iter()
            .flatten()
            .filter(|name| name.as_str().is_some_and(|name| name.contains('_') || name.len() < 8))
            .cloned()
            .collect();
        all.push(json!([name, info.created, json!(info.config), lasting]));
    }
    all
}

struct Range {
    mesh: Mesh,
    alice: Peer,
    bob: Peer,
    mallory: Peer,
    calls: Vec<Call>,
    /// What is aimed at, but for what the agent may call itself.
    targets: BTreeSet<String>,
}

impl Range {
    async fn open() -> Self {
        let mesh = Mesh::start().await;
        let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
        let bob = mesh.peer_with_role("bob", &["team.>"], &[], Some("reviewer")).await;
        let creds = mesh.add_agent("mallory", &["team.>"], &["team.>"], Some("reviewer")).await;
        let mallory = Peer::connect(mesh.url(), &creds).await;
        let calls = calls(&creds);
        let mut targets = offices(&mesh);
        targets.extend(destruction(&mesh, &bob));
        targets.extend(writings(&mesh, &bob, &mallory));
        let own: BTreeSet<_> = calls.iter().map(|call| call.subject.clone()).collect();
        targets.retain(|target| !own.contains(target));
        assert!(calls.len() > 40 && targets.len() > 250, "{} × {}", calls.len(), targets.len());
        Self { mesh, alice, bob, mallory, calls, targets }
    }

    /// A DM to itself whose body is a pull, so that there is something to be pulled onto the
    /// target.
    async fn load(&self) {
        let own = self.mesh.space().inst(self.mallory.principal(), self.mallory.principal());
        let sent = self.mallory.connection.publish(own, None, PULL.into());
        sent.await.expect("a DM to itself");
    }

    async fn shoot(&self, call: &Call, target: &str) {
        if call.kind == Kind::Pushed {
            return self.push(call, target).await;
        }
        if call.kind == Kind::Pulled {
            self.load().await;
        }
        let (subject, body) = (call.subject.clone(), (call.body)(target).into());
        let sent =
            self.mallory.connection.publish_with_reply(subject, target.to_owned(), None, body);
        sent.await.expect("a shot");
    }

    /// A push consumer of its own, wherever the agent may make one. What it does in the shared
    /// account is that account's; it is made again so that the next shot finds it.
    async fn push(&self, call: &Call, target: &str) {
        let tail = call.subject.split(".CONSUMER.CREATE.").nth(1).expect("a stream");
        let mut tokens = tail.split('.');
        let (stream, name) = (tokens.next().expect("a stream"), tokens.next());
        let filter = tokens.collect::<Vec<_>>().join(".");
        let mut config: Value = serde_json::from_str(&(call.body)(target)).expect("JSON");
        if let Some(name) = name {
            config["name"] = name.into();
        }
        if !filter.is_empty() {
            config["filter_subject"] = filter.into();
        }
        let body = json!({ "stream_name": stream, "config": config });
        for _ in 0..2 {
            let made = self.mallory.connection.js_call::<Value>(&call.subject, &body, None).await;
            match made {
                Err(NatsError::Absent { .. } | NatsError::NoResponders { .. }) => {
                    self.mend().await;
                }
                _ => return,
            }
        }
    }

    /// Makes the shared account anew, as the running manager does.
    async fn mend(&self) {
        let (authority, broker) = (self.mesh.authority(), self.mesh.address());
        let (_, connection) =
            authority.connect(Office::SharedProvisioner, &broker).await.expect("a provisioner");
        let mended = provision_space(&connection, self.mesh.space(), Shape::Shared).await;
        mended.expect("the shared account");
    }

    /// Every call of the kinds at every target.
    async fn volley(&self, kinds: &[Kind]) {
        let mut shots = 0;
        for call in self.calls.iter().filter(|call| kinds.contains(&call.kind)) {
            for target in &self.targets {
                self.shoot(call, target).await;
                shots += 1;
                if shots % AT_ONCE == 0 {
                    self.mallory.connection.round_trip().await.expect("a round trip");
                }
            }
        }
        self.mallory.connection.round_trip().await.expect("a round trip");
    }

    /// The broker answers each call of the agent, where the agent hears it: shots that are no calls
    /// would prove nothing. Pushes are tried by a consumer that delivers.
    async fn is_loaded(&self, kinds: &[Kind]) {
        let own = format!("{}.aim", self.mallory.connection.inbox_prefix());
        let mut heard =
            self.mallory.connection.subscribe(own.as_str(), None).await.expect("an inbox");
        for call in self.calls.iter().filter(|call| kinds.contains(&call.kind)) {
            if call.subject.starts_with("$JS.ACK.") || call.subject.starts_with("$JS.FC.") {
                continue;
            }
            self.shoot(call, &own).await;
            let answer = timeout(PATIENCE, heard.next()).await;
            let answer = answer.unwrap_or_else(|_| panic!("{} is not answered", call.subject));
            answer.expect("an answer");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_the_broker_does_for_an_agent_comes_as_far_as_the_durable_account() {
    let range = Range::open().await;
    range.mallory.claim_name("mallory").await;
    range.is_loaded(&[Kind::PubAck, Kind::ApiAnswer, Kind::Empty, Kind::Pulled]).await;
    let (seen, god, task) = witness(&range.mesh).await;
    let before = stands(&god).await;
    seen.lock().expect("a lock").clear();
    range.volley(&[Kind::PubAck, Kind::ApiAnswer, Kind::Empty, Kind::Pulled]).await;
    god.round_trip().await.expect("a round trip");
    let landed: Vec<_> = {
        let seen = seen.lock().expect("a lock");
        assert!(seen.iter().any(|(subject, _)| subject.contains(".chat.local.mallory.")));
        seen.iter()
            .map(|(subject, _)| subject.clone())
            .filter(|s| range.targets.contains(s))
            .collect()
    };
    assert!(landed.is_empty(), "{landed:?}");

    // Pushes live in the shared account. What they do there is not seen here; what they do here is.
    range.volley(&[Kind::Pushed]).await;
    // Ten heartbeats: the broker offers no event for what it does not send.
    tokio::time::sleep(Duration::from_secs(1)).await;
    range.mend().await;
    assert_eq!(stands(&god).await, before, "a stream or a consumer is another one");
    for (stream, consumer) in [("CHAT_main", FANOUT), ("INBOX_main", READER)] {
        let info: Value = god
            .js_call(&format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}"), &json!({}), None)
            .await
            .expect("a consumer");
        let taken = [&info["num_waiting"], &info["delivered"]["consumer_seq"]];
        assert_eq!(taken, [&json!(0), &json!(0)], "somebody pulls from {consumer}: {info}");
    }
    task.abort();
}

/// The robbery that went on for ever in a space of one account.
#[tokio::test(flavor = "multi_thread")]
async fn robbing_the_daemons_pulls_has_no_effect_and_the_daemon_delivers() {
    let range = Range::open().await;
    let _lane = range.mesh.lane().await;
    assert!(range.bob.join("team.backend").await.durable);
    range.mallory.claim_name("mallory").await;
    range.is_loaded(&[Kind::RailAnswer]).await;
    let (seen, _god, task) = witness(&range.mesh).await;
    range.volley(&[Kind::RailAnswer]).await;
    for target in [
        "$JS.API.CONSUMER.MSG.NEXT.CHAT_main.fanout",
        "$JS.API.CONSUMER.MSG.NEXT.INBOX_main.reader",
        "$JS.API.CONSUMER.DELETE.CHAT_main.fanout",
        "$JS.API.CONSUMER.DELETE.INBOX_main.reader",
        "$JS.API.STREAM.PURGE.INBOX_main",
        "$JS.API.STREAM.DELETE.DLV_main",
    ] {
        for call in &range.calls {
            range.shoot(call, target).await;
        }
        range.alice.post("team.backend", target, &[]).await;
        assert_eq!(range.bob.receive(1).await, [target]);
    }
    let seen = seen.lock().expect("a lock");
    let is_answer = |body: &Bytes| {
        let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
        value.get("ok").is_some() || value["state"] == "bound"
    };
    let landed: Vec<_> = seen
        .iter()
        .filter(|(subject, body)| range.targets.contains(subject) && is_answer(body))
        .collect();
    assert!(landed.is_empty(), "{landed:?}");
    task.abort();
}

/// Nobody's safety hangs on what the shared account holds: not even its loss ends a delivery.
#[tokio::test(flavor = "multi_thread")]
async fn a_destroyed_presence_bucket_stops_no_delivery() {
    let range = Range::open().await;
    let _lane = range.mesh.lane().await;
    assert!(range.bob.join("team.backend").await.durable);
    range.mallory.claim_name("mallory").await;
    let shared = range.mesh.all_of(Account::Shared).await;
    let stream = range.mesh.space().kv_stream(Bucket::Presence);
    let created = shared.stream_info(&stream).await.expect("presence").created;
    shared.delete_stream(&stream).await.expect("a deleted bucket");
    range.alice.post("team.backend", "without presence", &["bob"]).await;
    assert_eq!(range.bob.receive(1).await, ["without presence"]);
    range.mend().await;
    let again = shared.stream_info(&stream).await.expect("presence").created;
    assert_ne!(again, created);
    range.bob.claim_name("bob").await;
    range.alice.post("team.backend", "with presence", &["bob"]).await;
    assert_eq!(range.bob.receive(1).await, ["with presence"]);
}
