//! What a permission cannot express: requests whose body says something else than their subject,
//! and spaces that are accounts of their own.

use std::collections::BTreeMap;

use cotal_manager::Authority;
use cotal_nats::{Bytes, ConnectOptions, Connection, Creds, CredsSource, NatsError};
use cotal_testkit::{Mesh, MeshOptions, Peer};
use cotal_trust::{UserKey, UserSpec, mint_user};
use cotal_wire::Space;
use cotal_wire::accounts::Account;
use cotal_wire::permissions::Permissions;
use cotal_wire::profile::Profile;
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

use crate::tables::STREAMS;

/// The broker took the request by its subject and refused it by its body.
async fn refused(connection: &Connection, call: &str, body: Value) {
    let subject = format!("$JS.API.{call}");
    let answer = connection.js_call::<Value>(&subject, &body, None).await;
    match answer {
        Err(NatsError::Refused { .. } | NatsError::Conflict { .. }) => {}
        other => panic!("{call} with {body} is not refused: {other:?}"),
    }
}

/// The names of every stream's consumers.
async fn consumers(god: &Connection) -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    for stream in STREAMS {
        let subject = format!("$JS.API.CONSUMER.NAMES.{stream}");
        match god.js_call::<Value>(&subject, &json!({}), None).await {
            Ok(names) => drop(all.insert(stream, names["consumers"].clone())),
            Err(error) => assert!(error.is_absent(), "{stream}: {error}"),
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_9_no_body_says_more_than_its_subject() {
    no_body_says_more(Mesh::of_one_account().await).await;
    no_body_says_more(Mesh::start().await).await;
}

async fn no_body_says_more(mesh: Mesh) {
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    // Agents make consumers where they read, which is the shared account.
    let god = mesh.all_of(Account::Shared).await;
    let before = consumers(&god).await;
    let name = format!("chathist_local-alice-{}", alice.lifecycle.uid);
    let own = "cotal.main.chat.*.*.team.backend";
    let secret = "cotal.main.chat.*.*.secret";
    let history = format!("CONSUMER.CREATE.CHAT_main.{name}.{own}");
    let base = json!({ "name": name, "ack_policy": "none", "deliver_policy": "all" });
    for change in [
        json!({}),
        json!({ "filter_subject": secret }),
        json!({ "filter_subject": "cotal.main.chat.>" }),
        json!({ "filter_subjects": [secret] }),
        json!({ "filter_subjects": [own, secret] }),
        json!({ "filter_subject": own, "filter_subjects": [own, secret] }),
        json!({ "filter_subject": own, "durable_name": "fanout" }),
    ] {
        let mut config = base.clone();
        for (field, value) in change.as_object().expect("an object") {
            config[field] = value.clone();
        }
        refused(
            &alice.connection,
            &history,
            json!({ "stream_name": "CHAT_main", "config": config }),
        )
        .await;
    }
    let body = |stream: &str, config: Value| json!({ "stream_name": stream, "config": config });
    let bare = "CONSUMER.CREATE.KV_cotal_presence_main";
    let named = "CONSUMER.CREATE.KV_cotal_presence_main.mine";
    let config = json!({ "ack_policy": "none", "deliver_policy": "all" });
    refused(&alice.connection, &history, body("DLV_main", base)).await;
    for stream in ["INBOX_main", "DLV_main", "DM_main", "KV_cotal_acl_main"] {
        refused(&alice.connection, bare, body(stream, config.clone())).await;
        refused(&alice.connection, named, body(stream, config.clone())).await;
    }
    let durable = json!({ "ack_policy": "explicit", "durable_name": "mine" });
    refused(&alice.connection, bare, body("KV_cotal_presence_main", durable)).await;
    assert_eq!(consumers(&god).await, before, "no consumer came of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_cannot_take_the_fan_out_over_by_a_name_in_a_body() {
    let mesh = Mesh::start().await;
    let observer = mesh.connect(&mesh.creds(Profile::Observer)).await;
    let god = mesh.god().await;
    let before = god.consumer_info("CHAT_main", "fanout").await.expect("the fan-out");
    let config = json!({
        "name": "fanout", "ack_policy": "explicit", "deliver_policy": "new",
        "filter_subject": "cotal.main.chat.*.*.nothing",
    });
    let body = json!({ "stream_name": "CHAT_main", "config": config });
    let bare = "$JS.API.CONSUMER.CREATE.CHAT_main";
    let answer = observer.js_call::<Value>(bare, &body, None).await;
    assert!(answer.is_err_and(|e| e.is_denied()));
    let after = god.consumer_info("CHAT_main", "fanout").await.expect("the fan-out");
    assert_eq!(after.config, before.config);
    // Why the bare form is withheld: the broker obeys the name, and the fan-out is somebody else's.
    god.js_call::<Value>(bare, &body, None).await.expect("the broker obeys");
    let taken = god.consumer_info("CHAT_main", "fanout").await.expect("a consumer");
    assert_ne!(taken.config, before.config, "the broker got stricter: the bare form may be given");
}

async fn all_seeing(mesh: &Mesh, space: &str) -> Connection {
    let space = Space::parse(space).expect("a space");
    let authority = Authority::open(mesh.root(), &space).expect("its keys");
    let (key, all) = (UserKey::generate(), vec![">".to_owned()]);
    let spec = UserSpec {
        name: "all-seeing",
        key: &key,
        tags: Vec::new(),
        permissions: Permissions {
            pub_allow: all.clone(),
            sub_allow: all,
            ..Permissions::default()
        },
        issued_at: cotal_manager::clock::unix_seconds(),
        expires_at: None,
    };
    let minted = mint_user(authority.account().keys(), &spec).expect("a credential");
    let creds = Creds::parse(minted.creds.expose()).expect("a credential");
    let options = ConnectOptions::new(mesh.url(), "all-seeing", CredsSource::new(creds));
    Connection::connect(options).await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_is_an_account_and_shows_nothing_to_another() {
    let spaces = vec!["main".to_owned(), "other".to_owned()];
    let mesh = Mesh::with(MeshOptions { spaces, ..MeshOptions::default() }).await;
    let alice: Peer = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let (own, foreign) = (all_seeing(&mesh, "main").await, all_seeing(&mesh, "other").await);
    let mut seen = own.subscribe("cotal.main.chat.>", None).await.expect("an own subscription");
    let mut leaked = foreign.subscribe("cotal.main.>", None).await.expect("a subscription");

    alice.post("team.backend", "one", &[]).await;
    seen.next().await.expect("the post in its own space");
    let forged = Bytes::from_static(b"forged");
    foreign.publish("cotal.main.chat.local.alice.team.backend", None, forged).await.expect("sent");
    assert!(foreign.stream_info("CHAT_main").await.is_err_and(|e| e.is_absent()));
    foreign.round_trip().await.expect("a round trip");
    let own_echo = leaked.next().await.expect("the forgery stays in its own account");
    assert_eq!(own_echo.payload, "forged");
    assert!(timeout(Duration::from_millis(200), seen.next()).await.is_err(), "nothing crossed");
    assert_eq!(own.last_seq("CHAT_main").await.expect("a sequence"), 1);
}
