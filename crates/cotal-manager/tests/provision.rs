//! Provisioning against a real broker: repeatable, and repaired in place.
#![allow(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

use cotal_manager::{Authority, Liveness, Office, Provisioned, Rail, Shape, provision_space};
use cotal_nats::{ConnectError, ConnectOptions, Connection, NatsError};
use cotal_testkit::Mesh;
use cotal_wire::Space;
use cotal_wire::accounts::Account;
use cotal_wire::names::Bucket;
use serde_json::{Value, json};

async fn provision(mesh: &Mesh) -> Provisioned {
    cotal_manager::provision(&mesh.authority(), &mesh.address()).await.unwrap()
}

/// Every stream and bucket as the broker tells it, its state and creation time included.
async fn snapshot(mesh: &Mesh) -> Vec<Value> {
    let mut all = Vec::new();
    for account in [Account::Durable, Account::Shared] {
        let god = mesh.all_of(account).await;
        let names: Value = god.js_call("$JS.API.STREAM.NAMES", &json!({}), None).await.unwrap();
        for name in names["streams"].as_array().unwrap() {
            let subject = format!("$JS.API.STREAM.INFO.{}", name.as_str().unwrap());
            let mut info: Value = god.js_call(&subject, &json!({}), None).await.unwrap();
            info["ts"] = Value::Null;
            // A mirror follows its original by itself.
            if info["config"]["mirror"].is_object() {
                info["mirror"] = Value::Null;
                info["state"] = Value::Null;
            }
            all.push(info);
        }
    }
    all
}

#[tokio::test]
async fn a_second_run_changes_nothing() {
    let mesh = Mesh::start().await;
    let before = snapshot(&mesh).await;
    assert_eq!(provision(&mesh).await, Provisioned::default());
    assert_eq!(snapshot(&mesh).await, before);
}

#[tokio::test]
async fn the_daemons_consumers_are_there_from_the_start() {
    let mesh = Mesh::start().await;
    let (god, space) = (mesh.god().await, mesh.space());
    for (stream, consumer) in [
        (space.chat_stream(), "fanout"),
        (space.inbox_stream(), "reader"),
        (space.ept_req_stream(), "timer-writer"),
    ] {
        god.consumer_info(&stream, consumer).await.unwrap();
    }
}

#[tokio::test]
async fn a_vanished_fanout_is_not_made_anew_behind_the_daemons_back() {
    let mesh = Mesh::start().await;
    let (god, chat) = (mesh.god().await, mesh.space().chat_stream());
    god.delete_consumer(&chat, "fanout").await.unwrap();
    assert_eq!(provision(&mesh).await, Provisioned::default());
    let gone = god.consumer_info(&chat, "fanout").await.unwrap_err();
    assert!(matches!(gone, NatsError::Absent { .. }), "{gone}");
}

#[tokio::test]
async fn what_contradicts_the_wire_is_repaired_and_what_it_leaves_open_is_kept() {
    let mesh = Mesh::start().await;
    let (god, inbox) = (mesh.god().await, mesh.space().inbox_stream());
    let mut config = god.stream_info(&inbox).await.unwrap().config;
    config.allow_direct = true;
    config.max_msgs_per_subject = 5;
    config.duplicate_window = 60_000_000_000;
    config.rest.insert("max_bytes".to_owned(), json!(1_000_000_000));
    config.rest.insert("description".to_owned(), json!("of somebody else"));
    god.update_stream(&inbox, &config).await.unwrap();
    let done = provision(&mesh).await;
    let [(name, changes)] = &done.repaired[..] else {
        panic!("{done:?}");
    };
    let mut fields: Vec<_> = changes.iter().map(|change| change.field).collect();
    fields.sort_unstable();
    assert_eq!(name, &inbox);
    assert_eq!(fields, ["allow_direct", "duplicate_window", "max_msgs_per_subject"]);
    let after = god.stream_info(&inbox).await.unwrap().config;
    assert!(!after.allow_direct);
    assert_eq!(after.max_msgs_per_subject, 1_000);
    assert_eq!(after.rest["max_bytes"], json!(1_000_000_000));
    assert_eq!(after.rest["description"], json!("of somebody else"));
    assert_eq!(provision(&mesh).await, Provisioned::default());
}

/// A space from before CHAT kept more of what is not routed.
#[tokio::test]
async fn a_chat_that_keeps_too_few_posts_is_raised() {
    let mesh = Mesh::start().await;
    let (god, chat) = (mesh.god().await, mesh.space().chat_stream());
    let mut config = god.stream_info(&chat).await.unwrap().config;
    config.max_msgs_per_subject = 1_000;
    god.update_stream(&chat, &config).await.unwrap();
    assert_eq!(provision(&mesh).await.repaired.len(), 1);
    let after = god.stream_info(&chat).await.unwrap().config;
    assert_eq!(after.max_msgs_per_subject, 32_768);
}

