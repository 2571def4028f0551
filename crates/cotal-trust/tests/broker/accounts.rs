//! The three accounts of a space on a real broker: an agent does all of its work across them.

use cotal_trust::{Minted, SpaceAccount, UserKey, UserSpec, mint_profile, mint_user};
use cotal_wire::accounts::{Account, Topology};
use cotal_wire::names::{self, Bucket};
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::{Channel, ChannelPattern, Lifecycle, LifecycleUid, Principal, Role, Space};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

use super::support::{Broker, PATIENCE, Peer, fresh, may, now, push};

const MAX_PAYLOAD: u64 = 1024 * 1024;

fn space() -> Space {
    Space::parse("alpha").unwrap()
}

fn principal(name: &str) -> Principal {
    Principal::new("local", name).unwrap()
}

fn lifecycle(name: &str) -> Lifecycle {
    Lifecycle::new(principal(name), LifecycleUid::from_random([7; 26]))
}

/// All of one account, for what the daemon and the provisioner do.
fn all_of(accounts: &SpaceAccount, account: Account) -> Minted {
    let key = UserKey::generate();
    let (name, tags, permissions) = ("god", Vec::new(), may(&[">"], &[">"]));
    let spec = UserSpec { name, key: &key, tags, permissions, issued_at: now(), expires_at: None };
    mint_user(accounts.keys_of(account), &spec).unwrap()
}

fn agent(accounts: &SpaceAccount, name: &str) -> Minted {
    let all = || vec![ChannelPattern::parse("team.>").unwrap()];
    let grant = AgentGrant {
        lifecycle: lifecycle(name),
        read: all(),
        post: all(),
        role: Some(Role::parse("reviewer").unwrap()),
    };
    let key = UserKey::generate();
    mint_profile(accounts, &key, &Profile::Agent(grant), now(), None).unwrap()
}

/// A space of three accounts with its streams, and all of each account.
struct World {
    _dir: tempfile::TempDir,
    broker: Broker,
    accounts: SpaceAccount,
    durable: Peer,
    shared: Peer,
}

impl World {
    async fn start() -> Self {
        let (dir, root, trust) = fresh();
        let accounts = trust.space_account(&space(), Topology::Three, now()).unwrap();
        let broker = Broker::start(&root, &trust);
        let durable = broker.accepts(&all_of(&accounts, Account::Durable)).await;
        let shared = broker.accepts(&all_of(&accounts, Account::Shared)).await;
        for config in space().stream_configs(MAX_PAYLOAD, true) {
            create(&durable, &config.name, &json!(config)).await;
        }
        for bucket in Bucket::ALL.into_iter().filter(|bucket| bucket.account() == Account::Durable)
        {
            create(&durable, &space().kv_stream(bucket), &json!(space().bucket_config(bucket)))
                .await;
        }
        let presence = space().bucket_config(Bucket::Presence);
        create(&shared, &presence.name, &json!(presence)).await;
        let history = space().chat_mirror_config();
        create(&shared, &history.name, &json!(history)).await;
        for bucket in Bucket::MIRRORED {
            create(&shared, &space().kv_stream(bucket), &json!(space().mirror_config(bucket)))
                .await;
        }
        Self { _dir: dir, broker, accounts, durable, shared }
    }

    async fn agent(&self, name: &str) -> Peer {
        self.broker.accepts(&agent(&self.accounts, name)).await
    }
}

async fn create(peer: &Peer, name: &str, config: &Value) {
    let made = peer.asks(&format!("$JS.API.STREAM.CREATE.{name}"), config.to_string()).await;
    assert!(made["error"].is_null(), "{name}: {made}");
}

async fn call(peer: &Peer, call: &str, body: Value) -> Value {
    let answer = peer.asks(&format!("$JS.API.{call}"), body.to_string()).await;
    assert!(answer["error"].is_null(), "{call}: {answer}");
    answer
}

/// Makes a durable consumer, as the manager does.
async fn consumer(peer: &Peer, stream: &str, config: &cotal_wire::streams::ConsumerConfig) {
    let (name, filter) = (&config.name, config.filter_subject.as_deref().unwrap());
    let body = json!({ "stream_name": stream, "config": config, "action": "create" });
    call(peer, &format!("CONSUMER.CREATE.{stream}.{name}.{filter}"), body).await;
}

