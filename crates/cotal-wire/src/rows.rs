//! The rows of the buckets (`wire.md` §4).
//!
//! A value that is not exactly a row of its bucket is no row: unknown fields, missing fields and
//! fields that disagree with the key are refused, so that a stored `PubAck` never grants anything.

use std::time::Duration;

mod kept;
mod last_valid;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, ChannelPattern, any_covers};
use crate::envelope::Part;
use crate::ids::{Lifecycle, LifecycleUid, Principal, Role};
use crate::json::object;
use crate::limits::{MAX_ACL_PATTERNS, MAX_ROW};

pub use kept::KeptRow;
pub use last_valid::LastValid;

/// Why a value is not a row of its bucket.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Not the JSON of the row.
    #[error("not a row: {0}")]
    Json(#[from] serde_json::Error),
    /// Over the size or count that a row may have.
    #[error("not a row: too large")]
    TooLarge,
    /// The row speaks of something else than its key.
    #[error("the row does not belong to its key")]
    ForeignKey,
}

fn strict<T: DeserializeOwned>(value: &[u8]) -> Result<T, RowError> {
    if value.len() > MAX_ROW {
        return Err(RowError::TooLarge);
    }
    Ok(object(value)?)
}

/// How a channel delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryClass {
    /// At most once, to whoever is subscribed; only mentions are backed.
    Live,
    /// Backed by a private copy per member.
    #[default]
    Durable,
}

/// A channel's config, or the space's defaults; every field is optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChannelConfig {
    /// Whether joiners are shown history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<bool>,
    /// How far back, such as `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_window: Option<String>,
    /// The delivery class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_class: Option<DeliveryClass>,
    /// What the channel is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What members are asked to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl ChannelConfig {
    /// Reads a config.
    ///
    /// # Errors
    /// When the value is not exactly a config.
    pub fn parse(value: &[u8]) -> Result<Self, RowError> {
        strict(value)
    }
}

/// Reads a span such as `24h`: a number and one of `ms`, `s`, `m`, `h`, `d`.
#[must_use]
pub fn span(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(unit_ms).map(Duration::from_millis)
}

/// The one resolver of a channel's class: the channel's own, else the space's, else durable
/// (FAN-7).
#[must_use]
pub fn delivery_class(
    channel: Option<&ChannelConfig>,
    defaults: Option<&ChannelConfig>,
) -> DeliveryClass {
    let class = |config: &ChannelConfig| config.delivery_class;
    channel.and_then(class).or_else(|| defaults.and_then(class)).unwrap_or_default()
}

/// How far a membership has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// The backstop covers this member.
    DurableActive,
    /// The member is known live; the backstop is not established.
    LiveConfirmed,
}

/// A member row: one lifecycle's interval on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemberRow {
    /// The channel.
    pub channel: Channel,
    /// The member's principal.
    pub owner: Principal,
    /// The member's incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// How far it has come.
    pub state: MemberState,
    /// The last CHAT sequence before the interval.
    pub join_cursor: u64,
    /// The last CHAT sequence inside the interval; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave_cursor: Option<u64>,
    /// Counts the joins of this lifecycle on this channel, from 1.
    pub generation: u64,
    /// Whether catch-up is complete; governs only what is reported.
    pub activated: bool,
    /// Which daemon incarnation wrote the row.
    pub writer_identity: String,
    /// When, Unix milliseconds.
    pub updated_at: i64,
}

impl MemberRow {
    /// Reads the row found under the key of `channel` and `member`.
    ///
    /// # Errors
    /// When the value is not exactly a row, or one of another key.
    pub fn parse(value: &[u8], channel: &Channel, member: &Lifecycle) -> Result<Self, RowError> {
        let row: Self = strict(value)?;
        let own = row.channel == *channel
            && row.owner == member.principal
            && row.lifecycle_uid == member.uid;
        if own { Ok(row) } else { Err(RowError::ForeignKey) }
    }

    /// Whose row it is.
    #[must_use]
    pub fn member(&self) -> Lifecycle {
        Lifecycle::new(self.owner.clone(), self.lifecycle_uid)
    }

    /// Whether the post at `seq` lies in the interval: `join < seq` and (`leave` open or
    /// `seq <= leave`).
    #[must_use]
    pub fn holds(&self, seq: u64) -> bool {
        self.join_cursor < seq && self.leave_cursor.is_none_or(|leave| seq <= leave)
    }
}

/// The last sequences at provisioning: nothing older belongs to the lifecycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frontier {
    /// Of CHAT.
    pub chat: u64,
    /// Of DM.
    pub dm: u64,
    /// Of TASK.
    pub task: u64,
}

/// A read-ACL row: what one lifecycle may read now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AclRow {
    /// The channels it may read; `[]` reads nothing.
    pub allow_subscribe: Vec<ChannelPattern>,
    /// Counts the changes of this row.
    pub revision: u64,
    /// When, Unix milliseconds.
    pub updated_at: i64,
    /// The provisioned display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where the lifecycle begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated: Option<Frontier>,
    /// A tombstone: final.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}

