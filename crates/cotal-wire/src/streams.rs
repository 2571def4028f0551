//! Stream, bucket and consumer settings (`wire.md` §3, §4), in the broker's own JSON shape.

use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::ids::{EndpointName, Lifecycle, Role};
use crate::limits::{
    CHAT_BYTES, DM_BYTES, DM_PER_PAIR, ENTRY_HEADROOM, EPT_REQ_BYTES, HISTORY, MAX_CONSUMERS,
    MAX_TIMER_MESSAGE, OPEN_REQUESTS, PER_SUBJECT, TASK_BYTES, UNROUTED_PER_SUBJECT,
};
use crate::names::{Bucket, FANOUT, READER, Space, TIMER_WRITER};

const SECOND: u64 = 1_000_000_000;
/// How long a timer request is kept. It is of use until it is armed; what is armed stands in EPT,
/// which has no age, because a schedule must live until its deadline.
const TIMER_REQUEST_AGE: u64 = 365 * 24 * 3_600 * SECOND;

/// A stream's settings; absent fields are the broker's to choose.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamConfig {
    /// The stream's name.
    pub name: String,
    /// The subjects it stores.
    pub subjects: Vec<String>,
    /// `limits` or `workqueue`.
    pub retention: String,
    /// `file`.
    pub storage: String,
    /// Replicas, 1 for a local mesh.
    pub num_replicas: u32,
    /// Messages kept per subject; -1 for no limit.
    pub max_msgs_per_subject: i64,
    /// Messages kept; -1 for no limit.
    pub max_msgs: i64,
    /// Bytes kept; -1 for no limit.
    pub max_bytes: i64,
    /// Age kept, in nanoseconds; 0 for ever.
    pub max_age: u64,
    /// Largest message, in bytes; -1 for the broker's.
    pub max_msg_size: i64,
    /// Consumers allowed.
    pub max_consumers: i64,
    /// `old` or `new`.
    pub discard: String,
    /// Whether a subject that is full refuses as well; only with `new`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard_new_per_subject: bool,
    /// How long ids are remembered, in nanoseconds.
    pub duplicate_window: u64,
    /// Whether messages can be read without the leader.
    pub allow_direct: bool,
    /// Whether a message may replace what is before it.
    pub allow_rollup_hdrs: bool,
    /// Whether single messages cannot be deleted.
    pub deny_delete: bool,
    /// Whether the stream cannot be purged.
    pub deny_purge: bool,
    /// Whether messages may carry their own lifetime.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_msg_ttl: bool,
    /// How long limit markers stay, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_delete_marker_ttl: Option<u64>,
    /// Whether messages can be scheduled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_msg_schedules: bool,
    /// Whether fast ingest is offered (2.14 or newer).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_batched: bool,
    /// Whether atomic batches are offered (2.12 or newer).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_atomic: bool,
    /// What it is a read-only copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
}

/// The stream of another account that a mirror copies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub external: External,
}

/// How a mirror reaches another account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// The prefix of the other account's API.
    pub api: String,
    /// The prefix of the subjects on which its rows arrive.
    pub deliver: String,
}

/// A consumer's settings; absent fields are the broker's to choose.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConsumerConfig {
    /// The consumer's name.
    pub name: String,
    /// The same for one that outlives its users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_name: Option<String>,
    /// The subjects it sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_subject: Option<String>,
    /// `new`, `all`, `by_start_sequence`, `by_start_time` or `last_per_subject`.
    pub deliver_policy: String,
    /// The first sequence, for `by_start_sequence`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_start_seq: Option<u64>,
    /// The first instant in RFC 3339, for `by_start_time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_start_time: Option<String>,
    /// `explicit` or `none`.
    pub ack_policy: String,
    /// How long an ack may take, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack_wait: Option<u64>,
    /// Deliveries of one message; -1 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_deliver: Option<i64>,
    /// Unacknowledged messages out at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ack_pending: Option<i64>,
    /// When an unused consumer goes, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive_threshold: Option<u64>,
    /// `instant` or `original`.
    pub replay_policy: String,
    /// Replicas of its state; 0 follows the stream.
    #[serde(default)]
    pub num_replicas: u32,
    /// Whether its state stays in memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mem_storage: bool,
}

fn base(name: String, subjects: Vec<String>) -> StreamConfig {
    StreamConfig {
        name,
        subjects,
        retention: "limits".into(),
        storage: "file".into(),
        num_replicas: 1,
        max_msgs_per_subject: -1,
        max_msgs: -1,
        max_bytes: -1,
        max_msg_size: -1,
        max_consumers: MAX_CONSUMERS,
        discard: "old".into(),
        duplicate_window: 120 * SECOND,
        ..StreamConfig::default()
    }
}

