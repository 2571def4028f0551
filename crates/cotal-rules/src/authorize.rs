//! Whether a routed copy may be released to its member (RDR-1, 8, 10, 11, 12).
//!
//! A copy in the store proves nothing; the row and the ACL of this moment decide. The interval is
//! the authority: what the current interval holds is released, whichever generation routed it.
//!
//! **Rejoin.** A row states only its newest interval, so a copy of an earlier generation that the
//! current interval does not hold is judged by the interval of its own generation, which is closed
//! for ever: inside it the post is still surfaced, after its leave cursor lies the gap that a
//! rejoin does not deliver (RDR-10). The directory remembers earlier intervals as it watches rows
//! change, and takes them from the bucket's history after a restart. An interval that neither knows
//! is not guessed: the copy is denied as [`DenyReason::EarlierGeneration`], because a read boundary
//! that leaks is worse than a copy that is reported as denied.

use cotal_wire::envelope::Reason;
use cotal_wire::{Channel, Lifecycle};

use crate::directory::{Acl, Directory};

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
    /// The copy is of an earlier generation whose interval is not known. The shell gives the
    /// directory the key's history ([`Directory::recover_member`]) and asks once more.
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
    /// A leave under way may exclude it: it waits until the closed row is applied.
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

/// Why the member's interval does not hold the post, if it does not.
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
