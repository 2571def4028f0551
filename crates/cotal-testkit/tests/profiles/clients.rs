//! What the profiles must be able to do, with the calls that client libraries really make.
//!
//! The bodies are those of async-nats (`kv.watch`), nats-py (`kv.watchall`, `pull_subscribe_bind`)
//! and nats.js (ordered consumers by name, `consumers.get`).

use cotal_nats::js::ConsumerAction;
use cotal_nats::{Bytes, Connection, NatsError, PullConsumer, PullOptions, Subscription, headers};
use cotal_testkit::{Mesh, eventually};
use cotal_trust::{UserKey, mint_system_profile};
use cotal_wire::Channel;
use cotal_wire::accounts::Account;
use cotal_wire::profile::{Profile, SystemProfile};
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

/// A push consumer as libraries make it for a watch.
struct Push {
    connection: Connection,
    messages: Subscription,
    flow_controls: usize,
}

impl Push {
    /// `call` is the subject that the library publishes on, below `$JS.API.CONSUMER.CREATE`.
    async fn create(connection: &Connection, stream: &str, call: &str, filter: &str) -> Self {
        let inbox = format!("{}.push-{}", connection.inbox_prefix(), call.replace(['.', '>'], "-"));
        let messages = connection.subscribe(inbox.clone(), None).await.expect("an own inbox");
        let config = json!({
            "deliver_subject": inbox, "deliver_policy": "last_per_subject", "ack_policy": "none",
            "max_deliver": 1, "filter_subject": filter, "replay_policy": "instant",
            "flow_control": true, "idle_heartbeat": 5_000_000_000_u64, "num_replicas": 1,
            "mem_storage": true,
        });
        let body = json!({ "stream_name": stream, "config": config, "action": "create" });
        let subject = format!("$JS.API.CONSUMER.CREATE.{call}");
        connection.js_call::<Value>(&subject, &body, None).await.expect("a push consumer");
        Self { connection: connection.clone(), messages, flow_controls: 0 }
    }

