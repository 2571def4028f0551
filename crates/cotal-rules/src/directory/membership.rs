//! A member row without its key: what every decision about an interval needs.

use cotal_wire::rows::{MemberRow, MemberState};
use cotal_wire::{Channel, Lifecycle};

/// A member row as the directory keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The last CHAT sequence before the interval.
    pub join_cursor: u64,
    /// The last CHAT sequence inside the interval; `None` while it is open.
    pub leave_cursor: Option<u64>,
    /// Counts the joins, from 1.
    pub generation: u64,
    /// Whether catch-up is complete; it affects only what is reported.
    pub activated: bool,
    /// The state that the row reports.
    pub state: MemberState,
    /// The bucket revision that a change must name.
    pub revision: u64,
    /// When the row was written, Unix milliseconds.
    pub updated_at: i64,
}

impl Membership {
    /// The membership that `row` states at `revision`.
    #[must_use]
    pub fn of(row: &MemberRow, revision: u64) -> Self {
        Self {
            join_cursor: row.join_cursor,
            leave_cursor: row.leave_cursor,
            generation: row.generation,
            activated: row.activated,
            state: row.state,
            revision,
            updated_at: row.updated_at,
        }
    }

    /// The row that states this membership, written by `writer`.
    #[must_use]
    pub fn to_row(&self, channel: &Channel, member: &Lifecycle, writer: &str) -> MemberRow {
        MemberRow {
            channel: channel.clone(),
            owner: member.principal.clone(),
            lifecycle_uid: member.uid,
            state: self.state,
            join_cursor: self.join_cursor,
            leave_cursor: self.leave_cursor,
            generation: self.generation,
            activated: self.activated,
            writer_identity: writer.to_owned(),
            updated_at: self.updated_at,
        }
    }

    /// Whether the post at `seq` lies in the interval.
    #[must_use]
    pub fn holds(&self, seq: u64) -> bool {
        self.join_cursor < seq && self.leave_cursor.is_none_or(|leave| seq <= leave)
    }

    /// Whether the interval has no end yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.leave_cursor.is_none()
    }
}

/// A member key whose latest value cannot be parsed, with the row that is in force instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GarbledMember {
    /// The key's channel.
    pub channel: Channel,
    /// The key's member.
    pub member: Lifecycle,
    /// The last valid row. `None` if none is known, so the history must be read, or if the last
    /// valid state was a deletion.
    pub membership: Option<Membership>,
    /// The revision of the garbled value: a write-back replaces exactly this one.
    pub garbled_revision: u64,
}
