//! Whether a routed copy may be released to its member (RDR-1, 8, 10, 11, 12).

use cotal_wire::envelope::Reason;
use cotal_wire::{Channel, Lifecycle};

use crate::directory::Directory;

/// Why a copy is not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenyReason {
    /// The owner slot holds nothing that a deployment mints.
    UnrealOwner,
    /// The member's ACL does not cover the channel now.
    NotAllowed,
    /// The post is older than the lifecycle.
    BeforeLifecycle,
    /// The member has no row on the channel.
    NotMember,
    /// The post is not after the join cursor.
    BeforeJoin,
    /// The post is after the leave cursor.
    AfterLeave,
    /// The copy is of an earlier generation, outside its interval or the interval is unknown.
    EarlierGeneration,
}

/// What the reader does with a pending copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the member.
    Release,
    /// Drop it, for this reason.
    Deny(DenyReason),
    /// Its lifecycle is retired: remove it from the store, then ack.
    Retired,
    /// Its owner has no ACL row: it waits.
    NoAclRow,
}

/// Judges one entry against the member's current ACL and membership.
#[must_use]
pub fn verdict(
    member: &Lifecycle,
    channel: &Channel,
    seq: u64,
    reason: Reason,
    generation: u64,
    dir: &Directory,
) -> Verdict {
    let _ = (member, channel, seq, reason, generation, dir);
    Verdict::NoAclRow
}