    /// The next message that carries something; flow control is answered as libraries do.
    async fn next(&mut self) -> Bytes {
        loop {
            let message = timeout(PATIENCE, self.messages.next()).await;
            let message = message.expect("the watch stalled").expect("a message");
            if message.status.is_none_or(|status| status.as_u16() == 200) {
                return message.payload;
            }
            let stalled = headers::get(message.headers.as_ref(), "Nats-Consumer-Stalled");
            let asked = message.reply.as_ref().map(|reply| reply.as_str()).or(stalled);
            if let Some(asked) = asked {
                self.flow_controls += 1;
                let answer = self.connection.publish(asked.to_owned(), None, Bytes::new()).await;
                answer.expect("an answer to flow control");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_watches_buckets_as_libraries_do_also_large_ones() {
    const ROWS: usize = 10_000;
    let mesh = Mesh::start().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await.connection;
    let god = mesh.god().await;
    for row in 0..ROWS {
        let subject = format!("$KV.cotal_channels_main.ch.{row}");
        god.publish(subject, None, Bytes::from_static(b"{}")).await.expect("a row");
    }
    let look = async || god.stream_state("KV_cotal_channels_main").await.expect("a state").messages;
    eventually("the rows", look, |&rows| rows > ROWS as u64).await;

    let (stream, all) = ("KV_cotal_channels_main", "$KV.cotal_channels_main.>");
    let named = format!("{stream}.oc_alice_1.{all}");
    for call in [stream, named.as_str()] {
        let mut watch = Push::create(&alice, stream, call, all).await;
        for _ in 0..=ROWS {
            watch.next().await;
        }
        assert!(watch.flow_controls > 0, "{call}: the broker never asked, so nothing was proven");
    }

    let (stream, all) = ("KV_cotal_presence_main", "$KV.cotal_presence_main.>");
    let mut presence = Push::create(&alice, stream, stream, all).await;
    let row = Bytes::from_static(br#"{"status":"idle"}"#);
    let own = "$KV.cotal_presence_main.local.alice";
    alice.publish_confirmed(own, None, row.clone(), None).await.expect("an own presence row");
    assert_eq!(presence.next().await, row);
    let lease = json!({ "last_by_subj": "$KV.cotal_delivery_main.lease.0" });
    let got =
        alice.js_call::<Value>("$JS.API.STREAM.MSG.GET.KV_cotal_delivery_main", &lease, None).await;
    assert!(got.is_err_and(|e| e.is_absent()), "without a daemon there is no lease to read");
    alice.stream_info("KV_cotal_delivery_main").await.expect("the lease bucket, as libraries bind");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_joins_fetches_acks_and_reads_history() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    assert!(bob.join("team.backend").await.durable);
    let ack = alice.post("team.backend", "one", &[]).await;
    assert_eq!(ack.stream, "CHAT_main");
    assert_eq!(alice.connection.last_seq("CHAT_main").await.expect("STREAM.INFO"), ack.seq);

    let durable = format!("dlv_local-bob-{}", bob.lifecycle.uid);
    let info = bob.connection.consumer_info("DLV_main", &durable).await.expect("a bound consumer");
    assert_eq!(info.config.filter_subject.as_deref(), Some(bob.space.dlv(&bob.lifecycle).as_str()));
    let mut pull = bob.deliveries().await;
    let first = pull.next_batch(1, PATIENCE).await.expect("a pull").pop().expect("the copy");
    first.progress().await.expect("a sign of life");
    first.nak(None).await.expect("a refusal");
    let again = pull.next_batch(1, PATIENCE).await.expect("a pull").pop().expect("the copy");
    assert_eq!(again.delivered, 2);
    again.ack_confirmed().await.expect("a confirmed ack");
    let info = bob.connection.consumer_info("DLV_main", &durable).await.expect("the consumer");
    assert_eq!((info.num_ack_pending, info.num_pending), (0, 0));
    pull.close().await;

    let channel = Channel::parse("team.backend").expect("a channel");
    let config = bob.space.chathist_config(&bob.lifecycle, &channel, None);
    let filter = config.filter_subject.as_deref();
    for _ in 0..2 {
        let made = bob
            .connection
            .create_consumer("CHAT_main", &config.name, filter, &config, ConsumerAction::Create)
            .await;
        made.expect("a history consumer");
        let options = PullOptions::default();
        let opened = PullConsumer::open(&bob.connection, "CHAT_main", &config.name, options).await;
        let mut history = opened.expect("a pull");
        let read = history.next_batch(10, PATIENCE).await.expect("history");
        assert_eq!(read.len(), 1);
        history.close().await;
        bob.connection.delete_consumer("CHAT_main", &config.name).await.expect("deleted after");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_hears_live_posts_sends_and_fetches_direct_messages_and_works_for_its_role() {
    let mesh = Mesh::start().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer_with_role("bob", &["team.>"], &[], Some("reviewer")).await;
    let mut live =
        bob.connection.subscribe("cotal.main.chat.*.*.team.>", None).await.expect("live");
    alice.post("team.backend", "one", &[]).await;
    let heard = timeout(PATIENCE, live.next()).await.expect("a post").expect("a post");
    assert_eq!(heard.subject.as_str(), "cotal.main.chat.local.alice.team.backend");

    let text = Bytes::from_static(b"{}");
    for (subject, stream, consumer) in [
        ("inst.local.bob.local.alice", "DM_main", format!("dm_local-bob-{}", bob.lifecycle.uid)),
        ("svc.reviewer.local.alice", "TASK_main", "svc_reviewer".to_owned()),
    ] {
        let subject = format!("cotal.main.{subject}");
        let sent =
            alice.connection.publish_confirmed(subject.clone(), None, text.clone(), None).await;
        assert_eq!(sent.expect("a PubAck").stream, stream);
        let options = PullOptions::default();
        let opened = PullConsumer::open(&bob.connection, stream, &consumer, options).await;
        let mut pull = opened.expect("a pull");
        let got = pull.next_batch(1, PATIENCE).await.expect("a pull").pop().expect("a message");
        assert_eq!(got.subject.as_str(), subject);
        got.ack_confirmed().await.expect("an ack");
        pull.close().await;
    }
    bob.connection.stream_info("TASK_main").await.expect("when TASK was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_read_channels_and_admins_direct_messages() {
    let mesh = Mesh::start().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    alice.post("team.backend", "one", &[]).await;
    let dm = alice.connection.publish_confirmed(
        "cotal.main.inst.local.bob.local.alice",
        None,
        Bytes::from_static(b"dm"),
        None,
    );
    dm.await.expect("a direct message");
    let observer = mesh.connect(&mesh.creds(Profile::Observer)).await;
    let call = "CHAT_main.oc_observer_1.cotal.main.chat.>";
    let mut posts = Push::create(&observer, "CHAT_main", call, "cotal.main.chat.>").await;
    let post: Value = serde_json::from_slice(&posts.next().await).expect("a post");
    assert_eq!(post["id"], "one");
    let admin = mesh.connect(&mesh.creds(Profile::Admin)).await;
    let call = "DM_main.oc_admin_1.cotal.main.inst.>";
    let mut dms = Push::create(&admin, "DM_main", call, "cotal.main.inst.>").await;
    assert_eq!(dms.next().await, "dm");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_membership_writer_watches_members_and_writes_the_feed() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join("team.backend").await;
    let writer = mesh.connect(&mesh.creds(|_| Profile::MembershipRw)).await;
    let stream = "KV_cotal_members_main";
    let mut members = Push::create(&writer, stream, stream, "$KV.cotal_members_main.>").await;
    let row: Value = serde_json::from_slice(&members.next().await).expect("a row");
    assert_eq!(row["channel"], "team.backend");
    let feed = cotal_nats::Bucket::new(&writer, "cotal_membership_main");
    let row = json!({ "live": [], "durable": ["team.backend"], "observedAt": 1 }).to_string();
    let revision = feed.create("local.bob", row.clone().into()).await.expect("a feed row");
    feed.update("local.bob", row.into(), revision).await.expect("an update");
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_3_the_system_profiles_count_hear_and_kick() {
    let mesh = Mesh::start().await;
    let authority = mesh.authority();
    let account = authority.account().keys_of(Account::Agents).public_key();
    let now = cotal_manager::clock::unix_seconds();
    let mint = |profile: SystemProfile| {
        let key = UserKey::generate();
        let minted = mint_system_profile(authority.trust().system(), &key, &profile, None, now);
        minted.expect("a credential").creds.expose().to_owned()
    };
    let profile = SystemProfile::MembershipObserver { accounts: vec![account.clone()] };
    let observer = mesh.connect(&mint(profile)).await;
    let connects = format!("$SYS.ACCOUNT.{account}.CONNECT");
    let mut connects = observer.subscribe(connects, None).await.expect("connect events");
    let alice = mesh.peer("alice", &["team.>"], &[]).await;
    timeout(PATIENCE, connects.next()).await.expect("an event").expect("an event");

    let asked = json!({ "subscriptions": true, "auth": true, "offset": 0, "limit": 1024 });
    let census = format!("$SYS.REQ.ACCOUNT.{account}.CONNZ");
    let asked = Bytes::from(asked.to_string());
    let reply = observer.request(census, None, asked, None).await.expect("a census");
    let census: Value = serde_json::from_slice(&reply.payload).expect("JSON");
    let all = census["data"]["connections"].as_array().expect("connections");
    let is_alice = |c: &&Value| {
        let tags = c["tags"].as_array();
        tags.is_some_and(|tags| tags.contains(&json!("principal:local.alice")))
    };
    let found = all.iter().find(is_alice).expect("alice in the census");
    assert_eq!(found["cid"], alice.connection.client_id());
    let enough = |replies: &[cotal_nats::Message]| !replies.is_empty();
    let ping = observer.request_many("$SYS.REQ.SERVER.PING", Bytes::new(), PATIENCE, enough).await;
    assert_eq!(ping.expect("every server").len(), 1);

    let evictor = mesh.connect(&mint(SystemProfile::ConnectionEvictor)).await;
    let server = census["server"]["id"].as_str().expect("the server of the same reply");
    let kick = format!("$SYS.REQ.SERVER.{server}.KICK");
    let mut state = alice.connection.state();
    let body = Bytes::from(json!({ "cid": found["cid"] }).to_string());
    match evictor.request(kick, None, body, Some(Duration::from_secs(2))).await {
        Ok(_) | Err(NatsError::Timeout { .. } | NatsError::NoResponders { .. }) => {}
        Err(error) => panic!("the kick is refused: {error}"),
    }
    let dropped = timeout(PATIENCE, state.wait_for(|s| s.drops > 0)).await;
    dropped.expect("alice was kicked").expect("a state");
}

#[tokio::test(flavor = "multi_thread")]
async fn offices_read_and_write_their_rows() {
    let mesh = Mesh::start().await;
    let operator = mesh.operator().await;
    let channels = cotal_nats::Bucket::new(&operator, "cotal_channels_main");
    assert!(channels.get("=defaults").await.expect("a read").is_some());
    let revision = channels.create("team.backend", "{}".into()).await.expect("a channel");
    channels.update("team.backend", "{}".into(), revision).await.expect("an update");
    for stream in super::tables::STREAMS {
        operator.stream_info(stream).await.unwrap_or_else(|e| panic!("{stream}: {e}"));
    }
    let supervisor = mesh.connect(&mesh.creds(Profile::Supervisor)).await;
    let acl = cotal_nats::Bucket::new(&supervisor, "cotal_acl_main");
    let key = "local.bob.00000000000000000000000000";
    let revision = acl.create(key, "{}".into()).await.expect("an ACL row");
    acl.update(key, "{}".into(), revision).await.expect("an update");
    let members = cotal_nats::Bucket::new(&supervisor, "cotal_members_main");
    members.delete(&format!("team/{key}"), None).await.expect("a delete marker");
}