#[tokio::test]
async fn a_changed_or_removed_default_stays_so() {
    let mesh = Mesh::start().await;
    let bucket = mesh.space().bucket(Bucket::Channels);
    let channels = cotal_nats::Bucket::new(&mesh.god().await, &bucket);
    let value = channels.get("=defaults").await.unwrap().unwrap();
    assert_eq!(value.live().unwrap().as_ref(), br#"{"deliveryClass":"durable"}"#);
    let live = br#"{"deliveryClass":"live"}"#;
    channels.put("=defaults", live.as_slice().into()).await.unwrap();
    assert_eq!(provision(&mesh).await, Provisioned::default());
    let value = channels.get("=defaults").await.unwrap().unwrap();
    assert_eq!(value.live().unwrap().as_ref(), live);
    channels.delete("=defaults", None).await.unwrap();
    assert_eq!(provision(&mesh).await, Provisioned::default());
    assert!(channels.get("=defaults").await.unwrap().unwrap().live().is_none());
}

#[tokio::test]
async fn an_interrupted_run_is_continued() {
    let mesh = Mesh::start().await;
    let (god, space) = (mesh.god().await, mesh.space());
    for stream in [space.chat_stream(), space.kv_stream(Bucket::Dead)] {
        god.delete_stream(&stream).await.unwrap();
    }
    let done = provision(&mesh).await;
    let chat = space.chat_stream();
    let wanted = [chat.clone(), format!("{chat}/fanout"), space.kv_stream(Bucket::Dead)];
    assert_eq!(done.created, wanted);
}

#[tokio::test]
async fn a_space_is_added_while_the_broker_runs() {
    let mesh = Mesh::start().await;
    let space = Space::parse("research").unwrap();
    let authority = Authority::create_or_open(mesh.root(), &space).unwrap();
    let refused = authority.connect(Office::Provisioner, &mesh.address()).await.unwrap_err();
    let source = std::error::Error::source(&refused).unwrap().downcast_ref::<NatsError>();
    let rejected = matches!(source, Some(NatsError::Connect(ConnectError::Rejected { .. })));
    assert!(rejected, "{refused:?}");
    authority.push_account(&mesh.address()).await.unwrap();
    cotal_manager::provision(&authority, &mesh.address()).await.unwrap();
    let (_, connection) = authority.connect(Office::Provisioner, &mesh.address()).await.unwrap();
    // Pushing what the broker knows already changes nothing and disturbs nobody.
    authority.push_account(&mesh.address()).await.unwrap();
    connection.stream_info(&space.chat_stream()).await.unwrap();
}

#[tokio::test]
async fn crd_1_no_office_may_do_what_another_is_for() {
    let mesh = Mesh::start().await;
    let (space, authority) = (mesh.space(), mesh.authority());
    for (office, stream) in
        [(Office::Supervisor, space.inbox_stream()), (Office::Provisioner, space.inbox_stream())]
    {
        let (_, connection) = authority.connect(office, &mesh.address()).await.unwrap();
        let read = connection.get_message(&stream, cotal_nats::Get::Seq(1)).await;
        assert!(matches!(read, Err(NatsError::Denied { .. })), "{office:?}: {read:?}");
        let deleted = connection.delete_stream(&stream).await;
        assert!(matches!(deleted, Err(NatsError::Denied { .. })), "{office:?}: {deleted:?}");
    }
    let (_, operator) = authority.connect(Office::Operator, &mesh.address()).await.unwrap();
    let acl = cotal_nats::Bucket::new(&operator, &space.bucket(Bucket::Acl));
    let written = acl.put("local.x.y", "x".into()).await;
    assert!(matches!(written, Err(NatsError::Denied { .. })), "{written:?}");
    for (_, creds) in [Office::Operator, Office::Supervisor, Office::Provisioner]
        .map(|office| authority.one_shot(office).unwrap())
    {
        let exp = creds.claims().expires_at.expect("an end");
        let left = exp - cotal_manager::clock::unix_seconds();
        assert!((0..=300).contains(&left), "an office lives for minutes: {left}");
    }
}

#[tokio::test]
async fn a_probe_proves_a_daemon_and_nothing_else_does() {
    let mesh = Mesh::start().await;
    let (own, connection) =
        mesh.authority().connect(Office::Operator, &mesh.address()).await.unwrap();
    let rail = Rail::new(&connection, mesh.space(), &own);
    assert_eq!(rail.probe().await, Liveness::Unbound);
    let mut lane = mesh.lane().await;
    assert_eq!(rail.probe().await, Liveness::Bound);
    lane.stop();
    lane.ended().await.unwrap();
    assert_eq!(rail.probe().await, Liveness::Unbound);
}

#[tokio::test]
async fn lif_14_an_open_space_has_no_store_for_a_backstop() {
    let dir = tempfile::tempdir().unwrap();
    let binary = cotal_testkit::broker_binary();
    let conf = dir.path().join("server.conf");
    let config = cotal_broker::ServerConfig::new("open", dir.path().join("js"));
    std::fs::write(&conf, config.render()).unwrap();
    let options = cotal_broker::SpawnOptions::default();
    let broker = cotal_broker::Broker::spawn(&binary, &conf, options).await.unwrap();
    let anonymous = cotal_nats::CredsSource::anonymous();
    let options = ConnectOptions::new(broker.url(), "test", anonymous);
    let connection = Connection::connect(options).await.unwrap();
    let space = Space::parse("main").unwrap();
    provision_space(&connection, &space, Shape::LiveOnly).await.unwrap();
    connection.stream_info(&space.chat_stream()).await.unwrap();
    for stream in [space.inbox_stream(), space.dlv_stream(), space.kv_stream(Bucket::Members)] {
        let absent = connection.stream_info(&stream).await.unwrap_err();
        assert!(matches!(absent, NatsError::Absent { .. }), "{stream}: {absent}");
    }
    let again = provision_space(&connection, &space, Shape::LiveOnly).await.unwrap();
    assert_eq!(again, Provisioned::default());
}