impl AclRow {
    /// Reads a row.
    ///
    /// # Errors
    /// When the value is not exactly a row.
    pub fn parse(value: &[u8]) -> Result<Self, RowError> {
        let row: Self = strict(value)?;
        if row.allow_subscribe.len() > MAX_ACL_PATTERNS {
            return Err(RowError::TooLarge);
        }
        Ok(row)
    }

    /// Whether the lifecycle may read `channel` now.
    #[must_use]
    pub fn allows(&self, channel: &Channel) -> bool {
        !self.retired && any_covers(&self.allow_subscribe, channel)
    }
}

/// The single-flight lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRow {
    /// The holder's principal.
    pub holder: Principal,
    /// The holder's process run.
    pub incarnation: String,
    /// Since when, Unix milliseconds.
    pub since: i64,
    /// Whether its responders are bound.
    pub ready: bool,
}

impl LeaseRow {
    /// Reads the lease.
    ///
    /// # Errors
    /// When the value is not exactly a lease; that is tampering, not another holder.
    pub fn parse(value: &[u8]) -> Result<Self, RowError> {
        strict(value)
    }

    /// The holder's process on its own machine, where its incarnation names one:
    /// `<connId>-<pid>-<start in ms>`.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.incarnation.rsplit('-').nth(1)?.parse().ok()
    }
}

/// A row of the derived membership feed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FeedRow {
    /// Live subscriptions.
    pub live: Vec<ChannelPattern>,
    /// Live subscriptions beyond those.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// Durable memberships.
    pub durable: Vec<Channel>,
    /// When it was seen, Unix milliseconds.
    pub observed_at: i64,
}

impl FeedRow {
    /// Reads a row.
    ///
    /// # Errors
    /// When the value is not exactly a row.
    pub fn parse(value: &[u8]) -> Result<Self, RowError> {
        strict(value)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The feed's heartbeat: everything it shows is as of this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FeedBeat {
    /// When, Unix milliseconds.
    pub observed_at: i64,
    /// When the next one comes at the latest, Unix milliseconds: after that the feed is stale.
    pub fresh_until: i64,
}

impl FeedBeat {
    /// Reads a heartbeat.
    ///
    /// # Errors
    /// When the value is not exactly one.
    pub fn parse(value: &[u8]) -> Result<Self, RowError> {
        strict(value)
    }
}

/// Where a role request stands once the daemon has recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestState {
    /// A holder has it.
    Taken,
    /// Its sender took it back.
    Cancelled,
}

/// A role request's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestRow {
    /// The request's sequence on TASK.
    pub seq: u64,
    /// The creation time of that TASK, RFC 3339.
    pub stream_created: String,
    /// The role asked.
    pub role: Role,
    /// Who asked.
    pub sender: Principal,
    /// Taken or cancelled.
    pub state: RequestState,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Principal>,
    /// Which delivery of the request was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<u64>,
    /// When, Unix milliseconds.
    pub at: i64,
    /// Whether the sender's notice is confirmed.
    pub notified: bool,
    /// When the request left the queue, Unix milliseconds; 0 while it is there.
    #[serde(default)]
    pub gone: i64,
    /// What its holder said came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RequestResult>,
}

/// What came of a role request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Outcome {
    /// It is done.
    Done,
    /// It cannot be done; nobody tries it again.
    Failed,
    /// Its holder gave it back; some holder gets it again.
    Returned,
}

impl Outcome {
    /// Whether nobody works on the request any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::Returned
    }
}

/// What came of a role request, as its holder says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestResult {
    /// Done, failed or given back.
    pub outcome: Outcome,
    /// What its sender is to read.
    pub parts: Vec<Part>,
    /// When, Unix milliseconds.
    pub at: i64,
}

impl RequestRow {
    /// Whether its holder has said that nobody need work on it any more.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.result.as_ref().is_some_and(|result| result.outcome.is_final())
    }

    /// Reads the record found under `seq`.
    ///
    /// # Errors
    /// When the value is not exactly a record, or one of another sequence.
    pub fn parse(value: &[u8], seq: u64) -> Result<Self, RowError> {
        let row: Self = strict(value)?;
        if row.seq == seq { Ok(row) } else { Err(RowError::ForeignKey) }
    }
}

/// Whether a dead entry will still be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadState {
    /// Waits outside the reader's slots and is retried.
    Parked,
    /// Was given up; kept until someone redelivers it.
    GivenUp,
}

/// Why an entry could not be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadReason {
    /// Its owner has no ACL row.
    NoAclRow,
    /// Its removal from the store failed.
    DeleteFailed,
    /// Its copy could not be written.
    HandoffFailed,
    /// It is larger than its store takes.
    TooLarge,
}

/// A parked or given-up entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadRow {
    /// The entry's sequence on INBOX.
    pub seq: u64,
    /// Its owner.
    pub owner: Principal,
    /// Its owner's incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// The post's channel.
    pub channel: Channel,
    /// The post's sequence on CHAT.
    pub chat_seq: u64,
    /// Whether it is still tried.
    pub state: DeadState,
    /// Why it waits.
    pub reason: DeadReason,
    /// How often it was tried.
    pub attempts: u64,
    /// When it was first tried, Unix milliseconds.
    pub first_at: i64,
    /// When it is tried next, Unix milliseconds.
    pub next_at: i64,
}

