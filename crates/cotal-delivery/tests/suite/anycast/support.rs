//! Senders and holders as plain protocol clients.

use std::time::Duration;

use cotal_delivery::Lane;
use cotal_nats::js::StreamConfig;
use cotal_nats::{
    Delivery, NatsError, PullConsumer, PullOptions, StoredMessage, Subject, Subscription,
};
use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually};
use cotal_wire::Role;
use cotal_wire::control::Reply;
use cotal_wire::names::{ANYCAST_TAKE, DELIVERY, replies_of, reply_to};
use cotal_wire::rows::{RequestRow, RequestState};
use serde_json::{Value, json};

/// The role of every test.
pub(crate) const ROLE: &str = "reviewer";
/// Generous, because machines are busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A mesh with a sender, two holders and a daemon.
pub(crate) struct Scene {
    pub(crate) mesh: Mesh,
    pub(crate) lane: Option<Lane>,
    pub(crate) alice: Peer,
    pub(crate) bob: Peer,
    pub(crate) carol: Peer,
    pub(crate) god: God,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let mesh = Mesh::start().await;
        let lane = Some(mesh.lane().await);
        let alice = mesh.peer("alice", &[], &[]).await;
        let bob = mesh.peer_with_role("bob", &[], &[], Some(ROLE)).await;
        let carol = mesh.peer_with_role("carol", &[], &[], Some(ROLE)).await;
        let god = God::of(&mesh).await;
        Self { mesh, lane, alice, bob, carol, god }
    }

    /// Aborts the daemon wherever it is, and lets another claim the lease at once.
    pub(crate) async fn kill(&mut self) {
        drop(self.lane.take());
        self.god.free_lease().await;
    }

    pub(crate) async fn serve(&mut self) {
        self.lane = Some(self.mesh.lane().await);
    }

    pub(crate) async fn created(&self) -> String {
        self.god.connection.stream_info("TASK_main").await.expect("TASK").created
    }

    /// Takes a copy as its holder must.
    pub(crate) async fn take(&self, holder: &Peer, copy: &Delivery) -> Reply {
        take(holder, copy.stream_seq, &self.created().await, copy.delivered).await
    }

    pub(crate) async fn row(&self, seq: u64) -> RequestRow {
        self.god.request(seq).await.expect("a record").0
    }

    /// Whether the request is on the queue.
    pub(crate) async fn stands(&self, seq: u64) -> bool {
        let get = cotal_nats::Get::Seq(seq);
        self.god.connection.get_message("TASK_main", get).await.expect("TASK").is_some()
    }

    /// The direct messages to alice.
    pub(crate) async fn notices(&self) -> Vec<StoredMessage> {
        let subject = self.alice.space.inst_to(self.alice.principal());
        self.god.stored("DM_main", &subject).await
    }

    /// Waits until alice has `count` notices; returns the message ids and data parts of all.
    pub(crate) async fn told(&self, count: usize) -> Vec<(String, Value)> {
        let look = || self.notices();
        let notices = eventually("the notices", look, |seen| seen.len() >= count).await;
        assert_eq!(notices.len(), count, "{notices:?}");
        notices.iter().map(notice).collect()
    }

    /// Makes DM refuse every message, or accept messages again.
    pub(crate) async fn mute(&self, muted: bool) {
        let mut config: StreamConfig =
            self.god.connection.stream_info("DM_main").await.expect("DM").config;
        config.rest.insert("max_msg_size".to_owned(), json!(if muted { 1 } else { -1 }));
        self.god.connection.update_stream("DM_main", &config).await.expect("another config");
    }

    /// A take whose notice its daemon died before sending.
    pub(crate) async fn taken_and_killed(&mut self) -> Delivery {
        let copy = pull(&self.bob).await;
        self.mute(true).await;
        assert!(self.take(&self.bob, &copy).await.ok, "the take itself is recorded");
        assert!(!self.row(copy.stream_seq).await.notified);
        self.kill().await;
        self.mute(false).await;
        copy
    }

    pub(crate) async fn garbled(&self) -> u64 {
        Supervisor::of(&self.mesh).await.status().await.garbled_rows
    }
}

fn notice(stored: &StoredMessage) -> (String, Value) {
    let message: Value = serde_json::from_slice(&stored.payload).expect("a message");
    let id = message["id"].as_str().expect("an id").to_owned();
    (id, message["parts"][1]["data"].clone())
}

/// Sends a request; returns its number.
pub(crate) async fn ask(sender: &Peer, text: &str) -> u64 {
    ask_role(sender, ROLE, text).await.expect("a stored request")
}

