//! The steps of a change of a member row: what it asks of the broker, and the answers.
//!
//! These are the steps of [`Join`](super::Join), [`Leave`](super::Leave) and
//! [`Activation`](super::Activation). The daemon's registry performs each step against the broker;
//! the cluster model performs it against its own space, and may pause, lose an answer or close the
//! gate between any two.

use cotal_wire::rows::{AclRow, MemberRow};
use cotal_wire::{Channel, Lifecycle};

use super::{MemberChange, Refusal};
use crate::directory::Membership;

/// Conflicts after which a caller is told that the row keeps changing.
pub(super) const MAX_CONFLICTS: u8 = 8;
/// Unanswered requests after which a machine gives up. The shell waits for each, so together they
/// last longer than the window after which a lane without its broker ends.
pub(super) const MAX_UNANSWERED: u8 = 8;

/// Which row is changed, and by which daemon run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The channel.
    pub channel: Channel,
    /// The member.
    pub member: Lifecycle,
    /// The daemon's incarnation.
    pub writer: String,
}

impl Target {
    pub(super) fn change(&self, cursor: u64, now_ms: i64) -> MemberChange<'_> {
        let (channel, member) = (&self.channel, &self.member);
        MemberChange { channel, member, cursor, now_ms, writer: &self.writer }
    }

    pub(super) fn row(&self, membership: &Membership) -> MemberRow {
        membership.to_row(&self.channel, &self.member, &self.writer)
    }
}

/// A member row as the leader has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The row, or the last valid one if the stored value cannot be parsed. Its revision is that of
    /// the stored value.
    pub membership: Option<Membership>,
    /// The revision of the stored value: a row, a deletion or garbage. 0 if the key was never
    /// written.
    pub revision: u64,
}

/// A compare-and-set of one member row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowWrite {
    /// The row; `None` writes a deletion.
    pub row: Option<MemberRow>,
    /// The revision it replaces; 0 if the key was never written.
    pub over: u64,
    /// It takes back this change's own write, so it is made even after the lane has stopped
    /// serving.
    pub is_undo: bool,
}

/// What the shell does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Read the row from the leader.
    Row,
    /// Wait until the rows that the next membership pushes out of the history are no longer needed.
    Room,
    /// Read CHAT's last sequence from the leader.
    Cursor,
    /// Read the lifecycle's ACL row from the leader.
    Acl,
    /// Write the row.
    Write(RowWrite),
    /// Read CHAT's last sequence, and whether CHAT may have discarded a post of the window.
    Window {
        /// The join cursor.
        after: u64,
    },
    /// Copy the posts of the window.
    CatchUp {
        /// The join cursor.
        after: u64,
        /// The last post of it.
        until: u64,
    },
}

/// The answer to a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The row.
    Row(Stored),
    /// There is room.
    Room,
    /// CHAT's last sequence.
    Cursor(u64),
    /// The ACL row; `None` if there is none.
    Acl(Option<AclRow>),
    /// The row is stored at this revision.
    Written(u64),
    /// Another revision is stored, so nothing was written.
    Conflict,
    /// The window's end, and whether it is complete.
    Window {
        /// CHAT's last sequence.
        end: u64,
        /// Whether no post of it is gone.
        whole: bool,
    },
    /// Every copy of the window is confirmed.
    CaughtUp,
    /// The broker did not answer. A write may have been stored, or may be stored later.
    NoAnswer,
    /// It was refused, so nothing was done.
    Failed,
    /// The lane no longer serves, so nothing was done.
    NotServing,
}

/// The next step of a machine, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<E> {
    /// Do this, and give the machine the answer.
    Ask(Ask),
    /// It is over.
    End(E),
}

/// How a join ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinEnd {
    /// The row is stored and the ACL covered it afterwards. If it is not activated, catch-up is
    /// due.
    Open {
        /// The membership.
        membership: Membership,
        /// Whether this join wrote the row.
        is_new: bool,
    },
    /// No row of this join is left.
    Refused(Refusal),
    /// The row kept changing.
    Busy,
    /// The lane stopped serving, so the daemon that serves now decides.
    NotServing,
    /// The broker refused or did not answer; the shell knows what it said.
    Failed,
}
