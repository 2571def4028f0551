//! All of a space's durable account, for what no profile may: tampering, and looking into stores.

use std::collections::BTreeSet;

use cotal_delivery::Lane;
use cotal_nats::js::ConsumerAction;
use cotal_nats::{Bucket as Kv, Connection, ConsumerConfig, Get, StoredMessage};
use cotal_wire::accounts::Account;
use cotal_wire::names::{Bucket, FANOUT, LEASE_KEY, READER, member_key, request_key};
use cotal_wire::rows::{AclRow, MemberRow, RequestRow};
use cotal_wire::{Channel, Lifecycle, Role, Space};
use serde_json::{Value, json};

use crate::mesh::Mesh;
use crate::peer::Peer;

/// Far enough away for any test.
const LATER: &str = "2100-01-01T00:00:00Z";

/// A mesh that is served, alice who posts, bob who is a durable member of `channel`, and God.
///
/// # Panics
/// When bob's join is not durable.
pub async fn with_member(channel: &str) -> (Mesh, Lane, Peer, Peer, God) {
    let mesh = Mesh::start().await;
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    assert!(bob.join(channel).await.durable);
    let god = God::of(&mesh).await;
    (mesh, lane, alice, bob, god)
}

/// What no profile may do. Every method panics when the broker does not do it.
#[derive(Debug, Clone)]
pub struct God {
    /// Its connection.
    pub connection: Connection,
    /// The same in the account that holds presence.
    shared: Connection,
    space: Space,
}

#[expect(clippy::missing_panics_doc, reason = "said once, on the type")]
impl God {
    /// Of the first space of `mesh`.
    pub async fn of(mesh: &Mesh) -> Self {
        let shared = mesh.all_of(Account::Shared).await;
        Self { connection: mesh.god().await, shared, space: mesh.space().clone() }
    }

    /// A bucket.
    #[must_use]
    pub fn kv(&self, bucket: Bucket) -> Kv {
        Kv::new(self.home_of(bucket), &self.space.bucket(bucket))
    }

    fn home_of(&self, bucket: Bucket) -> &Connection {
        if bucket.account() == Account::Shared { &self.shared } else { &self.connection }
    }

    /// A member row with its revision, unless there is none.
    pub async fn member(&self, channel: &str, member: &Lifecycle) -> Option<(MemberRow, u64)> {
        let channel = Channel::parse(channel).expect("a channel");
        let kv = self.kv(Bucket::Members);
        let entry = kv.get(&member_key(&channel, member)).await.expect("the members bucket")?;
        let row = MemberRow::parse(entry.live()?, &channel, member).ok()?;
        Some((row, entry.revision))
    }

    /// Writes a member row as it is, whatever stands there.
    pub async fn put_member(&self, row: &MemberRow) -> u64 {
        let value = serde_json::to_vec(row).expect("JSON");
        let key = member_key(&row.channel, &row.member());
        self.kv(Bucket::Members).put(&key, value.into()).await.expect("a member row")
    }

    /// A lifecycle's ACL row.
    pub async fn acl(&self, member: &Lifecycle) -> AclRow {
        let entry = self.kv(Bucket::Acl).get(&member.dotted()).await.expect("the ACL bucket");
        AclRow::parse(&entry.expect("an ACL row").value).expect("a valid ACL row")
    }

    /// Writes a lifecycle's ACL row as it is.
    pub async fn put_acl(&self, member: &Lifecycle, row: &AclRow) {
        let value = serde_json::to_vec(row).expect("JSON");
        self.kv(Bucket::Acl).put(&member.dotted(), value.into()).await.expect("an ACL row");
    }

    /// Changes what a lifecycle may read.
    pub async fn set_acl(&self, member: &Lifecycle, read: &[&str]) {
        let mut row = self.acl(member).await;
        row.allow_subscribe = read
            .iter()
            .map(|text| cotal_wire::ChannelPattern::parse(text).expect("a pattern"))
            .collect();
        row.revision += 1;
        self.put_acl(member, &row).await;
    }

    /// Deletes the lease row, as 30 s of silence would.
    pub async fn free_lease(&self) {
        self.kv(Bucket::Delivery).delete(LEASE_KEY, None).await.expect("a free lease");
    }

    /// Makes lease rows expire after `seconds`, so that no test waits for 30 s. Daemons that start
    /// later keep to it.
    pub async fn shorten_lease(&self, seconds: i64) {
        let stream = self.space.kv_stream(Bucket::Delivery);
        let info = self.connection.stream_info(&stream).await.expect("the lease bucket");
        let mut config = info.config;
        config.max_age = seconds * 1_000_000_000;
        config.duplicate_window = config.max_age;
        self.connection.update_stream(&stream, &config).await.expect("a shorter lease");
    }

    /// Waits until the lease row has expired.
    pub async fn wait_for_a_free_lease(&self) {
        let kv = self.kv(Bucket::Delivery);
        let look = || kv.get(LEASE_KEY);
        let free = |seen: &Result<Option<cotal_nats::Entry>, _>| {
            seen.as_ref().is_ok_and(|row| row.as_ref().is_none_or(|row| row.live().is_none()))
        };
        crate::eventually("a lease that expires", look, free).await.expect("the lease bucket");
    }

