//! The transitions of a member row, decided from its current state (MEM-2, 3, 4, 6, 7).
//!
//! Every change is a compare-and-set on the revision it was decided from, so two daemons, or a
//! daemon that woke up late, never overwrite each other: the loser starts again. Cursors are CHAT
//! sequences read before the write; no clock orders anything.

use cotal_wire::control::Code;
use cotal_wire::limits::PER_SUBJECT;
use cotal_wire::rows::{MemberRow, MemberState};
use cotal_wire::{Channel, Lifecycle};

use crate::directory::{Acl, Membership};

mod activation;
mod inventory;
mod join;
mod leave;
mod step;
mod undo;

pub use activation::{Activation, ActivationEnd};
pub use inventory::{Inventory, InventoryAnswer, InventoryAsk};
pub use join::Join;
pub use leave::{Leave, LeaveEnd};
pub use step::{Answer, Ask, JoinEnd, RowWrite, Step, Stored, Target};

/// What a write must find in the bucket to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No row, or a deletion.
    Absent,
    /// Exactly this revision.
    Revision(u64),
}

/// A compare-and-set of a member row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The row to write.
    pub row: MemberRow,
    /// What it replaces.
    pub expect: Expect,
}

/// A refusal for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code that the reply carries.
    pub code: Code,
    /// A sentence for people.
    pub reason: String,
}

/// Who changes which row, when, and on whose authority.
#[derive(Debug, Clone, Copy)]
pub struct MemberChange<'a> {
    /// The channel.
    pub channel: &'a Channel,
    /// The member.
    pub member: &'a Lifecycle,
    /// CHAT's last sequence, read from the leader before the row is written.
    pub cursor: u64,
    /// Unix milliseconds.
    pub now_ms: i64,
    /// The daemon's incarnation.
    pub writer: &'a str,
}

/// What to do next for a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinStep {
    /// Write the row, read the ACL again, then activate. After a conflict start again.
    Write(Write),
    /// The interval is open already; write nothing. If it is not activated, activate it again.
    AlreadyJoined {
        /// The open membership.
        membership: Membership,
    },
    /// Write nothing.
    Refused(Refusal),
}

/// Decides a join. An open interval is kept as it is: a second join changes nothing (MEM-6).
#[must_use]
pub fn join(current: Option<&Membership>, acl: Acl<'_>, change: MemberChange<'_>) -> JoinStep {
    if let Some(refusal) = not_allowed(acl, change.channel) {
        return JoinStep::Refused(refusal);
    }
    let (generation, expect) = match current {
        Some(row) if row.is_open() => {
            return JoinStep::AlreadyJoined { membership: row.clone() };
        }
        Some(row) => (row.generation + 1, Expect::Revision(row.revision)),
        None => (1, Expect::Absent),
    };
    let opened = Membership {
        join_cursor: change.cursor,
        leave_cursor: None,
        generation,
        activated: false,
        state: MemberState::LiveConfirmed,
        revision: 0,
        updated_at: change.now_ms,
    };
    let row = opened.to_row(change.channel, change.member, change.writer);
    JoinStep::Write(Write { row, expect })
}

fn not_allowed(acl: Acl<'_>, channel: &Channel) -> Option<Refusal> {
    let (code, reason) = match acl {
        Acl::Absent => (
            Code::NotProvisioned,
            "this lifecycle has no read-ACL row; have the agent provisioned first".to_owned(),
        ),
        Acl::Retired => (
            Code::Retired,
            "this lifecycle is retired; connect with the successor's credential".to_owned(),
        ),
        Acl::Row(row) if row.allows(channel) => return None,
        Acl::Row(_) => (
            Code::Denied,
            format!("the read ACL does not cover {channel}; ask for it to be widened"),
        ),
    };
    Some(Refusal { code, reason })
}

/// What the second read of the ACL says about a row that was just written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterWrite {
    /// It stays.
    Keep,
    /// Remove it, by its revision, and refuse the join.
    Remove(Refusal),
}

/// Judges a row that was just written by the ACL as it is after the write (MEM-3).
#[must_use]
pub fn after_write(acl: Acl<'_>, channel: &Channel) -> AfterWrite {
    not_allowed(acl, channel).map_or(AfterWrite::Keep, AfterWrite::Remove)
}

/// What to do next for a leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveStep {
    /// Write the closed row.
    Write(Write),
    /// Nothing is open.
    AlreadyLeft,
    /// Write nothing.
    Refused(Refusal),
}

