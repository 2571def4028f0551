//! Whether a routed copy may be released to its member (RDR-1, 8, 10, 11, 12).
//!
//! A copy in INBOX proves nothing: the member row and the ACL as they are now decide. Whatever the
//! current interval holds is released, whichever generation it was routed for.
//!
//! **Rejoin.** A row states only its newest interval. A copy of an earlier generation that the
//! current interval does not hold is judged by the interval of its own generation, which is closed
//! for ever: a post inside it is still released; a post after its leave cursor lies in the gap that
//! a rejoin does not deliver (RDR-10). The directory remembers earlier intervals while it watches
//! rows change, and reads them from the bucket's history after a restart. If neither has the
//! interval, the copy is denied as [`DenyReason::EarlierGeneration`], because to show a post beyond
//! the boundary is worse than to deny one too many.

use cotal_wire::envelope::Reason;
use cotal_wire::{Channel, Lifecycle};

use crate::directory::{Acl, Directory};

/// Why a copy is not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenyReason {
    /// The owner part of the member's name is none that a deployment creates.
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
    /// The copy is of an earlier generation whose interval is not known. The shell then gives the
    /// directory the history of the key ([`Directory::recover_member`]) and asks again.
    EarlierGeneration,
}

/// What the reader does with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the member.
    Release,
    /// Drop it, for this reason.
    Deny(DenyReason),
    /// The member's lifecycle is retired: delete the entry from INBOX, then ack it.
    Retired,
    /// The member has no ACL row: the entry waits.
    NoAclRow,
    /// A leave in progress may exclude it: the entry waits until the closed row is applied.
    Leaving,
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
    if !member.principal.has_real_owner() {
        return Verdict::Deny(DenyReason::UnrealOwner);
    }
    let acl = dir.acl(member);
    match acl {
        Acl::Absent => return Verdict::NoAclRow,
        Acl::Retired => return Verdict::Retired,
        Acl::Row(_) => {}
    }
    let denied = if !acl.allows(channel) {
        Some(DenyReason::NotAllowed)
    } else if !acl.covers_age(seq) {
        Some(DenyReason::BeforeLifecycle)
    } else if reason == Reason::DurableChannel {
        outside(member, channel, seq, generation, dir)
    } else {
        None
    };
    match denied {
        Some(reason) => Verdict::Deny(reason),
        None if reason == Reason::DurableChannel && dir.is_leaving(channel, member, seq) => {
            Verdict::Leaving
        }
        None => Verdict::Release,
    }
}

/// Why the post is outside the member's interval; `None` if it is inside.
fn outside(
    member: &Lifecycle,
    channel: &Channel,
    seq: u64,
    generation: u64,
    dir: &Directory,
) -> Option<DenyReason> {
    let Some(row) = dir.membership(channel, member) else {
        return Some(DenyReason::NotMember);
    };
    if row.holds(seq) {
        return None;
    }
    if generation < row.generation {
        return match dir.past_holds(channel, member, generation, seq) {
            Some(true) => None,
            Some(false) => Some(DenyReason::AfterLeave),
            None => Some(DenyReason::EarlierGeneration),
        };
    }
    if seq <= row.join_cursor { Some(DenyReason::BeforeJoin) } else { Some(DenyReason::AfterLeave) }
}

#[cfg(test)]
mod tests;