    /// Holds the daemon's consumer: what is posted stays before it until [`Self::resume`].
    pub async fn pause(&self, consumer: &str) {
        self.set_pause(consumer, &json!({ "pause_until": LATER })).await;
    }

    /// Lets a held consumer go on.
    pub async fn resume(&self, consumer: &str) {
        self.set_pause(consumer, &json!({})).await;
    }

    async fn set_pause(&self, consumer: &str, body: &Value) {
        let stream = self.stream_of(consumer);
        let subject = format!("$JS.API.CONSUMER.PAUSE.{stream}.{consumer}");
        let done = self.connection.js_call::<Value>(&subject, body, None).await;
        done.expect("a consumer that pauses");
    }

    /// Holds every watch of a bucket: whoever follows it does not see what is written from now on.
    pub async fn hold_watches(&self, bucket: Bucket) {
        self.set_watches(bucket, &json!({ "pause_until": LATER })).await;
    }

    /// Lets the watches of a bucket go on.
    pub async fn release_watches(&self, bucket: Bucket) {
        self.set_watches(bucket, &json!({})).await;
    }

    async fn set_watches(&self, bucket: Bucket, body: &Value) {
        let prefix = format!("{}/", self.space.kv_stream(bucket));
        let home = self.home_of(bucket);
        let mut set = 0;
        for name in consumers(home).await {
            let Some(watch) = name.strip_prefix(&prefix) else { continue };
            let stream = self.space.kv_stream(bucket);
            let subject = format!("$JS.API.CONSUMER.PAUSE.{stream}.{watch}");
            let done = home.js_call::<Value>(&subject, body, None).await;
            done.expect("a watch that pauses");
            set += 1;
        }
        assert!(set > 0, "nobody follows {prefix}");
    }

    /// Lets `stream` take no message more, until [`Self::accept_writes`].
    pub async fn refuse_writes(&self, stream: &str) {
        let held = self.connection.stream_state(stream).await.expect("a stream").messages;
        assert!(held > 0, "a cap of none is no cap");
        self.cap_messages(stream, &json!(held), "new").await;
    }

    /// Lets `stream` take messages again.
    pub async fn accept_writes(&self, stream: &str) {
        self.cap_messages(stream, &json!(-1), "old").await;
    }

    async fn cap_messages(&self, stream: &str, cap: &Value, discard: &str) {
        let info = self.connection.stream_info(stream).await.expect("a stream");
        let mut config = info.config;
        config.rest.insert("max_msgs".to_owned(), cap.clone());
        discard.clone_into(&mut config.discard);
        self.connection.update_stream(stream, &config).await.expect("a changed stream");
    }

    /// Lets `stream` keep any number of messages of a subject.
    pub async fn lift_cap(&self, stream: &str) {
        self.cap_subjects(stream, -1).await;
    }

    /// Lets `stream` keep `count` messages of each subject.
    pub async fn cap_subjects(&self, stream: &str, count: i64) {
        let info = self.connection.stream_info(stream).await.expect("a stream");
        let mut config = info.config;
        config.max_msgs_per_subject = count;
        self.connection.update_stream(stream, &config).await.expect("a changed stream");
    }

    /// The stream of one of the daemon's consumers.
    fn stream_of(&self, consumer: &str) -> String {
        match consumer {
            FANOUT => self.space.chat_stream(),
            READER => self.space.inbox_stream(),
            other => panic!("{other} is none of the daemon's consumers"),
        }
    }

    /// Lets a consumer's unanswered messages come again after a second, so that a test of a crash
    /// need not wait for a minute.
    pub async fn hasten(&self, stream: &str, consumer: &str) {
        self.change(stream, consumer, |config| config.ack_wait = 1_000_000_000).await;
    }

    /// Lets a consumer hand out no more than `count` messages before they are acknowledged.
    pub async fn limit(&self, stream: &str, consumer: &str, count: i64) {
        self.change(stream, consumer, |config| config.max_ack_pending = count).await;
    }

    async fn change(&self, stream: &str, consumer: &str, change: impl Fn(&mut ConsumerConfig)) {
        let info = self.connection.consumer_info(stream, consumer).await.expect("a consumer");
        let mut config: ConsumerConfig = info.config;
        change(&mut config);
        let filter = config.filter_subject.clone();
        let action = ConsumerAction::CreateOrUpdate;
        let changed = self
            .connection
            .create_consumer(stream, consumer, filter.as_deref(), &config, action)
            .await;
        changed.expect("a changed consumer");
    }

    /// [`Self::hasten`] for both of the daemon's consumers.
    pub async fn hasten_daemon(&self) {
        for consumer in [FANOUT, READER] {
            self.hasten(&self.stream_of(consumer), consumer).await;
        }
    }

