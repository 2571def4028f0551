//! Entries that must wait: when they are tried again, and how many slots they may hold (`wire.md`
//! §3).
//!
//! An unacknowledged entry holds one of the reader's slots. Nobody's entries may ever stand behind
//! another's, so one owner's waiting entries hold at most [`MAX_PER_OWNER`] slots and all owners'
//! together half of the consumer; whatever is beyond is parked outside the consumer.

use std::collections::{BTreeMap, BTreeSet};

use cotal_wire::Lifecycle;
use cotal_wire::control::WaitingEntry;
use cotal_wire::rows::DeadReason;
use hashbrown::HashMap;

/// Slots that one owner's waiting entries may hold.
pub const MAX_PER_OWNER: usize = 100;
/// Slots that all waiting entries together may hold: half of the reader's 10,000, so that a few
/// hundred dead owners never stop a living one.
pub const MAX_TOTAL: usize = 5_000;
/// Redeliveries after which an entry is given up whose owner has no ACL row, or that cannot be
/// deleted.
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

/// How long a parked entry that is due at `next_at` still waits, in milliseconds. A row says so by
/// the
/// clock of its time; a clock that was set back since must not make it wait for longer than the
/// delay
/// it was given.
#[must_use]
pub fn due_in_ms(next_at: i64, attempts: u64, now_ms: i64) -> i64 {
    next_at.saturating_sub(now_ms).clamp(0, retry_delay_ms(attempts))
}

/// What becomes of a parked entry whose retry failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It is tried again.
    At {
        /// How often it was tried, as its row states it.
        attempts: u64,
        /// When, Unix milliseconds.
        next_at: i64,
    },
    /// It is given up.
    GiveUp {
        /// How often it was tried.
        attempts: u64,
    },
}

/// Entries that a store no longer holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gone {
    /// Taken by the store's cap: misses.
    pub evicted: usize,
    /// Removed on purpose, by a delete whose answer was lost.
    pub removed: usize,
}

/// Whether an entry that is gone was removed on purpose: only what must be removed waits for this
/// reason, and its delete may have succeeded without an answer.
#[must_use]
pub fn is_removed(reason: DeadReason) -> bool {
    reason == DeadReason::DeleteFailed
}

/// Whether an entry that fails for this reason ends after [`MAX_REDELIVERIES`]. One that its member
/// may
/// have and that DLV does not take waits for as long as it takes.
fn is_given_up(reason: DeadReason) -> bool {
    matches!(reason, DeadReason::NoAclRow | DeadReason::DeleteFailed)
}

/// Decides for a parked entry that was tried `attempts` times before, last for the reason `before`,
/// and
/// now failed for `reason`. Failed hand-offs do not count against it: more than
/// [`MAX_REDELIVERIES`]
/// would also change the message id of its copy.
#[must_use]
pub fn parked_again(before: DeadReason, attempts: u64, reason: DeadReason, now_ms: i64) -> Again {
    let tried = match (before, reason) {
        (_, DeadReason::HandoffFailed) => (attempts + 1).min(MAX_REDELIVERIES),
        (DeadReason::HandoffFailed, _) => 1,
        _ => attempts + 1,
    };
    let is_over = is_given_up(reason) && tried > MAX_REDELIVERIES;
    if is_over || reason == DeadReason::TooLarge {
        return Again::GiveUp { attempts: attempts + 1 };
    }
    Again::At { attempts: tried, next_at: now_ms.saturating_add(retry_delay_ms(tried)) }
}

/// Every entry that waits in the reader, and who holds how many of its slots.
#[derive(Debug, Default)]
pub struct Waiting {
    entries: BTreeMap<u64, WaitingEntry>,
    /// Those that are unacknowledged at the broker until they come again.
    slots: HashMap<Lifecycle, BTreeSet<u64>>,
    slots_held: usize,
}

impl Waiting {
    /// Decides for an entry that was delivered `entry.attempts` times, counted from 1, and must
    /// wait. One
    /// that the reader must not hold unacknowledged is parked.
    pub fn on_wait(&mut self, owner: &Lifecycle, entry: WaitingEntry, may_hold: bool) -> Wait {
        let (seq, now_ms) = (entry.seq, entry.first_at);
        if is_given_up(entry.reason) && entry.attempts > MAX_REDELIVERIES {
            self.release(owner, seq);
            return Wait::GiveUp;
        }
        let delay_ms = retry_delay_ms(entry.attempts);
        let next_at = now_ms.saturating_add(delay_ms);
        if !may_hold {
            self.release(owner, seq);
            return Wait::Park { next_at };
        }
        let slots = self.slots.get(owner);
        let holds = slots.is_some_and(|slots| slots.contains(&seq));
        let full = slots.is_some_and(|slots| slots.len() >= MAX_PER_OWNER);
        if !holds && (full || self.slots_held >= MAX_TOTAL) {
            self.entries.remove(&seq);
            return Wait::Park { next_at };
        }
        if !holds {
            self.slots.entry_ref(owner).or_default().insert(seq);
            self.slots_held += 1;
        }
        self.note(entry);
        Wait::Retry { delay_ms }
    }

    /// Notes an entry that the reader keeps in its hands: it holds no slot of its owner. One that
    /// is
    /// known keeps the time of its first try.
    pub fn note(&mut self, entry: WaitingEntry) {
        let first_at = self.entries.get(&entry.seq).map_or(entry.first_at, |it| it.first_at);
        self.entries.insert(entry.seq, WaitingEntry { first_at, ..entry });
    }

    /// Forgets an entry that waits no longer, and frees its slot.
    pub fn release(&mut self, owner: &Lifecycle, seq: u64) {
        if self.entries.remove(&seq).is_none() {
            return;
        }
        let Some(slots) = self.slots.get_mut(owner) else { return };
        self.slots_held -= usize::from(slots.remove(&seq));
        if slots.is_empty() {
            self.slots.remove(owner);
        }
    }

    /// Every owner's lowest entry that holds a slot: the first that its store's cap would take.
    #[must_use]
    pub fn lowest(&self) -> Vec<(Lifecycle, u64)> {
        let lowest = |(owner, slots): (&Lifecycle, &BTreeSet<u64>)| {
            slots.first().map(|seq| (owner.clone(), *seq))
        };
        self.slots.iter().filter_map(lowest).collect()
    }

    /// Forgets `owner`'s entries below `first_held`, which its store no longer holds.
    pub fn release_below(&mut self, owner: &Lifecycle, first_held: u64) -> Gone {
        let below = |slots: &BTreeSet<u64>| slots.range(..first_held).copied().collect();
        let seqs: Vec<u64> = self.slots.get(owner).map(below).unwrap_or_default();
        let mut gone = Gone::default();
        for seq in seqs {
            let reason = self.entries.get(&seq).map(|entry| entry.reason);
            match reason {
                Some(reason) if is_removed(reason) => gone.removed += 1,
                _ => gone.evicted += 1,
            }
            self.release(owner, seq);
        }
        gone
    }

    /// The lowest sequence that waits.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.entries.keys().next().copied()
    }

    /// What waits beyond a sequence, in order.
    pub fn after(&self, seq: u64) -> impl Iterator<Item = &WaitingEntry> {
        self.entries.range(seq.saturating_add(1)..).map(|(_, entry)| entry)
    }

    /// Entries that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests;