/// One message of a bound consumer, acknowledged and confirmed.
async fn take(peer: &Peer, inbox: &str, stream: &str, name: &str) -> async_nats::Message {
    let mut heard = peer.client.subscribe(inbox.to_owned()).await.unwrap();
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
    let body = json!({ "batch": 1, "expires": 5_000_000_000_u64 }).to_string();
    peer.client.publish_with_reply(next, inbox.to_owned(), body.into()).await.unwrap();
    let message = timeout(PATIENCE, heard.next()).await.expect("a message in time").unwrap();
    assert!(message.status.is_none(), "{message:?}");
    let ack = message.reply.clone().unwrap();
    assert!(ack.starts_with(&format!("$JS.ACK.{stream}.{name}.")), "{ack}");
    peer.client.request(ack, "+ACK".into()).await.expect("a confirmed ack");
    message
}

#[tokio::test]
async fn an_agent_posts_and_the_post_is_stored_and_heard_once() {
    let world = World::start().await;
    let (alice, bob) = (world.agent("alice").await, world.agent("bob").await);
    let pattern = ChannelPattern::parse("team.>").unwrap();
    let mut live = bob.client.subscribe(space().chat_channel(&pattern)).await.unwrap();
    // An answer on the same connection proves that the broker has the subscription.
    bob.asks("$JS.API.INFO", String::new()).await;

    let subject = space().chat(&principal("alice"), &Channel::parse("team.a").unwrap());
    let ack = alice.asks(&subject, "hello".to_owned()).await;
    assert_eq!((&ack["stream"], &ack["seq"]), (&json!("CHAT_alpha"), &json!(1)), "{ack}");
    let heard = timeout(PATIENCE, live.next()).await.unwrap().unwrap();
    assert_eq!((heard.subject.as_str(), &heard.payload[..]), (subject.as_str(), &b"hello"[..]));
    let again = timeout(Duration::from_millis(300), live.next()).await;
    assert!(again.is_err(), "heard twice: {again:?}");
    let info = call(&world.durable, "STREAM.INFO.CHAT_alpha", json!({})).await;
    assert_eq!(info["state"]["messages"], 1);
    let stored = call(&world.durable, "STREAM.MSG.GET.CHAT_alpha", json!({ "seq": 1 })).await;
    assert_eq!(stored["message"]["hdrs"], Value::Null, "{stored}");
}

#[tokio::test]
async fn an_agent_pulls_what_is_its_own_and_its_acks_are_confirmed() {
    let world = World::start().await;
    let (space, bob) = (space(), lifecycle("bob"));
    consumer(&world.durable, &space.dlv_stream(), &space.dlv_config(&bob)).await;
    consumer(&world.durable, &space.dm_stream(), &space.dm_config(&bob, 0)).await;
    let svc = space.svc_config(&Role::parse("reviewer").unwrap());
    consumer(&world.durable, &space.task_stream(), &svc).await;
    world.durable.asks(&space.dlv(&bob), "delivered".to_owned()).await;
    let minted = agent(&world.accounts, "bob");
    let peer = world.broker.accepts(&minted).await;
    let inbox = |n: u8| format!("_INBOX_{}.t{n}", minted.public_key);

    let name = space.dlv_consumer(&bob);
    let delivered = take(&peer, &inbox(1), &space.dlv_stream(), &name).await;
    assert_eq!(&delivered.payload[..], b"delivered");
    assert_eq!(delivered.subject.as_str(), space.dlv(&bob));
    let info =
        call(&peer, &format!("CONSUMER.INFO.{}.{name}", space.dlv_stream()), json!({})).await;
    assert_eq!(
        (&info["num_ack_pending"], &info["ack_floor"]["stream_seq"]),
        (&json!(0), &json!(1))
    );

    let alice = world.agent("alice").await;
    let dm = space.inst(&bob.principal, &principal("alice"));
    assert_eq!(alice.asks(&dm, "psst".to_owned()).await["stream"], "DM_alpha");
    let name = space.dm_consumer(&bob);
    assert_eq!(&take(&peer, &inbox(2), &space.dm_stream(), &name).await.payload[..], b"psst");
    let ask = space.svc(&Role::parse("reviewer").unwrap(), &principal("alice"));
    assert_eq!(alice.asks(&ask, "review".to_owned()).await["stream"], "TASK_alpha");
    let task = take(&peer, &inbox(3), &space.task_stream(), &svc.name).await;
    assert_eq!(&task.payload[..], b"review");
}

