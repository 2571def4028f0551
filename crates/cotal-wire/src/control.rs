//! The control rails (`wire.md` §6): requests, replies and the shapes of their arguments.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::channel::Channel;
use crate::envelope::From;
use crate::ids::{LifecycleUid, Principal};
use crate::json::object;
use crate::limits::MAX_REQUEST;
use crate::rows::DeadReason;

/// A control request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The operation.
    pub op: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Value,
    /// The caller; must be the principal of the subject.
    pub from: From,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// A sentence for the caller when the bytes are too many or not a request.
    pub fn parse(payload: &[u8]) -> Result<Self, String> {
        if payload.len() > MAX_REQUEST {
            let size = payload.len();
            return Err(format!("the request has {size} bytes, at most {MAX_REQUEST} are read"));
        }
        object(payload).map_err(|e| format!("not a control request: {e}"))
    }
}

/// What kind of refusal a reply is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The caller may not.
    Denied,
    /// The request is malformed.
    Invalid,
    /// The operation is not served here.
    UnknownOp,
    /// A newer membership generation exists.
    StaleGeneration,
    /// Several lifecycles fit; name one.
    Ambiguous,
    /// The caller has no ACL row.
    NotProvisioned,
    /// The lifecycle has ended.
    Retired,
    /// The daemon is not ready for it.
    NotReady,
    /// The reply would be larger than the broker takes.
    TooLarge,
    /// Something newer replaced it.
    Superseded,
    /// Somebody else was first.
    Conflict,
    /// A dependency does not answer.
    Unavailable,
}

/// A control reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Whether the operation was performed.
    pub ok: bool,
    /// Its result, or details of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The refusal's kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}

impl Reply {
    /// A success with its result.
    #[must_use]
    pub fn done(data: Value) -> Self {
        Self { ok: true, data: Some(data), error: None, code: None }
    }

    /// A refusal.
    #[must_use]
    pub fn refused(code: Code, error: impl Into<String>) -> Self {
        Self { ok: false, data: None, error: Some(error.into()), code: Some(code) }
    }

    /// Adds details to a refusal.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

/// Operations of `ctl.delivery`, `ctl.anycast-take` and `ctl.delivery-admin`.
pub mod op {
    /// Join a channel durably.
    pub const DURABLE_JOIN: &str = "durableJoin";
    /// Leave a channel durably.
    pub const DURABLE_LEAVE: &str = "durableLeave";
    /// The caller's memberships.
    pub const LIST_MEMBERSHIPS: &str = "listMemberships";
    /// Where a role request of the caller stands.
    pub const ANYCAST_STATUS: &str = "anycastStatus";
    /// Take a role request of the caller back.
    pub const ANYCAST_CANCEL: &str = "anycastCancel";
    /// The role requests of the caller (an addition of this project, see `docs/wire.md`).
    pub const ANYCAST_LIST: &str = "anycastList";
    /// What the caller's store evicted before it was read (an addition of this project).
    pub const MISSED_POSTS: &str = "missedPosts";
    /// Whether a post of the caller is stored (an addition of this project).
    pub const FIND_POST: &str = "findPost";
    /// Record what came of a role request that the caller holds (an addition of this project).
    pub const RESULT: &str = "result";
    /// Record that the caller takes a role request.
    pub const TAKE: &str = "take";
    /// Which secret store the daemon reads.
    pub const RELOAD_STORE_IDENTITY: &str = "reloadStoreIdentity";
    /// Adopt renewed credentials.
    pub const RELOAD_CREDS: &str = "reloadCreds";
    /// Evict a principal's connections, verified.
    pub const EVICT_PRINCIPAL: &str = "evictPrincipal";
    /// The same for up to 256 principals in one sweep.
    pub const EVICT_PRINCIPALS: &str = "evictPrincipals";
    /// Whether a principal has a live connection.
    pub const PRINCIPAL_LIVENESS: &str = "principalLiveness";
    /// A lifecycle's member rows.
    pub const LIFECYCLE_MEMBERSHIPS: &str = "lifecycleMemberships";
    /// Take back every copy that a lifecycle's ACL row forbids (an addition of this project).
    pub const RECALL_NARROWED: &str = "recallNarrowed";
    /// What the daemon counts (an addition of this project, see `docs/wire.md`).
    pub const DELIVERY_STATUS: &str = "deliveryStatus";
    /// The entries that wait in the trusted reader (an addition of this project).
    pub const WAITING_ENTRIES: &str = "waitingEntries";
    /// The role requests that stand on the queue (an addition of this project).
    pub const STANDING_REQUESTS: &str = "standingRequests";
}

/// Arguments of `durableJoin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinArgs {
    /// The concrete channel.
    pub channel: Channel,
    /// The caller's incarnation; without it the caller's one live ACL row decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle_uid: Option<LifecycleUid>,
}

/// Why a join is not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JoinShortfall {
    /// Retention may have taken part of the window that catch-up had to copy.
    Evicted,
    /// A newer join or a leave came between.
    Superseded,
}