    /// Makes one of the daemon's consumers forget everything: each message comes again.
    pub async fn rewind(&self, consumer: &str) {
        let stream = self.stream_of(consumer);
        self.connection.delete_consumer(&stream, consumer).await.expect("a deleted consumer");
        let config = match consumer {
            FANOUT => self.space.fanout_config(Some(1)),
            _ => self.space.reader_config(),
        };
        let filter = config.filter_subject.as_deref();
        let action = ConsumerAction::Create;
        let made =
            self.connection.create_consumer(&stream, consumer, filter, &config, action).await;
        made.expect("a consumer made anew");
    }

    /// Deletes the task stream and makes it anew, with the consumers of `roles`.
    pub async fn recreate_task(&self, roles: &[&str]) {
        let stream = self.space.task_stream();
        let config = self.connection.stream_info(&stream).await.expect("TASK").config;
        self.connection.delete_stream(&stream).await.expect("no TASK");
        self.connection.create_stream(&stream, &config).await.expect("another TASK");
        for role in roles {
            let config = self.space.svc_config(&Role::parse(role).expect("a role"));
            let filter = config.filter_subject.as_deref();
            let action = ConsumerAction::Create;
            let made =
                self.connection.create_consumer(&stream, &config.name, filter, &config, action);
            made.await.expect("a consumer");
        }
    }

    /// The record of a role request with its revision, unless there is none.
    pub async fn request(&self, seq: u64) -> Option<(RequestRow, u64)> {
        let entry = self.kv(Bucket::Anycast).get(&request_key(seq)).await;
        let entry = entry.expect("the anycast bucket")?;
        Some((RequestRow::parse(entry.live()?, seq).ok()?, entry.revision))
    }

    /// Writes a record as it is, whatever stands there.
    pub async fn put_request(&self, row: &RequestRow) -> u64 {
        let value = serde_json::to_vec(row).expect("JSON");
        let kv = self.kv(Bucket::Anycast);
        kv.put(&request_key(row.seq), value.into()).await.expect("a record")
    }

    /// Every message that `stream` holds under `subject`, in order.
    pub async fn stored(&self, stream: &str, subject: &str) -> Vec<StoredMessage> {
        let mut found = Vec::new();
        let mut seq = 1;
        loop {
            let get = Get::NextBySubject { seq, subject };
            match self.connection.get_message(stream, get).await.expect("a stream") {
                Some(message) => {
                    seq = message.seq + 1;
                    found.push(message);
                }
                None => return found,
            }
        }
    }

    /// The entries that stand in a member's mixed inbox.
    pub async fn entries(&self, member: &Lifecycle) -> Vec<StoredMessage> {
        self.stored(&self.space.inbox_stream(), &self.space.dinbox(member)).await
    }

    /// Waits until `count` entries stand in INBOX, of whomever.
    pub async fn wait_for_entries(&self, count: u64) {
        let inbox = self.space.inbox_stream();
        let look = || async { self.connection.last_seq(&inbox).await };
        let enough = |seen: &Result<u64, _>| seen.as_ref().is_ok_and(|last| *last >= count);
        crate::eventually("entries in INBOX", look, enough).await.expect("INBOX");
    }

    /// Waits until one of the daemon's consumers has given all that it was asked for.
    pub async fn wait_until_given(&self, consumer: &str) {
        let stream = self.stream_of(consumer);
        let look = || async { self.connection.consumer_info(&stream, consumer).await };
        let given = |seen: &Result<cotal_nats::js::ConsumerInfo, _>| {
            seen.as_ref().is_ok_and(|info| info.num_pending == 0 || info.num_waiting == 0)
        };
        crate::eventually("deliveries", look, given).await.expect("a consumer");
    }

    /// Waits until one of the daemon's consumers has nothing to give and nothing unanswered.
    pub async fn wait_until_settled(&self, consumer: &str) {
        let stream = self.stream_of(consumer);
        let look = || async { self.connection.consumer_info(&stream, consumer).await };
        let settled = |seen: &Result<cotal_nats::js::ConsumerInfo, _>| {
            seen.as_ref().is_ok_and(|info| info.num_pending == 0 && info.num_ack_pending == 0)
        };
        crate::eventually("a settled consumer", look, settled).await.expect("a consumer");
    }

    /// The names of every consumer of the durable account, with their streams.
    pub async fn consumers(&self) -> BTreeSet<String> {
        consumers(&self.connection).await
    }
}

async fn consumers(connection: &Connection) -> BTreeSet<String> {
    let names = |value: &Value, of: &str| -> Vec<String> {
        let list = value[of].as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let ask = async |subject: String| -> Value {
        connection.js_call(&subject, &json!({}), None).await.expect("a list")
    };
    let mut found = BTreeSet::new();
    for stream in names(&ask("$JS.API.STREAM.NAMES".to_owned()).await, "streams") {
        let list = ask(format!("$JS.API.CONSUMER.NAMES.{stream}")).await;
        let consumers = names(&list, "consumers");
        found.extend(consumers.into_iter().map(|name| format!("{stream}/{name}")));
    }
    found
}
