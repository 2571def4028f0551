//! The transitions of a member row, decided over its current state (MEM-2, 3, 4, 6, 7).

use cotal_wire::control::Code;
use cotal_wire::rows::MemberRow;
use cotal_wire::{Channel, Lifecycle};

use crate::directory::{Acl, Membership};

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
    /// Its kind.
    pub code: Code,
    /// A sentence for people.
    pub reason: String,
}

/// Who changes which row, when, and on whose authority.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The channel.
    pub channel: &'a Channel,
    /// The member.
    pub member: &'a Lifecycle,
    /// CHAT's leader-served last sequence, read before the row is written.
    pub cursor: u64,
    /// Unix milliseconds.
    pub now_ms: i64,
    /// The daemon's incarnation.
    pub writer: &'a str,
}

/// What a join does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinStep {
    /// Write the row, read the ACL again, then activate. A conflict means: start over.
    Write(Write),
    /// The interval is open already; write nothing. Not yet activated: activate again.
    AlreadyJoined {
        /// The open membership.
        membership: Membership,
    },
    /// Write nothing.
    Refused(Refusal),
}

/// Decides a join.
#[must_use]
pub fn join(current: Option<&Membership>, acl: Acl<'_>, change: Change<'_>) -> JoinStep {
    let _ = (current, acl, change);
    JoinStep::Refused(Refusal {
        code: Code::NotReady,
        reason: String::new(),
    })
}

/// What the second ACL read says about a row just written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterWrite {
    /// It stands.
    Keep,
    /// Remove it, by its revision, and refuse the join.
    Remove(Refusal),
}

/// Judges a row just written by the ACL as it stands after the write (MEM-3).
#[must_use]
pub fn after_write(acl: Acl<'_>, channel: &Channel) -> AfterWrite {
    let _ = (acl, channel);
    AfterWrite::Keep
}

/// What a leave does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveStep {
    /// Write the closed row.
    Write(Write),
    /// Nothing is open.
    AlreadyLeft,
    /// Write nothing.
    Refused(Refusal),
}

/// Decides a leave of `generation`.
#[must_use]
pub fn leave(current: Option<&Membership>, generation: u64, change: Change<'_>) -> LeaveStep {
    let _ = (current, generation, change);
    LeaveStep::AlreadyLeft
}

/// What an activation does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActivateStep {
    /// Write the activated row.
    Write(Write),
    /// It is activated already.
    AlreadyActive,
    /// A leave, a newer join or a removal came between.
    Superseded,
}

/// Decides the activation of `generation` once catch-up is complete; `cursor` is not used.
#[must_use]
pub fn activate(current: Option<&Membership>, generation: u64, change: Change<'_>) -> ActivateStep {
    let _ = (current, generation, change);
    ActivateStep::Superseded
}

/// Closes a row whose window retention may have cut (MEM-7).
#[must_use]
pub fn close_evicted(
    current: Option<&Membership>,
    generation: u64,
    change: Change<'_>,
) -> LeaveStep {
    let _ = (current, generation, change);
    LeaveStep::AlreadyLeft
}

/// How full one subject of the channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubjectFill {
    /// Messages it holds.
    pub count: u64,
    /// The sequence of its oldest.
    pub oldest: u64,
}

/// Whether retention may have taken a post of the window after `join_cursor` (`wire.md` §5).
#[must_use]
pub fn window_evicted(join_cursor: u64, stream_first_seq: u64, subjects: &[SubjectFill]) -> bool {
    let _ = (join_cursor, stream_first_seq, subjects);
    false
}
