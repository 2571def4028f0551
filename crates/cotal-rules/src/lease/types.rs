//! The inputs and outputs of the keeper.

use cotal_wire::Principal;
use cotal_wire::rows::LeaseRow;

/// What the bucket holds under the lease's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing: never written, deleted or expired.
    Absent {
        /// The revision of the marker, 0 when there is none.
        revision: u64,
    },
    /// A lease.
    Row {
        /// The row.
        row: LeaseRow,
        /// Its revision.
        revision: u64,
    },
    /// A value that cannot be parsed: tampering, not another holder.
    Garbled {
        /// Its revision.
        revision: u64,
    },
}

impl Found {
    /// The revision of what was found.
    #[must_use]
    pub fn revision(&self) -> u64 {
        match self {
            Self::Absent { revision } | Self::Row { revision, .. } | Self::Garbled { revision } => {
                *revision
            }
        }
    }
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// What the bucket holds under the key.
    pub found: Found,
    /// When the bucket was created: revisions of two buckets cannot be compared.
    pub created: String,
}

/// How an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The key is not as the write expected: it exists, or has another revision.
    #[error("the key changed in between")]
    Conflict,
    /// The credential does not permit it; the text names subject and operation (LSE-4).
    #[error("{0}")]
    Denied(String),
    /// The broker refused it for another reason, which is quoted (LSE-5).
    #[error("{0}")]
    Refused(String),
    /// No answer: the operation may have been done, or may still be done.
    #[error("the broker did not answer")]
    Unanswered,
    /// The broker reports no responders: the bucket's stream is missing, or is not there yet. The
    /// keeper repeats the operation as if it was not answered; only the message differs.
    #[error("{0}")]
    NoResponders(String),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Claim the lease.
    Start,
    /// The answer to the last `Create`, `Update` or `Delete`: the new revision.
    Written(Result<u64, Failure>),
    /// The answer to the last `Read`, served by the leader.
    Read(Result<Reading, Failure>),
    /// The watch shows a new value; values come in order.
    Watch(Found),
    /// The responders are bound and both loops run.
    Bound,
    /// They no longer are, for a reason of the shell's own: the row must not say `ready`.
    Quieted,
    /// The watch stalled or was started again: the row must be read.
    Doubt,
    /// The watch shows that the bucket was replaced, or has lost data that it had confirmed.
    Recreated,
    /// A signal, or the end of the lane: release the lease and end.
    Stop,
    /// The connection dropped; an operation in flight is answered with [`Failure::Unanswered`].
    Disconnected,
    /// The connection is back.
    Connected,
    /// The time of [`LeaseKeeper::deadline`](super::LeaseKeeper::deadline) has come.
    Tick,
}

/// What the shell does. At most one bucket operation is in flight at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Create the key; a live value there is a conflict.
    Create(LeaseRow),
    /// Replace exactly `revision`.
    Update {
        /// The row.
        row: LeaseRow,
        /// What it replaces.
        revision: u64,
    },
    /// Delete exactly `revision`.
    Delete {
        /// What is deleted.
        revision: u64,
    },
    /// Read the key from the leader.
    Read,
    /// Bind the responders and start both loops, then report [`Input::Bound`].
    Serve,
    /// Stop serving at once: unbind, and finish nothing that is not confirmed.
    StopServing,
    /// Nothing follows: end, for this reason.
    Exit(Exit),
}

/// Why the keeper ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Exit {
    /// It was told to stop.
    Stopped {
        /// Whether no row of this run is left; otherwise the row expires by itself.
        released: bool,
    },
    /// Another daemon holds the lease, so this one never served (LSE-1).
    Held {
        /// Who.
        holder: Principal,
        /// Since when, Unix milliseconds.
        since: i64,
    },
    /// The row cannot be parsed, so this daemon never served; garbage expires like a lease.
    Tampered,
    /// The claim failed.
    Claim(Failure),
    /// Another daemon has taken the space over.
    Taken {
        /// Who.
        holder: Principal,
    },
    /// The lease was lost and could not be claimed again (LSE-3).
    Lost(Failure),
    /// The bucket was created again, or its store lost data that it had confirmed: nothing that
    /// this run knows about it is valid any more.
    Replaced {
        /// Whether no row of this run is left; otherwise the row expires by itself.
        released: bool,
    },
}
