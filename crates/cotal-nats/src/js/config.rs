//! JetStream's JSON shapes, as far as this project reads or writes them.
//!
//! Durations are nanoseconds, as the broker has them. A configuration that another provisioner
//! wrote may hold fields that are unknown here: they are kept in `rest` and go back unchanged on an
//! update.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// A stream's configuration; the fields that decide something here are named, all others are in
/// `rest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct StreamConfig {
    /// The stream's name.
    pub name: String,
    /// What it captures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// `limits`, `workqueue` or `interest`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub retention: String,
    /// `file` or `memory`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub storage: String,
    /// `old` or `new`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub discard: String,
    /// How many consumers may exist; the broker's own default is 1,000.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_consumers: i64,
    /// Cap per subject.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_msgs_per_subject: i64,
    /// Age limit in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_age: i64,
    /// Deduplication window in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duplicate_window: i64,
    /// Whether direct gets are answered.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_direct: bool,
    /// Whether fast ingest (ADR-50) is accepted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_batched: bool,
    /// Whether rollup headers are honoured.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_rollup_hdrs: bool,
    /// Everything else, untouched.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A stream's state.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct StreamState {
    /// Messages stored.
    pub messages: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// The oldest sequence.
    pub first_seq: u64,
    /// The newest sequence ever given.
    pub last_seq: u64,
    /// Consumers bound.
    #[serde(default)]
    pub consumer_count: u64,
    /// Distinct subjects.
    #[serde(default)]
    pub num_subjects: u64,
}

/// Answer of `STREAM.INFO`, `STREAM.CREATE` and `STREAM.UPDATE`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct StreamInfo {
    /// The configuration in force.
    pub config: StreamConfig,
    /// RFC 3339 instant of creation: two streams of one name differ in it.
    pub created: String,
    /// The state.
    pub state: StreamState,
}

/// A consumer's configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct ConsumerConfig {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The same name when it is durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_name: Option<String>,
    /// `all`, `last`, `new`, `by_start_sequence`, `by_start_time` or `last_per_subject`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub deliver_policy: String,
    /// First sequence, with `by_start_sequence`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_start_seq: Option<u64>,
    /// `explicit`, `none` or `all`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ack_policy: String,
    /// Nanoseconds until an unacked message is redelivered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ack_wait: i64,
    /// Deliveries per message; -1 is unlimited.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_deliver: i64,
    /// Unacked messages at a time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_ack_pending: i64,
    /// Pull requests that may wait.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_waiting: i64,
    /// The one subject filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_subject: Option<String>,
    /// Nanoseconds without interest until the broker removes it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inactive_threshold: i64,
    /// Keep the state in memory.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mem_storage: bool,
    /// Replicas; 0 inherits the stream's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub num_replicas: i64,
    /// Everything else, untouched.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// A pair of sequences: the consumer's own count and the stream's.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct SequencePair {
    /// Deliveries made.
    pub consumer_seq: u64,
    /// Stream sequence.
    pub stream_seq: u64,
}

/// Answer of `CONSUMER.INFO` and `CONSUMER.CREATE`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct ConsumerInfo {
    /// The stream.
    pub stream_name: String,
    /// The consumer.
    pub name: String,
    /// RFC 3339 instant of creation.
    #[serde(default)]
    pub created: String,
    /// The configuration in force.
    pub config: ConsumerConfig,
    /// The last delivery.
    pub delivered: SequencePair,
    /// Everything at or below is acked.
    pub ack_floor: SequencePair,
    /// Delivered and not acked.
    #[serde(default)]
    pub num_ack_pending: u64,
    /// Delivered more than once.
    #[serde(default)]
    pub num_redelivered: u64,
    /// Pulls waiting.
    #[serde(default)]
    pub num_waiting: u64,
    /// Not delivered yet.
    #[serde(default)]
    pub num_pending: u64,
}

/// Answer to a JetStream publish.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PubAck {
    /// The stream that stored it.
    #[serde(default)]
    pub stream: String,
    /// Its sequence.
    #[serde(default)]
    pub seq: u64,
    /// Whether the message id was known, so that nothing new was stored.
    #[serde(default)]
    pub duplicate: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_survive_an_update() {
        let text = r#"{"name":"S","subjects":["a"],"max_consumers":-1,"placement":{"tags":["x"]}}"#;
        let config: StreamConfig = serde_json::from_str(text).expect("a config");
        let back = serde_json::to_value(&config).expect("json");
        assert_eq!(back, serde_json::from_str::<Value>(text).expect("json"));
    }
}
