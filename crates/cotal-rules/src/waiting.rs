//! Entries that must wait: when they are tried again, and how many slots they may hold (`wire.md`
//! §3).
//!
//! An unacknowledged entry holds one of the reader's slots. Nobody's entries may ever stand behind
//! another's, so one owner's waiting entries hold at most [`MAX_PER_OWNER`] slots and all owners'
//! together half of the consumer; whatever is beyond is parked outside the consumer.

use std::collections::BTreeSet;

use cotal_wire::Lifecycle;
use hashbrown::HashMap;

/// Slots that one owner's waiting entries may hold.
pub const MAX_PER_OWNER: usize = 100;
/// Slots that all waiting entries together may hold: half of the reader's 10,000, so that a few
/// hundred dead owners never stop a living one.
pub const MAX_TOTAL: usize = 5_000;
/// Redeliveries after which an entry is given up.
pub const MAX_REDELIVERIES: u64 = 10;

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

/// How long an entry waits after its `attempt`th delivery, counted from 1, in milliseconds.
#[must_use]
pub fn retry_delay_ms(attempt: u64) -> i64 {
    match attempt {
        0 | 1 => 2_000,
        2 => 4_000,
        3 => 8_000,
        4 => 16_000,
        5 => 30_000,
        _ => 60_000,
    }
}

/// Who holds how many of the reader's slots.
#[derive(Debug, Default)]
pub struct Waiting {
    owners: HashMap<Lifecycle, BTreeSet<u64>>,
    total: usize,
}

impl Waiting {
    /// Decides for the entry at INBOX sequence `entry` on its `attempt`th delivery, counted from 1. One
    /// that the reader must not hold unacknowledged is parked.
    pub fn on_wait(
        &mut self,
        owner: &Lifecycle,
        entry: u64,
        attempt: u64,
        may_hold: bool,
        now_ms: i64,
    ) -> Wait {
        if attempt > MAX_REDELIVERIES {
            self.release(owner, entry);
            return Wait::GiveUp;
        }
        let delay_ms = retry_delay_ms(attempt);
        let next_at = now_ms.saturating_add(delay_ms);
        if !may_hold {
            self.release(owner, entry);
            return Wait::Park { next_at };
        }
        let slots = self.owners.get(owner);
        let holds = slots.is_some_and(|slots| slots.contains(&entry));
        let full = slots.is_some_and(|slots| slots.len() >= MAX_PER_OWNER);
        if !holds && (full || self.total >= MAX_TOTAL) {
            return Wait::Park { next_at };
        }
        if !holds {
            self.owners.entry(owner.clone()).or_default().insert(entry);
            self.total += 1;
        }
        Wait::Retry { delay_ms }
    }

    /// Frees the slot of an entry that waits no longer; says whether it held one.
    pub fn release(&mut self, owner: &Lifecycle, entry: u64) -> bool {
        let Some(slots) = self.owners.get_mut(owner) else {
            return false;
        };
        let held = slots.remove(&entry);
        if slots.is_empty() {
            self.owners.remove(owner);
        }
        self.total -= usize::from(held);
        held
    }

    /// Frees every slot of `owner` and names its entries.
    pub fn release_owner(&mut self, owner: &Lifecycle) -> BTreeSet<u64> {
        let entries = self.owners.remove(owner).unwrap_or_default();
        self.total -= entries.len();
        entries
    }

    /// Every owner's lowest waiting entry: the first that its store's cap would take.
    #[must_use]
    pub fn lowest(&self) -> Vec<(Lifecycle, u64)> {
        let lowest = |(owner, slots): (&Lifecycle, &BTreeSet<u64>)| {
            slots.first().map(|entry| (owner.clone(), *entry))
        };
        self.owners.iter().filter_map(lowest).collect()
    }

