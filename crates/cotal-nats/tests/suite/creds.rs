//! A connection moves onto new creds, presents none that are dead, and never falls back from TLS.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::common::{Broker, SOON};
use cotal_nats::{
    Bytes, ConnEvent, ConnectError, ConnectOptions, Connection, Creds, CredsError, CredsSource,
    NatsError, TlsMode, prove,
};
use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::KeyPair;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512_256};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn jwt(issuer: &KeyPair, mut claims: Value) -> String {
    claims["iss"] = issuer.public_key().into();
    claims["iat"] = now().into();
    claims["jti"] = "".into();
    let id = BASE32_NOPAD.encode(&Sha512_256::digest(claims.to_string()));
    claims["jti"] = id.into();
    let header = BASE64URL_NOPAD.encode(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let body = format!("{header}.{}", BASE64URL_NOPAD.encode(claims.to_string().as_bytes()));
    let signature = issuer.sign(body.as_bytes()).expect("a signature");
    format!("{body}.{}", BASE64URL_NOPAD.encode(&signature))
}

fn account_claims(operator: &KeyPair, account: &KeyPair, limits: &Value) -> String {
    let nats = json!({ "type": "account", "version": 2, "limits": limits });
    jwt(operator, json!({ "sub": account.public_key(), "name": "A", "nats": nats }))
}

struct World {
    broker: Broker,
    account: KeyPair,
}

impl World {
    fn new() -> Self {
        let operator = KeyPair::new_operator();
        let account = KeyPair::new_account();
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1,
            "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
            "wildcards": true,
        });
        let system = KeyPair::new_account();
        let account_jwt = account_claims(&operator, &account, &limits);
        let system_jwt = account_claims(&operator, &system, &json!({}));
        let nats = json!({ "type": "operator", "version": 2 });
        let operator_jwt =
            jwt(&operator, json!({ "sub": operator.public_key(), "name": "O", "nats": nats }));
        let broker = Broker::with(&format!(
            "operator: {operator_jwt}\nresolver: MEMORY\nsystem_account: {system}\n\
             resolver_preload: {{ {account}: {account_jwt}, {system}: {system_jwt} }}\n",
            account = account.public_key(),
            system = system.public_key(),
        ));
        Self { broker, account }
    }

    fn creds(&self, user: &KeyPair, exp: u64, publish: &str) -> Creds {
        self.creds_by(&self.account, user, exp, publish)
    }

    fn creds_by(&self, issuer: &KeyPair, user: &KeyPair, exp: u64, publish: &str) -> Creds {
        let nats = json!({
            "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1,
            "pub": { "allow": [publish, "$JS.API.INFO"] }, "sub": {},
            "tags": ["principal:local.Ann"],
        });
        let mut claims = json!({ "sub": user.public_key(), "name": "u", "nats": nats });
        if exp > 0 {
            claims["exp"] = exp.into();
        }
        let seed = user.seed().expect("a seed");
        let jwt = jwt(issuer, claims);
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        Creds::parse(&text).expect("well-formed creds")
    }
}

#[tokio::test]
async fn adopting_new_creds_moves_the_permissions() {
    let world = World::new();
    let user = KeyPair::new_user();
    let source = CredsSource::new(world.creds(&user, 0, "a.>"));
    let connection = world.broker.connect_as(source).await;
    assert_eq!(connection.inbox_prefix(), format!("_INBOX_{}", user.public_key()));
    let ask = |subject: &'static str| {
        let connection = connection.clone();
        async move { connection.request(subject, None, Bytes::new(), None).await.unwrap_err() }
    };
    assert!(matches!(ask("a.x").await, NatsError::NoResponders { .. }));
    assert!(ask("b.x").await.is_denied());
    connection.adopt(world.creds(&user, 0, "b.>"), SOON).await.expect("moved");
    assert!(matches!(ask("b.x").await, NatsError::NoResponders { .. }));
    assert!(ask("a.x").await.is_denied());

    let foreign = world.creds(&KeyPair::new_user(), 0, "a.>");
    let error = connection.adopt(foreign, SOON).await.unwrap_err();
    let NatsError::Connect(ConnectError::Creds(CredsError::Identity { .. })) = error else {
        panic!("{error:?}")
    };
    assert!(connection.is_connected(), "the resident connection is not stranded");
}

#[tokio::test]
async fn a_proof_says_what_the_broker_accepts() {
    let world = World::new();
    let user = KeyPair::new_user();
    let good = world.creds(&user, now() + 600, "a.>");
    let options = world.broker.options(CredsSource::new(good.clone()));
    world.broker.connect_as(CredsSource::new(good.clone())).await;
    let proof = prove(&options, good.clone()).await.expect("accepted");
    assert_eq!(proof.claims.subject.as_str(), user.public_key());
    assert_eq!(proof.claims.account.as_str(), world.account.public_key());
    assert_eq!(proof.claims.tag("principal"), Some("local.Ann"));
    let stranger = world.creds_by(&KeyPair::new_account(), &user, 0, "a.>");
    let error = prove(&options, stranger).await.unwrap_err();
    assert!(matches!(error, NatsError::Connect(ConnectError::Rejected { .. })), "{error:?}");
    let dead = world.creds(&user, now() - 5, "a.>");
    let error = prove(&options, dead).await.unwrap_err();
    let NatsError::Connect(ConnectError::Creds(CredsError::Expired { .. })) = error else {
        panic!("{error:?}")
    };
}

#[tokio::test]
async fn an_expiry_is_an_event_of_its_own_and_new_creds_end_it() {
    let world = World::new();
    let user = KeyPair::new_user();
    let source = CredsSource::new(world.creds(&user, now() + 4, "a.>"));
    let connection = world.broker.connect_as(source.clone()).await;
    let mut events = connection.events();
    let mut seen = Vec::new();
    while !seen.contains(&ConnEvent::CredsUnusable) {
        seen.push(
            tokio::time::timeout(SOON, events.recv()).await.expect("in time").expect("an event"),
        );
    }
    assert!(seen.contains(&ConnEvent::AuthExpired), "{seen:?}");
    assert!(seen.contains(&ConnEvent::Disconnected), "{seen:?}");
    assert!(!connection.is_connected());
    assert!(source.replace(world.creds(&user, now() + 600, "a.>")));
    connection.connected(SOON).await.expect("back on the new creds");
}

#[tokio::test]
async fn a_tls_client_refuses_a_plaintext_broker() {
    let broker = Broker::open();
    broker.connect().await;
    let options = ConnectOptions::new(broker.url(), "t", CredsSource::anonymous())
        .tls(TlsMode::Required { ca: None });
    let error = Connection::connect(options).await.unwrap_err();
    assert!(matches!(error, NatsError::Connect(ConnectError::Tls { .. })), "{error:?}");
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_closing_ends_a_redial() {
    let mut broker = Broker::open();
    let connection = broker.connect().await;
    let options = ConnectOptions::new(broker.url(), "t", CredsSource::anonymous());
    broker.kill();
    let error = Connection::connect(options).await.unwrap_err();
    assert!(matches!(error, NatsError::Connect(ConnectError::Unreachable { .. })), "{error:?}");
    let mut state = connection.state();
    state.wait_for(|s| !s.is_connected()).await.expect("a state");
    connection.close(Duration::from_secs(1)).await;
    let error = connection.connected(SOON).await.unwrap_err();
    assert!(matches!(error, NatsError::Closed), "{error:?}");
}