#[tokio::test]
async fn an_agent_reads_and_watches_presence_and_the_mirrors_and_cannot_write_to_these() {
    let world = World::start().await;
    let mut alice = world.agent("alice").await;
    let own = space().kv_subject(Bucket::Presence, "local.alice");
    assert_eq!(alice.asks(&own, "{}".to_owned()).await["stream"], "KV_cotal_presence_alpha");
    let row = space().kv_subject(Bucket::Channels, "team.a");
    world.durable.asks(&row, "{}".to_owned()).await;
    let jetstream = async_nats::jetstream::new(alice.client.clone());
    for (bucket, key) in [(Bucket::Presence, "local.alice"), (Bucket::Channels, "team.a")] {
        let name = space().bucket(bucket);
        let kv = jetstream.get_key_value(&name).await.expect("the bucket binds");
        let mut watch = kv.watch_with_history(">").await.expect("a watch");
        let told = timeout(PATIENCE, watch.next()).await.expect("told in time").unwrap().unwrap();
        assert_eq!((told.key.as_str(), &told.value[..]), (key, &b"{}"[..]), "{name}");
        let entry = kv.entry(key).await.unwrap().expect("a row");
        assert_eq!(entry.revision, 1);
    }
    alice.may_not_publish(&row).await;
    let mirrored = call(&world.shared, "STREAM.INFO.KV_cotal_channels_alpha", json!({})).await;
    assert_eq!(mirrored["config"]["subjects"], Value::Null, "a mirror stores no subject");
}