/// Result of `durableJoin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Whether the backstop is established.
    pub durable: bool,
    /// The membership's generation.
    pub generation: u64,
    /// Why it is not durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<JoinShortfall>,
}

/// Arguments of `durableLeave`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaveArgs {
    /// The concrete channel.
    pub channel: Channel,
    /// The generation that is left; an older one is refused.
    pub generation: u64,
    /// The caller's incarnation; without it the caller's one live ACL row decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle_uid: Option<LifecycleUid>,
}

/// Result of `durableLeave`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Left {
    /// The channel.
    pub channel: Channel,
    /// Set when there was nothing to leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub already_left: Option<bool>,
}

/// One row of `listMemberships`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipItem {
    /// The channel.
    pub channel: Channel,
    /// The membership's generation.
    pub generation: u64,
    /// Whether the backstop is established.
    pub activated: bool,
}

/// Result of `listMemberships`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memberships {
    /// The caller's open memberships.
    pub memberships: Vec<MembershipItem>,
}

/// Arguments of `lifecycleMemberships` and `recallNarrowed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InventoryArgs {
    /// Whose.
    pub principal: Principal,
    /// Which incarnation.
    pub lifecycle_uid: LifecycleUid,
    /// Asks for a page: the channels behind this one in byte order, all of them behind `""`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Result of `lifecycleMemberships`: every member row of the lifecycle, open or closed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Inventory {
    /// The channels of the rows.
    pub channels: Vec<Channel>,
    /// The `after` of the next page; absent on the last one, and where no page was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Channel>,
}

impl Inventory {
    /// The page of `channels`, which are sorted, that follows `after` and takes about `room` bytes.
    /// It has at least one channel where any is left, so that every page brings the caller on.
    #[must_use]
    pub fn page(channels: Vec<Channel>, after: &str, room: usize) -> Self {
        let mut page = Self::default();
        let mut taken = 0;
        for channel in channels.into_iter().filter(|channel| channel.as_str() > after) {
            // Quotes and a comma stand around each; a channel needs no escapes.
            taken += channel.as_str().len() + 3;
            if taken > room && !page.channels.is_empty() {
                page.next = page.channels.last().cloned();
                break;
            }
            page.channels.push(channel);
        }
        page
    }
}

/// Arguments of `evictPrincipal` and `principalLiveness`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalArgs {
    /// Whose connections.
    pub principal: Principal,
}

/// Arguments of `evictPrincipals`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrincipalsArgs {
    /// Whose connections; at most 256 principals.
    pub principals: Vec<Principal>,
}

/// What an eviction did and proved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// Whose connections.
    pub principal: Principal,
    /// How many were kicked; a kick is never success.
    pub kicked: u64,
    /// How many the last scan still saw.
    pub remaining: u64,
    /// Whether a complete scan after the kicks saw none.
    pub verified_gone: bool,
    /// Whether the last scan was complete.
    pub scan_complete: bool,
    /// What kept it from being verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Eviction {
    /// Whether it proves that `principal` is gone: a complete scan of *its* connections saw none.
    ///
    /// # Errors
    /// When it speaks of another principal, or contradicts itself; such an answer proves nothing.
    pub fn proves_gone(&self, principal: &Principal) -> Result<bool, String> {
        if self.principal != *principal {
            return Err(format!("it tells of {} instead of {principal}", self.principal));
        }
        if self.verified_gone && !(self.remaining == 0 && self.scan_complete) {
            return Err(format!(
                "it calls {principal} gone after a scan that {} and saw {} connections",
                if self.scan_complete { "was complete" } else { "was not complete" },
                self.remaining
            ));
        }
        Ok(self.verified_gone)
    }
}

/// Result of `evictPrincipals`, in the order asked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Evictions {
    /// One result a principal.
    pub results: Vec<Eviction>,
}

/// Whether a principal has a live connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LiveState {
    /// At least one connection was seen.
    Live,
    /// A complete scan saw none.
    Gone,
    /// The scan was incomplete and saw none.
    Unknown,
}

/// Result of `principalLiveness`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalLiveness {
    /// Whose connections.
    pub principal: Principal,
    /// What is known.
    pub state: LiveState,
    /// Whether the scan was complete.
    pub scan_complete: bool,
}

/// The reply to a liveness probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Plane {
    /// The daemon serves.
    Bound,
    /// The daemon runs but is quiet.
    Unbound,
}

/// The body of a liveness reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaneReply {
    /// Whether the plane serves.
    pub state: Plane,
}

/// Copies that a member's store evicted before they were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedCopies {
    /// Whose.
    pub member: Principal,
    /// How many since the daemon started.
    pub missed: u64,
}

/// Fingerprints (SHA-256 hex of the JWT) that a renewal owner has just stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Expected {
    /// Of the delivery credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<String>,
    /// Of the membership writer's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<String>,
}

/// Arguments of `reloadCreds`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReloadArgs {
    /// What the store must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
}

/// A credential that the broker accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The nkey.
    pub identity: String,
    /// When it was issued, Unix seconds.
    pub iat: i64,
    /// When it expires, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp: Option<i64>,
    /// SHA-256 hex of the JWT.
    pub fingerprint: String,
}