    /// Frees the slots of `owner`'s entries below `first_held`, which its store no longer holds, and
    /// names them.
    pub fn release_below(&mut self, owner: &Lifecycle, first_held: u64) -> BTreeSet<u64> {
        let Some(slots) = self.owners.get_mut(owner) else {
            return BTreeSet::new();
        };
        let held = slots.split_off(&first_held);
        let gone = std::mem::replace(slots, held);
        if slots.is_empty() {
            self.owners.remove(owner);
        }
        self.total -= gone.len();
        gone
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

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(n: usize) -> Lifecycle {
        Lifecycle::parse(&format!("local.a{n}.{}", "a".repeat(26))).unwrap()
    }

    #[test]
    fn rdr_8_ten_redeliveries_take_minutes_and_then_the_entry_is_given_up() {
        let mut waiting = Waiting::default();
        let delays: Vec<i64> = (1..=10)
            .map(|attempt| match waiting.on_wait(&owner(1), 7, attempt, true, 0) {
                Wait::Retry { delay_ms } => delay_ms / 1_000,
                other => panic!("attempt {attempt}: {other:?}"),
            })
            .collect();
        assert_eq!(delays, [2, 4, 8, 16, 30, 60, 60, 60, 60, 60]);
        assert_eq!(waiting.len(), 1, "one entry holds one slot however often it comes back");
        assert_eq!(waiting.on_wait(&owner(1), 7, 11, true, 0), Wait::GiveUp);
        assert!(waiting.is_empty(), "a given-up entry holds no slot");
    }

    #[test]
    fn what_must_not_be_held_is_parked_and_leaves_its_slot() {
        let mut waiting = Waiting::default();
        waiting.on_wait(&owner(1), 7, 1, true, 0);
        let parked = waiting.on_wait(&owner(1), 7, 2, false, 5);
        assert_eq!((parked, waiting.len()), (Wait::Park { next_at: 4_005 }, 0));
        assert_eq!(waiting.on_wait(&owner(1), 7, 11, false, 0), Wait::GiveUp);
    }

    #[test]
    fn evicted_entries_free_their_slots() {
        let mut waiting = Waiting::default();
        for entry in [3, 5, 8] {
            waiting.on_wait(&owner(1), entry, 1, true, 0);
        }
        assert_eq!(waiting.lowest(), [(owner(1), 3)]);
        assert_eq!(waiting.release_below(&owner(1), 6), BTreeSet::from([3, 5]));
        assert_eq!((waiting.len(), waiting.lowest()), (1, vec![(owner(1), 8)]));
        assert_eq!(waiting.release_below(&owner(1), u64::MAX), BTreeSet::from([8]));
        assert_eq!(waiting.release_below(&owner(1), u64::MAX), BTreeSet::new());
        assert!(waiting.is_empty() && waiting.lowest().is_empty());
    }

    #[test]
    fn beyond_its_slots_an_owner_is_parked_and_nobody_else_is() {
        let mut waiting = Waiting::default();
        for entry in 0..100 {
            let wait = waiting.on_wait(&owner(1), entry, 1, true, 0);
            assert_eq!(wait, Wait::Retry { delay_ms: 2_000 });
        }
        assert_eq!(waiting.on_wait(&owner(1), 100, 1, true, 5), Wait::Park { next_at: 2_005 });
        let held = waiting.on_wait(&owner(1), 50, 2, true, 0);
        assert_eq!(held, Wait::Retry { delay_ms: 4_000 }, "it keeps the slot it holds");
        let other = waiting.on_wait(&owner(2), 100, 1, true, 0);
        assert_eq!(other, Wait::Retry { delay_ms: 2_000 });
        assert!(waiting.release(&owner(1), 50));
        assert!(!waiting.release(&owner(1), 50));
        let freed = waiting.on_wait(&owner(1), 100, 1, true, 0);
        assert_eq!(freed, Wait::Retry { delay_ms: 2_000 });
        assert_eq!(waiting.release_owner(&owner(1)).len(), 100);
        assert_eq!(waiting.len(), 1);
    }

    #[test]
    fn many_dead_owners_leave_half_of_the_slots_free() {
        let mut waiting = Waiting::default();
        let mut parked = 0;
        for n in 0..200 {
            for entry in 0..50 {
                let wait = waiting.on_wait(&owner(n), entry, 1, true, 0);
                parked += usize::from(matches!(wait, Wait::Park { .. }));
            }
        }
        assert_eq!((waiting.len(), parked), (MAX_TOTAL, 200 * 50 - MAX_TOTAL));
    }
}