impl DeadRow {
    /// Reads the row found under `seq`.
    ///
    /// # Errors
    /// When the value is not exactly a row, or one of another entry.
    pub fn parse(value: &[u8], seq: u64) -> Result<Self, RowError> {
        let row: Self = strict(value)?;
        if row.seq == seq { Ok(row) } else { Err(RowError::ForeignKey) }
    }

    /// Whose entry it is.
    #[must_use]
    pub fn member(&self) -> Lifecycle {
        Lifecycle::new(self.owner.clone(), self.lifecycle_uid)
    }
}

/// An agent's card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// `<owner>.<actor>`.
    pub id: Principal,
    /// The display name that the agent claims.
    pub name: String,
    /// `agent`, as a rule.
    #[serde(default)]
    pub kind: String,
    /// Its role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// What delivery reads of a presence row; agents may put more into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceRow {
    /// Who.
    pub card: Card,
    /// `idle`, `busy`, …
    #[serde(default)]
    pub status: String,
    /// When it was written, Unix milliseconds; rows expire without an event, so judge by this.
    pub ts: i64,
}

impl PresenceRow {
    /// Reads the row found under `principal`.
    ///
    /// # Errors
    /// When the value is not a presence row, or claims to be somebody else's.
    pub fn parse(value: &[u8], principal: &Principal) -> Result<Self, RowError> {
        let row: Self = strict(value)?;
        if row.card.id == *principal { Ok(row) } else { Err(RowError::ForeignKey) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "abcdefghijklmnopqrstuvwxyz";

    fn bob() -> Lifecycle {
        Lifecycle::parse(&format!("local.bob.{UID}")).unwrap()
    }

    #[test]
    fn garbage_is_no_row_of_any_bucket() {
        let channel = Channel::parse("a").unwrap();
        for garbage in [
            &b""[..],
            b"null",
            b"{}",
            b"[]",
            br#"{"stream":"CHAT_s","seq":1}"#,
            br#"{"stream":"CHAT_s","seq":1,"duplicate":true}"#,
            br#"{"type":"io.nats.jetstream.api.v1.account_info_response"}"#,
        ] {
            assert!(MemberRow::parse(garbage, &channel, &bob()).is_err());
            assert!(AclRow::parse(garbage).is_err());
            assert!(LeaseRow::parse(garbage).is_err());
            assert!(RequestRow::parse(garbage, 1).is_err());
            assert!(FeedRow::parse(garbage).is_err());
            assert!(FeedBeat::parse(garbage).is_err());
            assert!(DeadRow::parse(garbage, 1).is_err());
            assert!(PresenceRow::parse(garbage, &bob().principal).is_err());
            assert!(garbage == b"{}" || ChannelConfig::parse(garbage).is_err());
        }
    }

    #[test]
    fn fan_7_class_is_channel_then_defaults_then_durable() {
        use DeliveryClass::{Durable, Live};
        let config = |class| ChannelConfig { delivery_class: class, ..Default::default() };
        for (channel, defaults, want) in [
            (None, None, Durable),
            (None, Some(config(Some(Live))), Live),
            (Some(config(Some(Durable))), Some(config(Some(Live))), Durable),
            (Some(config(None)), Some(config(Some(Live))), Live),
            (Some(config(Some(Live))), None, Live),
            (Some(config(None)), Some(config(None)), Durable),
        ] {
            assert_eq!(delivery_class(channel.as_ref(), defaults.as_ref()), want);
        }
    }

    #[test]
    fn a_member_row_belongs_to_its_key() {
        let json = format!(
            r#"{{"channel":"a","owner":"local.bob","lifecycleUid":"{UID}","state":"durable-active",
            "joinCursor":41,"leaveCursor":97,"generation":2,"activated":true,"writerIdentity":"w","updatedAt":0}}"#
        );
        let channel = Channel::parse("a").unwrap();
        let row = MemberRow::parse(json.as_bytes(), &channel, &bob()).unwrap();
        assert!(!row.holds(41) && row.holds(42) && row.holds(97) && !row.holds(98));
        let other = Channel::parse("b").unwrap();
        assert!(MemberRow::parse(json.as_bytes(), &other, &bob()).is_err());
    }

    #[test]
    fn rdr_12_a_tombstone_and_an_empty_list_allow_nothing() {
        let parse = |json: &str| AclRow::parse(json.as_bytes()).unwrap();
        let channel = Channel::parse("team.a").unwrap();
        assert!(
            parse(r#"{"allowSubscribe":["team.>"],"revision":3,"updatedAt":0}"#).allows(&channel)
        );
        assert!(!parse(r#"{"allowSubscribe":[],"revision":3,"updatedAt":0}"#).allows(&channel));
        let dead = r#"{"allowSubscribe":["team.>"],"revision":3,"updatedAt":0,"retired":true}"#;
        assert!(!parse(dead).allows(&channel));
    }
}
