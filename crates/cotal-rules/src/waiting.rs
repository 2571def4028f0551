//! Entries that must wait: when they are tried again, and how many slots they may hold (`wire.md` §3).

use std::collections::{BTreeSet, HashMap};

use cotal_wire::Lifecycle;

/// What a waiting entry does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nak it with this delay, in milliseconds.
    Retry {
        /// The delay.
        delay_ms: i64,
    },
    /// Record it as parked, ack it, and try again from there.
    Park {
        /// When, Unix milliseconds.
        next_at: i64,
    },
    /// Record it as given up.
    GiveUp,
}

/// Who holds how many of the reader's slots.
#[derive(Debug, Default)]
pub struct Waiting {
    owners: HashMap<Lifecycle, BTreeSet<u64>>,
    total: usize,
}

impl Waiting {
    /// Decides for the entry at `entry` on its `attempt`th delivery, counted from 1.
    pub fn on_wait(&mut self, owner: &Lifecycle, entry: u64, attempt: u64, now_ms: i64) -> Wait {
        let _ = (owner, entry, attempt, now_ms, self.total);
        Wait::GiveUp
    }

    /// Frees the slot of an entry that waits no longer; says whether it held one.
    pub fn release(&mut self, owner: &Lifecycle, entry: u64) -> bool {
        let _ = (owner, entry);
        false
    }

    /// Frees every slot of `owner` and names its entries.
    pub fn release_owner(&mut self, owner: &Lifecycle) -> BTreeSet<u64> {
        self.owners.remove(owner).unwrap_or_default()
    }

    /// Entries that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}