/// What became of one component's credential.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Adoption {
    /// The broker accepted it on a proof connection.
    BrokerAccepted(Accepted),
    /// The component was left as it is, for this reason.
    Skipped(String),
}

/// Result of `reloadCreds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The delivery credential.
    pub delivery: Adoption,
    /// The membership feed's.
    pub membership: Adoption,
}

/// Most entries in one reply to `waitingEntries`.
pub const WAITING_PAGE: usize = 1_000;

/// Arguments of `waitingEntries`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitingArgs {
    /// Only this member's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Principal>,
    /// Only entries after this INBOX sequence: the next page.
    #[serde(default)]
    pub after: u64,
}

/// An entry that the trusted reader tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingEntry {
    /// The entry's sequence on INBOX.
    pub seq: u64,
    /// Whose it is.
    pub member: Principal,
    /// The post's channel.
    pub channel: Channel,
    /// The post's sequence on CHAT.
    pub chat_seq: u64,
    /// Why it waits.
    pub reason: DeadReason,
    /// How often it was tried.
    pub attempts: u64,
    /// When this process first tried it, Unix milliseconds.
    pub first_at: i64,
}

/// Result of `waitingEntries`, by sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WaitingEntries {
    /// At most [`WAITING_PAGE`].
    pub entries: Vec<WaitingEntry>,
    /// Whether more follow the last.
    pub more: bool,
}

/// A component beside delivery that does not run now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    /// The kind of credential.
    pub component: String,
    /// Why.
    pub reason: String,
}

/// Result of `deliveryStatus`: what this process has counted since it started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryStatus {
    /// The process run.
    pub incarnation: String,
    /// Since when, Unix milliseconds.
    pub since: i64,
    /// Posts routed.
    pub posts: u64,
    /// Copies confirmed in INBOX.
    pub copies: u64,
    /// Posts terminated as malformed or forged.
    pub refused_posts: u64,
    /// Copies confirmed in DLV.
    pub delivered: u64,
    /// Entries dropped because the member may not read them.
    pub denied: u64,
    /// Entries that wait in the reader.
    pub waiting: u64,
    /// Entries parked outside the reader.
    pub parked: u64,
    /// Entries given up.
    pub given_up: u64,
    /// Rows that were garbled when last read.
    pub garbled_rows: u64,
    /// Timers armed.
    #[serde(default)]
    pub armed_timers: u64,
    /// Timer requests ended because they may arm nothing.
    #[serde(default)]
    pub refused_timers: u64,
    /// What runs beside delivery and does not run now, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<Down>,
    /// Stored sequences that their stream contradicted at the start, corrected to what can be true.
    #[serde(default)]
    pub corrected: u64,
    /// Unread copies lost to the store's cap, by member.
    pub missed: Vec<MissedCopies>,
    /// Posts that CHAT lost before they were routed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unrouted: Vec<UnroutedPosts>,
}

/// Posts of one sender and channel that CHAT lost before they were routed, so that no member got
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnroutedPosts {
    /// Who posted them; absent when they were not lost to the cap, but deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Principal>,
    /// Where; absent with the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Channel>,
    /// The lowest sequence on CHAT.
    pub first: u64,
    /// The highest.
    pub last: u64,
    /// At least as many; the exact number when both bounds agree.
    pub at_least: u64,
    /// At most as many.
    pub at_most: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_wire_names() {
        let text = serde_json::to_string(&Reply::refused(Code::StaleGeneration, "no")).unwrap();
        assert_eq!(text, r#"{"ok":false,"error":"no","code":"stale-generation"}"#);
        assert_eq!(serde_json::to_string(&Code::UnknownOp).unwrap(), "\"unknown-op\"");
    }

    #[test]
    fn pages_of_an_inventory_are_whole_and_each_brings_the_caller_on() {
        let all: Vec<_> = ["a", "a-b", "a.b", "b", "c".repeat(4_096).as_str()]
            .map(|c| Channel::parse(c).unwrap())
            .into();
        for room in [0, 1, 4, 5, 12, 4_000, usize::MAX] {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let page = Inventory::page(all.clone(), &after, room);
                assert!(!page.channels.is_empty(), "room {room} after {after:?}");
                seen.extend(page.channels);
                let Some(next) = page.next else { break };
                after = next.to_string();
            }
            assert_eq!(seen, all, "room {room}");
        }
        let last = Inventory::page(all, "d", 1);
        assert_eq!(serde_json::to_string(&last).unwrap(), r#"{"channels":[]}"#);
    }

    #[test]
    fn requests_are_bounded() {
        let ok =
            br#"{"op":"durableJoin","args":{"channel":"a"},"from":{"id":"local.a","name":"A"}}"#;
        assert_eq!(Request::parse(ok).unwrap().op, "durableJoin");
        assert!(Request::parse(&vec![b' '; MAX_REQUEST + 1]).unwrap_err().contains("at most"));
        assert!(Request::parse(b"{}").is_err());
        assert!(Request::parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
