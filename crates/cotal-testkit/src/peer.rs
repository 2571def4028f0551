//! An agent as a bare protocol client: what any language could do with a creds file and the wire.

use std::time::Duration;

use cotal_nats::{
    Bytes, ConnectOptions, Connection, Creds, CredsSource, Delivery, NatsError, PubAck,
    PullConsumer, PullOptions, Subject,
};
use cotal_wire::control::{Joined, Left, Reply};
use cotal_wire::names::{DELIVERY, reply_to};
use cotal_wire::rows::{MemberRow, MemberState};
use cotal_wire::{Channel, Lifecycle, Principal, Space, creds};
use serde_json::{Value, json};

/// A provisioned agent's connection.
#[derive(Debug)]
pub struct Peer {
    /// The connection.
    pub connection: Connection,
    /// The space.
    pub space: Space,
    /// Which incarnation it is.
    pub lifecycle: Lifecycle,
}

/// How long a wait for nothing lasts: long enough for a wrong copy to arrive on a busy machine.
const QUIET: Duration = Duration::from_millis(700);

impl Peer {
    /// The row of a join that a daemon left half done, as of its first generation.
    ///
    /// # Panics
    /// When `channel` is none.
    pub fn half_joined(&self, channel: &str, join_cursor: u64) -> MemberRow {
        MemberRow {
            channel: Channel::parse(channel).expect("a channel"),
            owner: self.principal().clone(),
            lifecycle_uid: self.lifecycle.uid,
            state: MemberState::LiveConfirmed,
            join_cursor,
            leave_cursor: None,
            generation: 1,
            activated: false,
            writer_identity: "a daemon that died".into(),
            updated_at: 1,
        }
    }

    /// Connects with a creds file's text.
    ///
    /// # Panics
    /// When the text is not an agent's credential, or the broker does not take it.
    pub async fn connect(url: &str, text: &str) -> Self {
        let claims = creds::Creds::parse(text).expect("a credential").claims;
        let source = CredsSource::new(Creds::parse(text).expect("a credential"));
        let connection = Connection::connect(ConnectOptions::new(url, "peer", source)).await;
        Self {
            connection: connection.expect("a connection"),
            space: claims.space().expect("a space tag"),
            lifecycle: claims.lifecycle().expect("a lifecycle tag"),
        }
    }

