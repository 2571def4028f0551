//! Bounds on everything that comes off the wire.

/// Longest channel, in bytes (`wire.md` §2).
pub const MAX_CHANNEL: usize = 4_096;
/// Longest owner or actor token, in bytes; an nkey (56) fits with room to spare.
pub const MAX_TOKEN: usize = 128;
/// Most mentions of one post that are looked at; the rest are ignored.
pub const MAX_MENTIONS: usize = 256;
/// Longest message id that enters a deduplication key verbatim (`wire.md` §5).
pub const MAX_VERBATIM_ID: usize = 128;
/// Most patterns in one ACL row.
pub const MAX_ACL_PATTERNS: usize = 10_000;
/// Largest row value accepted from a bucket, in bytes.
pub const MAX_ROW: usize = 1024 * 1024;
/// Largest control request body, in bytes.
pub const MAX_REQUEST: usize = 256 * 1024;
/// Messages kept per subject in INBOX and DLV, and in CHAT of what is routed (`wire.md` §3).
pub const PER_SUBJECT: u64 = 1_000;
/// Posts kept per subject in CHAT until they are routed (`wire.md` §3): a burst of 20,000 by one
/// sender fits with room for what it does not outrun.
pub const UNROUTED_PER_SUBJECT: u64 = 32_768;
/// Revisions that the buckets of ACLs, members, channels and requests keep of each key (`wire.md`
/// §4).
pub const HISTORY: u8 = 8;
/// Room that a post leaves for the entry wrapped around it, in bytes (`wire.md` §3).
pub const ENTRY_HEADROOM: u64 = 16 * 1024;
/// Largest result of a role request, in bytes of the JSON of its parts (`wire.md` §6).
pub const MAX_RESULT: usize = 32 * 1024;
/// Consumers allowed per stream; the broker's own default of 1,000 would cap a space.
pub const MAX_CONSUMERS: i64 = 200_000;
/// Bytes that CHAT holds of a space, and the mirror of it that history is read from: what its
/// agents post there never fills the disk on which leases and ACL rows are written (`wire.md` §3).
pub const CHAT_BYTES: i64 = 512 * 1024 * 1024;
/// Bytes that DM holds; beyond them a direct message is refused, and none is pushed out.
pub const DM_BYTES: i64 = 256 * 1024 * 1024;
/// Bytes that TASK holds; beyond them a role request is refused.
pub const TASK_BYTES: i64 = 64 * 1024 * 1024;
/// Bytes that EPT_REQ holds; beyond them a timer request is refused.
pub const EPT_REQ_BYTES: i64 = 16 * 1024 * 1024;
/// Direct messages kept from one sender to one receiver; beyond them the sender's own oldest go.
pub const DM_PER_PAIR: i64 = 10_000;
/// Open requests of one sender to one role; beyond them its next one is refused.
pub const OPEN_REQUESTS: i64 = 1_000;
/// Subscriptions of one connection of an agent: those of a credential that fits the CONNECT line
/// many times over.
pub const AGENT_SUBSCRIPTIONS: i64 = 10_000;
/// Connections of all agents of a space: fewer than the broker takes in all, so that agents alone
/// never keep the daemon, the manager or another space from connecting.
pub const AGENT_CONNECTIONS: i64 = 16_000;
/// Connections that a broker takes in all. Each that has presented nothing yet may hold a CONNECT
/// line, until its time to authenticate is over: so strangers can take 1.3 GB at most.
pub const MAX_CONNECTIONS: u32 = 20_000;
/// The CONNECT line that the broker is configured to accept, in bytes (`wire.md` §8).
pub const MAX_CONTROL_LINE: usize = 65_536;
/// Most principals in one `evictPrincipals` request (`wire.md` §6).
pub const MAX_EVICT: usize = 256;
/// Largest body of a timer request, in bytes; its four fields take a few hundred.
pub const MAX_TIMER_REQUEST: usize = 4 * 1024;
/// Largest timer request that is stored, in bytes: the body and as much again for headers.
pub const MAX_TIMER_MESSAGE: i64 = 8 * 1024;
