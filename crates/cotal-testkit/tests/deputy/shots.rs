//! The ways in which an agent makes the broker publish for it, on a subject that it may not use.
//!
//! The broker never checks a reply subject, so every call that is answered is a shot. Each method
//! returns once the shot has reached its target, as a subscriber there saw it: a test whose shots
//! went nowhere would prove nothing.

use cotal_nats::{Bytes, Connection, Message, NatsError, Subscription};
use cotal_testkit::{God, Mesh, Peer};
use serde_json::{Value, json};
use tokio::time::{Duration, timeout};

const PATIENCE: Duration = Duration::from_secs(10);

/// An agent that plays the deputy, and a witness that sees where its shots land.
pub(crate) struct Deputy {
    pub(crate) peer: Peer,
    pub(crate) god: God,
}

impl Deputy {
    pub(crate) async fn enter(mesh: &Mesh, peer: Peer) -> Self {
        Self { peer, god: God::of(mesh).await }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.peer.connection
    }

    pub(crate) fn dm_next(&self) -> String {
        let consumer = self.peer.space.dm_consumer(&self.peer.lifecycle);
        format!("$JS.API.CONSUMER.MSG.NEXT.DM_main.{consumer}")
    }

    /// Makes a call that is answered at `target`.
    pub(crate) async fn shoot(&self, call: &str, target: &str, body: Bytes) {
        let sent =
            self.connection().publish_with_reply(call.to_owned(), target.to_owned(), None, body);
        sent.await.expect("a shot");
    }

    async fn watch(&self, target: &str) -> Subscription {
        self.god.connection.subscribe(target, None).await.expect("a witness")
    }

    /// The `PubAck` of an own post.
    pub(crate) async fn pub_ack(&self, target: &str) {
        let mut witness = self.watch(target).await;
        self.shoot("cotal.main.chat.local.mallory.team.aim", target, "{}".into()).await;
        landed(&mut witness, target).await;
    }

    /// The answer of the JetStream API.
    pub(crate) async fn api_answer(&self, target: &str) {
        let mut witness = self.watch(target).await;
        self.shoot("$JS.API.INFO", target, Bytes::new()).await;
        landed(&mut witness, target).await;
    }

    /// The empty "no messages" of a pull.
    pub(crate) async fn no_messages(&self, target: &str) {
        let mut witness = self.watch(target).await;
        self.shoot(
            &self.dm_next(),
            target,
            json!({ "batch": 1, "no_wait": true }).to_string().into(),
        )
        .await;
        landed(&mut witness, target).await;
    }

    /// A stored message of the deputy's own making.
    pub(crate) async fn message(&self, target: &str, body: &Value) {
        let own = "cotal.main.inst.local.mallory.local.mallory";
        let body = Bytes::from(body.to_string());
        self.connection().publish_confirmed(own, None, body, None).await.expect("a DM to itself");
        let mut witness = self.watch(target).await;
        self.shoot(&self.dm_next(), target, json!({ "batch": 1 }).to_string().into()).await;
        landed(&mut witness, target).await;
    }

    /// Heartbeats and rows of a push consumer that delivers to the target. Subjects of the watched
    /// bucket itself are refused as a cycle; then there is no shot.
    pub(crate) async fn push(&self, target: &str) {
        let mut witness = self.watch(target).await;
        let Ok(made) = self.push_consumer(target).await else {
            assert!(target.starts_with("$KV.cotal_presence"), "{target} is refused");
            return;
        };
        while landed(&mut witness, target).await.status.is_none() {}
        let name = made["name"].as_str().expect("a name");
        let deleted = self.connection().delete_consumer("KV_cotal_presence_main", name).await;
        deleted.expect("the push consumer is gone");
    }

    /// A push consumer of the presence bucket, as a library makes it, with another's subject.
    pub(crate) async fn push_consumer(&self, target: &str) -> Result<Value, NatsError> {
        let config = json!({
            "deliver_subject": target, "deliver_policy": "all", "ack_policy": "none",
            "idle_heartbeat": 1_000_000_000, "filter_subject": "$KV.cotal_presence_main.>",
        });
        let body = json!({ "stream_name": "KV_cotal_presence_main", "config": config });
        let bare = "$JS.API.CONSUMER.CREATE.KV_cotal_presence_main";
        self.connection().js_call(bare, &body, None).await
    }
}

async fn landed(witness: &mut Subscription, target: &str) -> Message {
    let shot = timeout(PATIENCE, witness.next()).await;
    shot.unwrap_or_else(|_| panic!("the shot at {target} never landed")).expect("a message")
}
