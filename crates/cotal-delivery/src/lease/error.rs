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
    /// The lease row cannot be parsed.
    #[error("the lease row of {0} is garbled: somebody tampered with it; it expires within 30 s")]
    Tampered(Space),
    /// The claim failed.
    #[error("could not claim the lease of {space}: {source}")]
    Refused {
        /// The space.
        space: Space,
        /// The broker's answer.
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
        /// The broker's answer.
        source: Failure,
    },
    /// The bucket was replaced, or lost data.
    #[error(
        "the lease bucket of {space} was created again, or lost data that it had confirmed; \
         restart the daemon"
    )]
    Replaced {
        /// The space.
        space: Space,
        /// Whether no row of this run is left in it.
        released: bool,
    },
}

impl LeaseError {
    /// Whether a row of this process may still be in the bucket. If another daemon's row or garbage
    /// was read, the own row is gone.
    pub(crate) fn may_leave_a_row(&self) -> bool {
        match self {
            Self::Held { .. } | Self::Tampered(_) | Self::Taken { .. } => false,
            Self::Refused { .. } | Self::NotReacquired { .. } => true,
            Self::Replaced { released, .. } => !released,
        }
    }
}
