//! Entries that must wait: when each is retried, and how many of the reader's slots they may take
//! (`wire.md` §3).
//!
//! An unacknowledged entry takes one of the reader's slots. One owner's waiting entries must never
//! hold up another's, so one owner's take at most [`MAX_PER_OWNER`] slots, and all owners' together
//! half of the consumer's. Whatever is beyond is parked, outside the consumer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cotal_wire::Lifecycle;
use cotal_wire::control::WaitingEntry;
use cotal_wire::rows::DeadReason;
use hashbrown::HashMap;

/// Slots that one owner's waiting entries may take.
pub const MAX_PER_OWNER: usize = 100;
/// Slots that all waiting entries together may take: half of the reader's 10,000, so that the
/// entries of a few hundred owners without an ACL row never stop those of the others.
pub const MAX_TOTAL: usize = 5_000;
/// Redeliveries after which the reader gives up an entry that waits for its owner's ACL row, or
/// that cannot be deleted.
pub const MAX_REDELIVERIES: u64 = 10;

/// What the reader does with a waiting entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nak it with this delay.
    Retry {
        /// The delay.
        delay: Duration,
    },
    /// Record it as parked, ack it, and retry it from the dead bucket.
    Park {
        /// When, Unix milliseconds.
        next_at: i64,
    },
    /// Record it as given up.
    GiveUp,
}

/// How long an entry waits after its `attempt`th delivery, counted from 1.
#[must_use]
pub fn retry_delay(attempt: u64) -> Duration {
    Duration::from_secs(match attempt {
        0 | 1 => 2,
        2 => 4,
        3 => 8,
        4 => 16,
        5 => 30,
        _ => 60,
    })
}

/// The same in milliseconds, to be added to Unix milliseconds.
fn retry_delay_ms(attempt: u64) -> i64 {
    i64::try_from(retry_delay(attempt).as_millis()).unwrap_or(i64::MAX)
}

/// How long a parked entry that is due at `next_at` still waits. The row's time is of the clock
/// when it was written; if the clock was set back since, the entry must not wait longer than the
/// delay it was given.
#[must_use]
pub fn due_in(next_at: i64, attempts: u64, now_ms: i64) -> Duration {
    let left = next_at.saturating_sub(now_ms).max(0).unsigned_abs();
    Duration::from_millis(left).min(retry_delay(attempts))
}

/// What happens to a parked entry after its retry failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It is retried.
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
    /// The stream's cap discarded them: misses.
    pub evicted: usize,
    /// Deleted on purpose, by a delete whose answer was lost.
    pub removed: usize,
}

/// Whether an entry that is gone was deleted on purpose: an entry has the reason
/// [`DeadReason::DeleteFailed`] only if it was to be deleted, and the unanswered delete may have
/// succeeded.
#[must_use]
pub fn is_removed(reason: DeadReason) -> bool {
    reason == DeadReason::DeleteFailed
}

/// Whether an entry that fails for this reason is given up after [`MAX_REDELIVERIES`]. An entry
/// that its member may read and that DLV does not accept is never given up for that.
fn is_given_up(reason: DeadReason) -> bool {
    matches!(reason, DeadReason::NoAclRow | DeadReason::DeleteFailed)
}

/// Decides about a parked entry that was tried `attempts` times before, the last time failing for
/// `before`, and has now failed for `reason`. Failed hand-offs do not add up to giving up; their
/// count stops at [`MAX_REDELIVERIES`], because a higher one would change the message id of the
/// copy.
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

/// Every entry that waits in the reader, and how many slots each owner's take.
#[derive(Debug, Default)]
pub struct Waiting {
    entries: BTreeMap<u64, WaitingEntry>,
    /// Entries that the broker holds as unacknowledged until it redelivers them.
    slots: HashMap<Lifecycle, BTreeSet<u64>>,
    slots_held: usize,
}

impl Waiting {
    /// Decides about an entry that must wait, delivered `entry.attempts` times so far (counted from
    /// 1). If `may_hold` is false, the reader must not leave it unacknowledged, so it is parked.
    pub fn on_wait(&mut self, owner: &Lifecycle, entry: WaitingEntry, may_hold: bool) -> Wait {
        let (seq, now_ms) = (entry.seq, entry.first_at);
        if is_given_up(entry.reason) && entry.attempts > MAX_REDELIVERIES {
            self.release(owner, seq);
            return Wait::GiveUp;
        }
        let next_at = now_ms.saturating_add(retry_delay_ms(entry.attempts));
        let delay = retry_delay(entry.attempts);
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
        Wait::Retry { delay }
    }

    /// Notes an entry that the reader itself holds on to: it takes no slot of its owner. An entry
    /// that is noted already keeps the time of its first try.
    pub fn note(&mut self, entry: WaitingEntry) {
        let first_at = self.entries.get(&entry.seq).map_or(entry.first_at, |it| it.first_at);
        self.entries.insert(entry.seq, WaitingEntry { first_at, ..entry });
    }

    /// Forgets an entry that no longer waits, and frees its slot.
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

    /// The lowest entry of each owner that takes a slot: the first that the stream's cap would
    /// discard.
    #[must_use]
    pub fn lowest(&self) -> Vec<(Lifecycle, u64)> {
        let lowest = |(owner, slots): (&Lifecycle, &BTreeSet<u64>)| {
            slots.first().map(|seq| (owner.clone(), *seq))
        };
        self.slots.iter().filter_map(lowest).collect()
    }

    /// Forgets `owner`'s entries below `first_held`, which the stream no longer holds.
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

    /// The lowest sequence of a waiting entry.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.entries.keys().next().copied()
    }

    /// The waiting entries beyond a sequence, in order.
    pub fn after(&self, seq: u64) -> impl Iterator<Item = &WaitingEntry> {
        self.entries.range(seq.saturating_add(1)..).map(|(_, entry)| entry)
    }

    /// How many entries wait.
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
