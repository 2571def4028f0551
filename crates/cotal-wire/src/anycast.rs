//! Role requests: what holders and senders say about them (`wire.md` §4, §6).

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A stream's creation time, as an instant truncated to milliseconds: what tells one incarnation of
/// TASK, which reuses sequences, from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Created(i64);

impl Created {
    /// Reads an RFC 3339 instant.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let nanos = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
        i64::try_from(nanos.div_euclid(1_000_000)).ok().map(Self)
    }

    /// Unix milliseconds.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.0
    }
}

/// Arguments of `take`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakeArgs {
    /// The request's sequence on TASK.
    pub seq: u64,
    /// TASK's creation time as the holder saw it, RFC 3339.
    pub stream_created: String,
    /// Which delivery of the request the holder has, from 1.
    pub delivery: u64,
}

/// Arguments of `anycastStatus` and `anycastCancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeqArgs {
    /// The request's sequence on TASK.
    pub seq: u64,
}

/// Why a take is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TakeRefusal {
    /// Its sender took it back.
    Cancelled,
    /// Another holder has it, or a later delivery.
    Held,
    /// The stream was created anew since the holder saw it.
    Recreated,
    /// It left the queue.
    Gone,
    /// It is not for this holder.
    NotYours,
}

/// Which notice a sender gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NoticeKind {
    /// A holder has the request.
    #[serde(rename = "anycast.taken")]
    Taken,
    /// It moved to another holder.
    #[serde(rename = "anycast.moved")]
    Moved,
}

/// The message id of a notice: repeats of one notice collapse on it.
#[must_use]
pub fn notice_id(created: Created, seq: u64, delivery: u64) -> String {
    format!("anycast-{}-{seq}-{delivery}", created.millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_times_are_instants_cut_to_milliseconds() {
        let created = |text| Created::parse(text).unwrap();
        let one = created("2025-11-29T17:23:20.123456789Z");
        assert_eq!(one, created("2025-11-29T18:23:20.123999+01:00"));
        assert_ne!(one, created("2025-11-29T17:23:20.124Z"));
        assert_eq!(notice_id(one, 12, 3), "anycast-1764437000123-12-3");
        assert!(Created::parse("yesterday").is_none());
    }
}