/// Decides a leave of `generation`. It only closes an existing row (MEM-4). A generation older than
/// the row's is refused, because a rejoin has replaced the membership that the caller means.
#[must_use]
pub fn leave(current: Option<&Membership>, generation: u64, change: MemberChange<'_>) -> LeaveStep {
    let Some(row) = current else {
        return LeaveStep::AlreadyLeft;
    };
    if generation != row.generation {
        let (code, which) = if generation < row.generation {
            (Code::StaleGeneration, "an older")
        } else {
            (Code::Invalid, "a later")
        };
        return LeaveStep::Refused(Refusal {
            code,
            reason: format!(
                "generation {generation} is {which} membership of {} than the current {}; list the \
                 memberships and leave the current one",
                change.channel, row.generation
            ),
        });
    }
    if row.is_open() {
        LeaveStep::Write(close(row, change.cursor, change))
    } else {
        LeaveStep::AlreadyLeft
    }
}

/// The row, closed after `cursor`; an interval never ends before it begins.
fn close(row: &Membership, cursor: u64, change: MemberChange<'_>) -> Write {
    let closed = Membership {
        leave_cursor: Some(cursor.max(row.join_cursor)),
        updated_at: change.now_ms,
        ..row.clone()
    };
    Write {
        row: closed.to_row(change.channel, change.member, change.writer),
        expect: Expect::Revision(row.revision),
    }
}

/// What to do next for an activation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActivateStep {
    /// Write the activated row.
    Write(Write),
    /// It is activated already.
    AlreadyActive,
    /// A leave, a newer join or a removal came between.
    Superseded,
}

/// Decides the activation of `generation` after catch-up is complete. It only updates an open row
/// of that generation (MEM-4). The change's cursor is not used.
#[must_use]
pub fn activate(
    current: Option<&Membership>,
    generation: u64,
    change: MemberChange<'_>,
) -> ActivateStep {
    let Some(row) = current.filter(|row| row.generation == generation && row.is_open()) else {
        return ActivateStep::Superseded;
    };
    if row.activated {
        return ActivateStep::AlreadyActive;
    }
    let active = Membership {
        activated: true,
        state: MemberState::DurableActive,
        updated_at: change.now_ms,
        ..row.clone()
    };
    ActivateStep::Write(Write {
        row: active.to_row(change.channel, change.member, change.writer),
        expect: Expect::Revision(row.revision),
    })
}

/// Closes the row of `generation` when CHAT may have discarded posts of its window (MEM-7). The
/// interval ends where it began, so it holds no post at all, and no post inside an interval is ever
/// missing.
#[must_use]
pub fn close_evicted(
    current: Option<&Membership>,
    generation: u64,
    change: MemberChange<'_>,
) -> CloseStep {
    match current.filter(|row| row.generation == generation && row.is_open()) {
        Some(row) if !row.activated => CloseStep::Write(close(row, row.join_cursor, change)),
        Some(_) | None => CloseStep::Superseded,
    }
}

/// What to do next when posts of a window may be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseStep {
    /// Write the closed row.
    Write(Write),
    /// A leave, a newer join, a removal or an activation came between.
    Superseded,
}

/// Whether an inventory must fence the lifecycle on this process. A row that was narrowed or
/// retired before refuses every join by itself, on every process (INV-4). A missing row refuses
/// too, but it is no proof that the lifecycle ended, and may come back.
#[must_use]
pub fn needs_fence(acl: Acl<'_>) -> bool {
    match acl {
        Acl::Row(row) => !row.allow_subscribe.is_empty(),
        Acl::Retired => false,
        Acl::Absent => true,
    }
}

/// How full one subject of the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubjectFill {
    /// Messages it holds.
    pub count: u64,
    /// The sequence of its oldest.
    pub oldest: u64,
}

/// Whether CHAT may have discarded a post of the window after `join_cursor` (`wire.md` §5).
#[must_use]
pub fn window_evicted(join_cursor: u64, stream_first_seq: u64, subjects: &[SubjectFill]) -> bool {
    let full = |fill: &SubjectFill| fill.count >= PER_SUBJECT && fill.oldest > join_cursor;
    stream_first_seq > join_cursor.saturating_add(1) || subjects.iter().any(full)
}

#[cfg(test)]
mod steps_tests;
#[cfg(test)]
mod tests;
