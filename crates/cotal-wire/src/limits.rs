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
/// The CONNECT line that the broker is configured to accept, in bytes (`wire.md` §8).
pub const MAX_CONTROL_LINE: usize = 65_536;
/// Most principals in one `evictPrincipals` request (`wire.md` §6).
pub const MAX_EVICT: usize = 256;
/// Largest body of a timer request, in bytes; its four fields take a few hundred.
pub const MAX_TIMER_REQUEST: usize = 4 * 1024;
/// Largest timer request that is stored, in bytes: the body and as much again for headers.
pub const MAX_TIMER_MESSAGE: i64 = 8 * 1024;
