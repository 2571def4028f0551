//! Why a lane does not, or no longer, hold its lease.

use cotal_rules::lease::Failure;
use cotal_wire::{Principal, Space};

/// Why this process does not, or no longer, serve.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another daemon holds the lease.
    #[error(
        "{space} is served by another daemon: {holder} holds its lease; stop that one, or wait \
         until its lease expires (30 s after a crash)"
    )]
    Held {
        /// The space.
        space: Space,
        /// Who holds it.
        holder: Principal,
    },
    /// The lease row is not a lease.
    #[error("the lease row of {0} is garbled: somebody tampered with it; it expires within 30 s")]
    Tampered(Space),
    /// The claim was not possible.
    #[error("could not claim the lease of {space}: {source}")]
    Refused {
        /// The space.
        space: Space,
        /// What the broker said.
        source: Failure,
    },
    /// Another daemon took the lease while this one served.
    #[error("another daemon has taken the shard: {holder} holds the lease of {space}")]
    Taken {
        /// The space.
        space: Space,
        /// Who holds it.
        holder: Principal,
    },
    /// The row was lost and could not be written again.
    #[error("could not re-acquire the lease of {space}: {source}")]
    NotReacquired {
        /// The space.
        space: Space,
        /// What the broker said.
        source: Failure,
    },
    /// The bucket is another one, or an older state of it.
    #[error(
        "the lease bucket of {space} was created anew, or lost what it had confirmed; the daemon \
         must start anew"
    )]
    Replaced {
        /// The space.
        space: Space,
        /// Whether no row of this run is left in it.
        released: bool,
    },
}

impl LeaseError {
    /// Whether a row that this process wrote may still stand. Whoever read another's row, or what
    /// is no lease at all, knows that its own is gone.
    pub(crate) fn may_leave_a_row(&self) -> bool {
        match self {
            Self::Held { .. } | Self::Tampered(_) | Self::Taken { .. } => false,
            Self::Refused { .. } | Self::NotReacquired { .. } => true,
            Self::Replaced { released, .. } => !released,
        }
    }
}
