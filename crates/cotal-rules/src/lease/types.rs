//! What goes into the keeper and what comes out.

use cotal_wire::Principal;
use cotal_wire::rows::LeaseRow;

/// What stands under the lease's key.
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
    /// Something that is no lease: tampering, not another holder.
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

/// What a read showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// What stands under the key.
    pub found: Found,
    /// When the bucket was created: revisions of two buckets say nothing about each other.
    pub created: String,
}

/// How an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The key is not as the write expected: it exists, or has another revision.
    #[error("it changed in between")]
    Conflict,
    /// The credential may not; the text names subject and operation (LSE-4).
    #[error("{0}")]
    Denied(String),
    /// The broker refused it for another reason, quoted (LSE-5).
    #[error("{0}")]
    Refused(String),
    /// No answer: it may have happened, and may happen yet.
    #[error("the broker did not answer")]
    Unanswered,
    /// The broker says that nobody takes it: its store is not there, or not there yet. It is asked
    /// again like what was not answered, and told apart where it is told.
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
    /// The watch shows a new value, in order.
    Watch(Found),
    /// The responders are bound and both loops run.
    Bound,
    /// They are not, for a reason of the shell's own: the row must not say ready.
    Quieted,
    /// The watch stalled or was made anew: the row must be read.
    Doubt,
    /// The watch shows that the bucket is another one now, or has lost what it had confirmed.
    Recreated,
    /// A signal, or a lane that closes: release and end.
    Stop,
    /// The connection dropped; an operation in flight is answered with [`Failure::Unanswered`].
    Disconnected,
    /// The connection is back.
    Connected,
    /// The deadline has come.
    Tick,
}

/// What the shell does. At most one of the bucket operations is in flight at any time.
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
    /// Bind the responders and start both loops, then say [`Input::Bound`].
    Serve,
    /// Stop serving at once: unbind, finish nothing that is not confirmed.
    StopServing,
    /// Nothing more will come: end, for this reason.
    Exit(Exit),
}

/// Why the keeper ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Exit {
    /// As asked.
    Stopped {
        /// Whether no row of this run is left; otherwise it expires by itself.
        released: bool,
    },
    /// Another daemon holds the lease, so this one never served (LSE-1).
    Held {
        /// Who.
        holder: Principal,
        /// Since when, Unix milliseconds.
        since: i64,
    },
    /// The row is garbled, so this one never served; garbage expires like a lease.
    Tampered,
    /// The claim was not possible.
    Claim(Failure),
    /// Another daemon has taken the shard.
    Taken {
        /// Who.
        holder: Principal,
    },
    /// The lease was lost and could not be re-acquired (LSE-3).
    Lost(Failure),
    /// The bucket was created anew, or its store lost what it had confirmed: nothing that this run
    /// knows of it holds any more.
    Replaced {
        /// Whether no row of this run is left; otherwise it expires by itself.
        released: bool,
    },
}