#[tokio::test]
async fn an_agent_reads_history_from_a_mirror_and_makes_no_consumer_in_the_durable_account() {
    let world = World::start().await;
    let alice = world.agent("alice").await;
    let channel = Channel::parse("team.a").unwrap();
    let subject = space().chat(&principal("alice"), &channel);
    alice.asks(&subject, "hello".to_owned()).await;
    let truth = format!("{}.STREAM.INFO.CHAT_alpha", space().durable_api());
    let info = alice.asks(&truth, String::new()).await;
    assert_eq!((&info["state"]["last_seq"], &info["config"]["mirror"]), (&json!(1), &Value::Null));
    let config = space().chathist_config(&lifecycle("alice"), &channel, None);
    let (name, filter) = (&config.name, config.filter_subject.as_deref().unwrap());
    let body = json!({ "stream_name": "CHAT_alpha", "config": config });
    let create = format!("CONSUMER.CREATE.CHAT_alpha.{name}.{filter}");
    for _ in 0..100 {
        if call(&alice, "STREAM.INFO.CHAT_alpha", json!({})).await["state"]["last_seq"] == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(call(&alice, &create, body).await["num_pending"], 1);
    let held = call(&world.durable, "CONSUMER.NAMES.CHAT_alpha", json!({})).await;
    let held: Vec<_> = held["consumers"].as_array().unwrap().iter().map(Value::as_str).collect();
    assert!(!held.contains(&Some(name.as_str())), "{held:?}");
}

#[tokio::test]
async fn the_lease_expires_in_its_mirror_and_is_read_there() {
    let world = World::start().await;
    let alice = world.agent("alice").await;
    let lease = space().kv_subject(Bucket::Delivery, names::LEASE_KEY);
    world.durable.asks(&lease, "{\"ready\":true}".to_owned()).await;
    let get = || async {
        let body = json!({ "last_by_subj": lease }).to_string();
        alice.asks("$JS.API.STREAM.MSG.GET.KV_cotal_delivery_alpha", body).await
    };
    let mut seen = get().await;
    for _ in 0..100 {
        if seen["error"].is_null() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        seen = get().await;
    }
    assert_eq!(seen["message"]["seq"], 1, "{seen}");
}

#[tokio::test]
async fn a_request_on_a_rail_is_answered_on_any_inbox_by_whoever_serves_in_the_durable_account() {
    let world = World::start().await;
    let mut rail = world.durable.client.subscribe(space().ctl_all(names::DELIVERY)).await.unwrap();
    world.durable.client.flush().await.unwrap();
    let daemon = world.durable.client.clone();
    let serving = tokio::spawn(async move {
        let asked = rail.next().await.unwrap();
        let reply = asked.reply.clone().unwrap();
        daemon.publish(reply.clone(), "{\"ok\":true}".into()).await.unwrap();
        daemon.flush().await.unwrap();
        (asked.subject.to_string(), reply.to_string())
    });
    let alice = world.agent("alice").await;
    let ask = space().ctl(names::DELIVERY, &principal("alice"));
    assert_eq!(alice.asks(&ask, "{}".to_owned()).await["ok"], true);
    let (subject, reply) = serving.await.unwrap();
    assert_eq!(subject, ask);
    assert!(names::is_forwarded_reply(&reply), "{reply}");
    let refused = alice.client.request(ask, "{}".into()).await.unwrap_err();
    assert_eq!(refused.kind(), async_nats::RequestErrorKind::NoResponders);
}

#[tokio::test]
async fn the_durable_account_reads_presence_of_the_shared_one_under_its_prefix() {
    let world = World::start().await;
    let alice = world.agent("alice").await;
    let own = space().kv_subject(Bucket::Presence, "local.alice");
    alice.asks(&own, "{}".to_owned()).await;
    let prefix = space().shared_api();
    let stream = space().kv_stream(Bucket::Presence);
    let daemon = &world.durable;
    let info = daemon.asks(&format!("{prefix}.STREAM.INFO.{stream}"), "{}".to_owned()).await;
    assert_eq!(info["state"]["messages"], 1, "{info}");
    let body = json!({ "stream_name": stream, "config": {
        "name": "w1", "deliver_policy": "last_per_subject", "ack_policy": "none",
        "filter_subject": own, "mem_storage": true, "inactive_threshold": 60_000_000_000_u64,
    }});
    let made =
        daemon.asks(&format!("{prefix}.CONSUMER.CREATE.{stream}.w1.{own}"), body.to_string()).await;
    assert!(made["error"].is_null(), "{made}");
    let mut heard = daemon.client.subscribe("in.box").await.unwrap();
    let next = format!("{prefix}.CONSUMER.MSG.NEXT.{stream}.w1");
    daemon.client.publish_with_reply(next, "in.box", "{\"batch\":10}".into()).await.unwrap();
    let row = timeout(PATIENCE, heard.next()).await.unwrap().unwrap();
    assert_eq!(row.subject.as_str(), own);
    let gone = daemon.asks(&format!("{prefix}.CONSUMER.DELETE.{stream}.w1"), String::new()).await;
    assert_eq!(gone["success"], true, "{gone}");
}

#[tokio::test]
async fn accounts_that_are_made_while_the_broker_runs_know_each_other_once_all_are_pushed() {
    let (_dir, root, trust) = fresh();
    let broker = Broker::start(&root, &trust);
    let accounts = trust.space_account(&space(), Topology::Three, now()).unwrap();
    for (_, jwt) in accounts.jwts() {
        push(&broker, trust.system(), &jwt).await;
    }
    let durable = broker.accepts(&all_of(&accounts, Account::Durable)).await;
    let chat = &space().stream_configs(MAX_PAYLOAD, true)[0];
    create(&durable, &chat.name, &json!(chat)).await;
    let alice = broker.accepts(&agent(&accounts, "alice")).await;
    let subject = space().chat(&principal("alice"), &Channel::parse("team.a").unwrap());
    assert_eq!(alice.asks(&subject, "hello".to_owned()).await["seq"], 1);
    let shared = broker.accepts(&all_of(&accounts, Account::Shared)).await;
    let bucket = Bucket::Channels;
    create(&durable, &space().kv_stream(bucket), &json!(space().bucket_config(bucket))).await;
    create(&shared, &space().kv_stream(bucket), &json!(space().mirror_config(bucket))).await;
    let row = space().kv_subject(bucket, "team.a");
    durable.asks(&row, "{}".to_owned()).await;
    for _ in 0..100 {
        let info = call(&alice, "STREAM.INFO.KV_cotal_channels_alpha", json!({})).await;
        if info["state"]["messages"] == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the mirror stays empty");
}