/// A stream that agents write: beyond `bytes` it refuses, because what it would push out is
/// another's.
fn capped(bytes: i64, name: String, subjects: Vec<String>) -> StreamConfig {
    StreamConfig { max_bytes: bytes, discard: "new".into(), ..base(name, subjects) }
}

/// Streams of a space (`wire.md` §3).
impl Space {
    /// Every stream of the space, CHAT first. `max_payload` is the broker's, in bytes; `batched`
    /// adds the fast write path where the broker offers it.
    #[must_use]
    pub fn stream_configs(&self, max_payload: u64, batched: bool) -> Vec<StreamConfig> {
        let post = i64::try_from(max_payload.saturating_sub(ENTRY_HEADROOM)).unwrap_or(i64::MAX);
        let store = |name, subject| StreamConfig {
            max_msgs_per_subject: PER_SUBJECT.cast_signed(),
            duplicate_window: 2 * 3_600 * SECOND,
            allow_batched: batched,
            allow_atomic: batched,
            ..base(name, vec![subject])
        };
        vec![
            StreamConfig {
                max_msgs_per_subject: UNROUTED_PER_SUBJECT.cast_signed(),
                allow_direct: true,
                max_msg_size: post,
                ..capped(CHAT_BYTES, self.chat_stream(), vec![self.chat_all()])
            },
            StreamConfig {
                max_msgs_per_subject: DM_PER_PAIR,
                ..capped(DM_BYTES, self.dm_stream(), vec![self.inst_all()])
            },
            StreamConfig {
                retention: "workqueue".into(),
                max_msgs_per_subject: OPEN_REQUESTS,
                discard_new_per_subject: true,
                ..capped(TASK_BYTES, self.task_stream(), vec![self.svc_all()])
            },
            store(self.inbox_stream(), self.dinbox_all()),
            store(self.dlv_stream(), self.dlv_all()),
            StreamConfig {
                max_msg_size: MAX_TIMER_MESSAGE,
                max_age: TIMER_REQUEST_AGE,
                ..capped(EPT_REQ_BYTES, self.ept_req_stream(), vec![self.ept_all("schedule")])
            },
            StreamConfig {
                allow_msg_schedules: true,
                ..base(self.ept_stream(), vec![self.ept_all("armed"), self.ept_all("fire")])
            },
        ]
    }

    /// The stream under a bucket (`wire.md` §4).
    #[must_use]
    pub fn bucket_config(&self, bucket: Bucket) -> StreamConfig {
        let history = match bucket {
            Bucket::Acl | Bucket::Members | Bucket::Channels | Bucket::Anycast => HISTORY.into(),
            _ => 1,
        };
        let max_age = match bucket {
            Bucket::Presence => 6 * SECOND,
            Bucket::Delivery => 30 * SECOND,
            Bucket::Manager => 10 * SECOND,
            _ => 0,
        };
        let marker = (bucket == Bucket::Delivery).then_some(SECOND);
        let window = if max_age == 0 { 120 * SECOND } else { max_age.min(120 * SECOND) };
        StreamConfig {
            max_msgs_per_subject: history,
            max_age,
            max_bytes: if bucket == Bucket::Membership { 64 * 1024 * 1024 } else { -1 },
            discard: "new".into(),
            duplicate_window: window,
            allow_rollup_hdrs: bucket != Bucket::Presence,
            deny_delete: true,
            allow_msg_ttl: marker.is_some(),
            subject_delete_marker_ttl: marker,
            ..base(self.kv_stream(bucket), vec![self.kv_subject(bucket, ">")])
        }
    }
}

/// Mirrors in the shared account (`wire.md` §11).
impl Space {
    /// The copy of a bucket that agents may read. It stores no subject, so nobody can write to it.
    #[must_use]
    pub fn mirror_config(&self, bucket: Bucket) -> StreamConfig {
        self.mirror_of(self.bucket_config(bucket))
    }

    /// The copy of CHAT that agents read history from.
    #[must_use]
    pub fn chat_mirror_config(&self) -> StreamConfig {
        let original = base(self.chat_stream(), Vec::new());
        let max_msgs_per_subject = PER_SUBJECT.cast_signed();
        let mirror = self.mirror_of(StreamConfig { max_msgs_per_subject, ..original });
        // A purge of CHAT frees nothing of its mirror.
        StreamConfig { max_bytes: CHAT_BYTES, ..mirror }
    }

