//! Unread copies that a store's cap evicts: counted, and told once per member and episode.

use cotal_wire::Lifecycle;

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Nothing to say.
    Quiet,
    /// The first misses of an episode: log it.
    Began {
        /// Misses found by this check.
        missed: u64,
    },
    /// More misses of a running episode.
    More {
        /// Misses found by this check.
        missed: u64,
    },
    /// The member reads again.
    Ended {
        /// Misses of the whole episode.
        missed: u64,
    },
}

/// Misses by member.
#[derive(Debug, Default)]
pub struct OverflowMeter {}

impl OverflowMeter {
    /// Counts one copy stored for `member`.
    pub fn stored(&mut self, member: &Lifecycle) {
        let _ = member;
    }
    /// Whether the member could be full, so that its unread count must be read.
    #[must_use]
    pub fn needs_check(&self, member: &Lifecycle) -> bool {
        let _ = member;
        false
    }
    /// Takes the unread count (pending plus ack-pending) just read.
    pub fn checked(&mut self, member: &Lifecycle, unread: u64) -> Overflow {
        let _ = (member, unread);
        Overflow::Quiet
    }
    /// Members that missed anything since the start, with how much.
    pub fn missed(&self) -> impl Iterator<Item = (&Lifecycle, u64)> {
        std::iter::empty()
    }
}