    /// Who it is.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.lifecycle.principal
    }

    /// The body of a post.
    #[must_use]
    pub fn body(&self, channel: &str, id: &str, text: &str, mentions: &[&str]) -> Value {
        json!({
            "id": id, "ts": 1, "space": self.space, "channel": channel, "mentions": mentions,
            "from": { "id": self.principal(), "name": self.principal().actor() },
            "parts": [{ "kind": "text", "text": text }],
        })
    }

    /// Posts, as any client does: the id is the message id, none for an empty one.
    ///
    /// # Panics
    /// When the broker does not store it.
    pub async fn post(&self, channel: &str, id: &str, mentions: &[&str]) -> PubAck {
        let body = self.body(channel, id, id, mentions);
        self.post_raw(channel, body.to_string().into(), Some(id).filter(|id| !id.is_empty()))
            .await
            .expect("a stored post")
    }

    /// Posts `<prefix>0`, `<prefix>1`, … without waiting for each: one connection keeps their
    /// order, so that the last being stored proves them all.
    ///
    /// # Panics
    /// When the broker does not store the last.
    pub async fn post_many(&self, channel: &str, prefix: &str, count: usize) -> Option<PubAck> {
        let mut last = None;
        for n in 0..count {
            let id = format!("{prefix}{n}");
            if n + 1 == count {
                last = Some(self.post(channel, &id, &[]).await);
            } else {
                let to = Channel::parse(channel).expect("a channel");
                let body = self.body(channel, &id, &id, &[]).to_string();
                let subject = self.space.chat(self.principal(), &to);
                self.connection.publish(subject, None, body.into()).await.expect("a sent post");
            }
        }
        last
    }

    /// Posts any bytes.
    ///
    /// # Errors
    /// What the broker says.
    ///
    /// # Panics
    /// When `channel` is none.
    pub async fn post_raw(
        &self,
        channel: &str,
        body: Bytes,
        msg_id: Option<&str>,
    ) -> Result<PubAck, NatsError> {
        let channel = Channel::parse(channel).expect("a channel");
        let subject = self.space.chat(self.principal(), &channel);
        self.connection.publish_confirmed(subject, None, body, msg_id).await
    }

    /// A control request, as any client makes it: with its own reply subject below its own request
    /// subject.
    ///
    /// # Errors
    /// What the broker says, or a timeout.
    ///
    /// # Panics
    /// When the reply is not one.
    pub async fn control(&self, service: &str, op: &str, args: Value) -> Result<Reply, NatsError> {
        let subject = self.space.ctl(service, self.principal());
        let from = json!({ "id": self.principal(), "name": self.principal().actor() });
        let body = json!({ "op": op, "args": args, "from": from }).to_string();
        let reply = self.ask(subject, body.into(), Duration::from_secs(15)).await?;
        Ok(serde_json::from_slice(&reply).expect("a reply"))
    }

    /// Asks on `subject` and waits for one reply below it.
    ///
    /// # Errors
    /// What the broker says, or a timeout.
    pub async fn ask(
        &self,
        subject: String,
        body: Bytes,
        within: Duration,
    ) -> Result<Bytes, NatsError> {
        ask(&self.connection, subject, body, within).await
    }

    /// Says in presence, now, that its display name is `name`.
    ///
    /// # Panics
    /// When the row cannot be written.
    pub async fn claim_name(&self, name: &str) {
        let now = cotal_manager::clock::unix_millis();
        let card = json!({ "id": self.principal(), "name": name, "kind": "agent" });
        let row = json!({ "card": card, "status": "idle", "ts": now }).to_string();
        let bucket = self.space.bucket(cotal_wire::names::Bucket::Presence);
        let kv = cotal_nats::Bucket::new(&self.connection, &bucket);
        kv.put(self.principal().as_str(), row.into()).await.expect("a presence row");
    }

    /// Joins durably.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn join(&self, channel: &str) -> Joined {
        let reply = self.control(DELIVERY, "durableJoin", json!({ "channel": channel })).await;
        let reply = reply.expect("an answer");
        assert!(reply.ok, "the join is refused: {reply:?}");
        serde_json::from_value(reply.data.expect("data")).expect("a join result")
    }

    /// Leaves durably.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn leave(&self, channel: &str, generation: u64) -> Left {
        let args = json!({ "channel": channel, "generation": generation });
        let reply = self.control(DELIVERY, "durableLeave", args).await.expect("an answer");
        assert!(reply.ok, "the leave is refused: {reply:?}");
        serde_json::from_value(reply.data.expect("data")).expect("a leave result")
    }

    /// Binds the own delivery consumer.
    ///
    /// # Panics
    /// When it cannot be bound.
    pub async fn deliveries(&self) -> PullConsumer {
        let (stream, name) = (self.space.dlv_stream(), self.space.dlv_consumer(&self.lifecycle));
        PullConsumer::open(&self.connection, &stream, &name, PullOptions::default())
            .await
            .expect("the delivery consumer")
    }

    /// The ids of the next `count` deliveries, acked, in order.
    ///
    /// # Panics
    /// When they do not arrive within 30 s each.
    pub async fn receive(&self, count: usize) -> Vec<String> {
        let mut pull = self.deliveries().await;
        let mut ids = Vec::new();
        while ids.len() < count {
            let batch = pull.next_batch(count - ids.len(), Duration::from_secs(30)).await;
            let batch = batch.expect("a pull");
            assert!(!batch.is_empty(), "got only {ids:?} of {count}");
            for delivery in batch {
                ids.push(id_of(&delivery));
                delivery.ack_confirmed().await.expect("an ack");
            }
        }
        self.give_back(pull).await;
        ids
    }

    /// The next `count` deliveries, not acked.
    ///
    /// # Panics
    /// When they do not arrive within 30 s each.
    pub async fn take(&self, count: usize) -> Vec<Delivery> {
        let mut pull = self.deliveries().await;
        let mut taken = Vec::new();
        while taken.len() < count {
            let batch = pull.next_batch(count - taken.len(), Duration::from_secs(30)).await;
            let batch = batch.expect("a pull");
            assert!(!batch.is_empty(), "got only {} of {count}", taken.len());
            taken.extend(batch);
        }
        self.give_back(pull).await;
        taken
    }

    /// Returns what was pulled ahead, so that a copy too many is met by whoever reads next and does
    /// not wait unseen for its ack wait.
    async fn give_back(&self, pull: PullConsumer) {
        for ahead in pull.end().await {
            ahead.nak(None).await.expect("a nak");
        }
        self.connection.round_trip().await.expect("a broker");
    }

    /// Checks that nothing is delivered.
    ///
    /// # Panics
    /// When something is.
    pub async fn receives_nothing(&self) {
        let mut pull = self.deliveries().await;
        let batch = pull.next_batch(10, QUIET).await.expect("a pull");
        let ids: Vec<_> = batch.iter().map(id_of).collect();
        assert!(ids.is_empty(), "unexpected: {ids:?}");
        pull.close().await;
    }
}

fn id_of(delivery: &Delivery) -> String {
    let value: Value = serde_json::from_slice(&delivery.payload).expect("a message");
    value["id"].as_str().expect("an id").to_owned()
}

/// A fresh reply nonce; unique in the process is enough below an own request subject.
fn nonce() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:08x}{:08x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Asks on `subject` and waits for one reply below it, as any client of the rails does.
///
/// # Errors
/// What the broker says, or a timeout.
pub async fn ask(
    connection: &Connection,
    subject: String,
    body: Bytes,
    within: Duration,
) -> Result<Bytes, NatsError> {
    let reply = reply_to(&subject, &nonce());
    let mut replies = connection.subscribe(reply.clone(), None).await?;
    let asked = Subject::from(subject.clone());
    connection.publish_with_reply(asked, Subject::from(reply), None, body).await?;
    match tokio::time::timeout(within, replies.next()).await {
        Ok(message) => {
            let message = message?;
            if message.status.is_some_and(|status| status.as_u16() == 503) {
                return Err(NatsError::NoResponders { subject });
            }
            Ok(message.payload)
        }
        Err(_) => Err(NatsError::Timeout { what: subject, after: within }),
    }
}