    fn mirror_of(&self, original: StreamConfig) -> StreamConfig {
        StreamConfig {
            subjects: Vec::new(),
            // What its original is capped at is reserved once, there.
            max_bytes: -1,
            discard: "old".into(),
            duplicate_window: 0,
            subject_delete_marker_ttl: None,
            mirror: Some(Mirror {
                name: original.name.clone(),
                external: External { api: self.durable_api(), deliver: self.mirror_deliveries() },
            }),
            ..original
        }
    }
}

fn explicit(name: String, filter: String) -> ConsumerConfig {
    ConsumerConfig {
        durable_name: Some(name.clone()),
        name,
        filter_subject: Some(filter),
        deliver_policy: "all".into(),
        ack_policy: "explicit".into(),
        ack_wait: Some(60 * SECOND),
        max_deliver: Some(-1),
        replay_policy: "instant".into(),
        ..ConsumerConfig::default()
    }
}

/// Consumers of a space (`wire.md` §3).
impl Space {
    /// The fan-out writer's; `start` continues a vanished one, else it begins with what is new.
    #[must_use]
    pub fn fanout_config(&self, start: Option<u64>) -> ConsumerConfig {
        ConsumerConfig {
            deliver_policy: if start.is_some() { "by_start_sequence" } else { "new" }.into(),
            opt_start_seq: start,
            ..explicit(FANOUT.into(), self.chat_all())
        }
    }

    /// The trusted reader's.
    #[must_use]
    pub fn reader_config(&self) -> ConsumerConfig {
        ConsumerConfig {
            max_ack_pending: Some(10_000),
            ..explicit(READER.into(), self.dinbox_all())
        }
    }

    /// The timer writer's. A request waits for nobody, so what a crashed daemon had pulled comes
    /// back after seconds.
    #[must_use]
    pub fn timer_writer_config(&self) -> ConsumerConfig {
        ConsumerConfig {
            ack_wait: Some(5 * SECOND),
            ..explicit(TIMER_WRITER.into(), self.ept_all("schedule"))
        }
    }

    /// An endpoint's consumer of its fired timers; made at provisioning, bound by the endpoint.
    #[must_use]
    pub fn ept_config(&self, endpoint: &EndpointName) -> ConsumerConfig {
        explicit(self.ept_consumer(endpoint), self.ept_endpoint(endpoint, "fire"))
    }

    /// A lifecycle's delivery consumer; made at provisioning, bound by the agent.
    #[must_use]
    pub fn dlv_config(&self, member: &Lifecycle) -> ConsumerConfig {
        explicit(self.dlv_consumer(member), self.dlv(member))
    }

    /// A lifecycle's direct-message consumer, from the first message after `frontier`.
    #[must_use]
    pub fn dm_config(&self, member: &Lifecycle, frontier: u64) -> ConsumerConfig {
        ConsumerConfig {
            deliver_policy: "by_start_sequence".into(),
            opt_start_seq: Some(frontier + 1),
            ..explicit(self.dm_consumer(member), self.inst_to(&member.principal))
        }
    }

    /// A role's shared consumer.
    #[must_use]
    pub fn svc_config(&self, role: &Role) -> ConsumerConfig {
        explicit(self.svc_consumer(role), self.svc_role(role))
    }

    /// A lifecycle's history read of one channel, from `start`.
    #[must_use]
    pub fn chathist_config(
        &self,
        member: &Lifecycle,
        channel: &Channel,
        start: Option<u64>,
    ) -> ConsumerConfig {
        ConsumerConfig {
            name: self.chathist_consumer(member),
            filter_subject: Some(self.chat_channel(&channel.into())),
            deliver_policy: if start.is_some() { "by_start_sequence" } else { "all" }.into(),
            opt_start_seq: start,
            ack_policy: "none".into(),
            inactive_threshold: Some(30 * SECOND),
            replay_policy: "instant".into(),
            mem_storage: true,
            ..ConsumerConfig::default()
        }
    }

    /// The same of what is not older than `since`, in RFC 3339.
    #[must_use]
    pub fn chathist_since(
        &self,
        member: &Lifecycle,
        channel: &Channel,
        since: String,
    ) -> ConsumerConfig {
        ConsumerConfig {
            deliver_policy: "by_start_time".into(),
            opt_start_time: Some(since),
            ..self.chathist_config(member, channel, None)
        }
    }
}