pub(crate) async fn ask_role(sender: &Peer, role: &str, text: &str) -> Result<u64, NatsError> {
    let subject = sender.space.svc(&Role::parse(role).expect("a role"), sender.principal());
    let body = json!({
        "id": text, "ts": 1, "space": sender.space, "toService": role,
        "from": { "id": sender.principal(), "name": "a" },
        "parts": [{ "kind": "text", "text": text }],
    });
    let sent = sender.connection.publish_confirmed(subject, None, body.to_string().into(), None);
    Ok(sent.await?.seq)
}

/// Pulls the next copy of a request to the role, without answering it.
pub(crate) async fn pull(holder: &Peer) -> Delivery {
    pull_many(holder, 1).await.remove(0)
}

pub(crate) async fn pull_many(holder: &Peer, count: usize) -> Vec<Delivery> {
    let consumer = format!("svc_{ROLE}");
    // Nothing is pulled ahead, so that this holder never keeps the next request.
    let options = PullOptions { batch: 1, ..PullOptions::default() };
    let pull = PullConsumer::open(&holder.connection, "TASK_main", &consumer, options).await;
    let mut pull = pull.expect("the role's consumer");
    let mut copies = Vec::new();
    while copies.len() < count {
        let copy = pull.next_one(SOON).await.expect("a pull").expect("a request in time");
        copies.push(copy);
    }
    pull.close().await;
    copies
}

pub(crate) async fn take(holder: &Peer, seq: u64, created: &str, delivery: u64) -> Reply {
    let args = json!({ "seq": seq, "streamCreated": created, "delivery": delivery });
    holder.control(ANYCAST_TAKE, "take", args).await.expect("a reply")
}

pub(crate) async fn status(sender: &Peer, seq: u64) -> Reply {
    let args = json!({ "seq": seq });
    sender.control(DELIVERY, "anycastStatus", args).await.expect("a reply")
}

pub(crate) async fn cancel(sender: &Peer, seq: u64) -> Reply {
    let args = json!({ "seq": seq });
    sender.control(DELIVERY, "anycastCancel", args).await.expect("a reply")
}

/// The state in a status reply.
pub(crate) async fn state(sender: &Peer, seq: u64) -> String {
    let reply = status(sender, seq).await;
    reply.data.expect("data")["state"].as_str().expect("a state").to_owned()
}

/// Why a take was refused.
#[track_caller]
pub(crate) fn reason(reply: &Reply) -> String {
    assert!(!reply.ok, "not refused: {reply:?}");
    let data = reply.data.as_ref().expect("details");
    data["reason"].as_str().expect("a reason").to_owned()
}

/// A record of alice's request, as a daemon leaves it.
pub(crate) fn row_of(seq: u64, created: &str, state: RequestState) -> RequestRow {
    let taken = state == RequestState::Taken;
    let who = |actor| cotal_wire::Principal::new("local", actor).expect("a principal");
    RequestRow {
        seq,
        stream_created: created.to_owned(),
        role: Role::parse(ROLE).expect("a role"),
        sender: who("alice"),
        state,
        holder: taken.then(|| who("bob")),
        delivery: taken.then_some(1),
        at: 1,
        notified: true,
        gone: 0,
        result: None,
    }
}

/// Many requests of one caller at the same time.
pub(crate) struct Burst<'a> {
    caller: &'a Peer,
    subject: String,
    replies: Subscription,
}

impl<'a> Burst<'a> {
    pub(crate) async fn new(caller: &'a Peer, service: &str) -> Self {
        let subject = caller.space.ctl(service, caller.principal());
        let replies = caller.connection.subscribe(replies_of(&subject), None).await;
        Self { caller, replies: replies.expect("a subscription"), subject }
    }

    /// Sends a request, whose reply carries the number `n`.
    pub(crate) async fn ask(&self, n: u64, op: &str, args: Value) {
        let from = json!({ "id": self.caller.principal(), "name": "a" });
        let body = json!({ "op": op, "args": args, "from": from }).to_string();
        let reply = Subject::from(reply_to(&self.subject, &format!("{n:020}")));
        let subject = Subject::from(self.subject.clone());
        let asked = self.caller.connection.publish_with_reply(subject, reply, None, body.into());
        asked.await.expect("asked");
    }

    /// The next reply; none if nothing came for `patience`.
    pub(crate) async fn answer(&mut self, patience: Duration) -> Option<(u64, Reply)> {
        let next = tokio::time::timeout(patience, self.replies.next()).await.ok()?;
        let message = next.expect("a reply");
        if message.status.is_some() {
            return None;
        }
        let n = message.subject.rsplit('.').next().expect("a nonce").parse().expect("a number");
        Some((n, serde_json::from_slice(&message.payload).expect("a reply")))
    }
}
