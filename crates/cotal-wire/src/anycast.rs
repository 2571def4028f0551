//! Role requests: what holders and senders say about them (`wire.md` §4, §6).

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::envelope::Part;
use crate::ids::{Principal, Role};
use crate::rows::{Outcome, RequestRow};

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

/// Arguments of `result`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultArgs {
    /// The request's sequence on TASK.
    pub seq: u64,
    /// TASK's creation time as it was taken under, RFC 3339.
    pub stream_created: String,
    /// Which delivery of the request was taken.
    pub delivery: u64,
    /// What came of it.
    pub outcome: Outcome,
    /// What its sender is to read; at most [`MAX_RESULT`](crate::limits::MAX_RESULT) bytes.
    #[serde(default)]
    pub parts: Vec<Part>,
}

/// Result of `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Always; a refusal is none of these.
    pub recorded: bool,
}

/// Arguments of `anycastStatus` and `anycastCancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeqArgs {
    /// The request's sequence on TASK.
    pub seq: u64,
}

/// Result of `take`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Always; a refusal is none of these.
    pub taken: bool,
}

/// Details of a refused take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTaken {
    /// Why.
    pub reason: TakeRefusal,
}

/// Result of `anycastCancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Always; a refusal is none of these.
    pub cancelled: bool,
}

/// Details of a cancel that came too late.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBy {
    /// Who has the request.
    pub holder: Principal,
}

/// A request without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unrecorded {
    /// Nobody has it yet.
    Queued,
    /// The caller has no such request.
    Unknown,
}

/// Result of `anycastStatus`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StatusReply {
    /// As the record says.
    Recorded(Box<RequestRow>),
    /// It has no record.
    Unrecorded {
        /// What that means.
        state: Unrecorded,
    },
}

/// Most requests in one reply to `anycastList` or `standingRequests`.
pub const REQUESTS_PAGE: usize = 100;

/// Arguments of `anycastList` and `standingRequests`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PageArgs {
    /// Only requests after this sequence: the next page.
    #[serde(default)]
    pub after: u64,
}

/// Where a listed request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Standing {
    /// Nobody has it yet.
    Queued,
    /// A holder has it, and has not finished it.
    Taken,
    /// It has left the queue after a holder took it.
    Done,
    /// Its sender took it back.
    Cancelled,
    /// Its holder could not do it.
    Failed,
}

/// A role request in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedRequest {
    /// Its sequence on TASK.
    pub seq: u64,
    /// The role asked.
    pub role: Role,
    /// Who asked.
    pub sender: Principal,
    /// Where it stands.
    pub state: Standing,
    /// Who has it, or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Principal>,
    /// Which delivery of it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<u64>,
    /// When it was sent, or, once it has left the queue, when its record was written; Unix
    /// milliseconds.
    pub since: i64,
}

/// Result of `anycastList` and `standingRequests`, by sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ListedRequests {
    /// At most [`REQUESTS_PAGE`].
    pub requests: Vec<ListedRequest>,
    /// Whether more follow the last.
    pub more: bool,
}

/// The data part of a notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeData {
    /// Which notice it is.
    #[serde(rename = "type")]
    pub kind: NoticeKind,
    /// The request's sequence on TASK.
    pub seq: u64,
    /// The role asked.
    pub role: Role,
    /// Who has it.
    pub holder: Principal,
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

    #[test]
    fn a_status_is_the_record_or_says_that_there_is_none() {
        let read = |text: &str| serde_json::from_str::<StatusReply>(text);
        for state in [Unrecorded::Queued, Unrecorded::Unknown] {
            let reply = StatusReply::Unrecorded { state };
            let text = serde_json::to_string(&reply).unwrap();
            assert_eq!(read(&text).unwrap(), reply);
        }
        let row = r#"{"seq":12,"streamCreated":"2025-01-01T00:00:00Z","role":"r","sender":"local.a",
            "state":"taken","holder":"local.b","delivery":1,"at":0,"notified":true,"gone":0}"#;
        assert!(matches!(read(row).unwrap(), StatusReply::Recorded(_)));
        assert!(read(r#"{"state":"taken"}"#).is_err());
    }
}
