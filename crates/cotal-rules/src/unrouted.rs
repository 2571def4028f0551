//! Posts that CHAT lost before they were routed: found by their sequences, and reported once per
//! episode.
//!
//! CHAT numbers its posts without a gap and keeps all of them below its cap per subject. So a
//! sequence that the fan-out consumer has passed, and that never came here, was removed from CHAT:
//! by the cap, if a subject is full and all that it still holds is newer; otherwise by hand.
//!
//! Posts that a predecessor had pulled and not settled by the start are *doubtful*: it may have
//! settled some of them out of order, which the broker does not tell.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use cotal_wire::{Channel, Principal};
use hashbrown::HashMap;

/// An episode ends when nothing more was lost for this long, in milliseconds.
const EPISODE_OVER_MS: i64 = 60_000;

/// Posts that never came here, by their sequences on CHAT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// These were never routed.
    pub certain: Vec<RangeInclusive<u64>>,
    /// A predecessor may have routed these.
    pub doubtful: Vec<RangeInclusive<u64>>,
}

impl Lost {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certain.is_empty() && self.doubtful.is_empty()
    }

    /// Adds more.
    pub fn add(&mut self, other: Self) {
        self.certain.extend(other.certain);
        self.doubtful.extend(other.doubtful);
    }
}

/// The posts that have not come here, although newer ones have.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    highest: u64,
    /// A predecessor may have settled some posts up to here.
    doubtful_to: u64,
    /// First and last of each range that has not come here.
    absent: BTreeMap<u64, u64>,
}

impl Arrivals {
    /// Starts at the consumer's position: everything up to `floor` is settled, and `delivered` was
    /// the last post that a predecessor pulled.
    #[must_use]
    pub fn start(floor: u64, delivered: u64) -> Self {
        let mut absent = BTreeMap::new();
        if floor < delivered {
            absent.insert(floor + 1, delivered);
        }
        Self { highest: delivered, doubtful_to: delivered, absent }
    }

    /// A post has come, for the first time or again.
    pub fn arrived(&mut self, seq: u64) {
        if seq > self.highest {
            if seq > self.highest + 1 {
                self.absent.insert(self.highest + 1, seq - 1);
            }
            self.highest = seq;
            return;
        }
        let range = self.absent.range(..=seq).next_back().map(|(first, last)| (*first, *last));
        let Some((first, last)) = range.filter(|(_, last)| seq <= *last) else { return };
        self.absent.remove(&first);
        if first < seq {
            self.absent.insert(first, seq - 1);
        }
        if seq < last {
            self.absent.insert(seq + 1, last);
        }
    }

    /// Whether no post below the highest one is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.absent.is_empty()
    }

    /// The posts that can no longer come, because the consumer has provably passed `passed`.
    pub fn lost(&mut self, passed: u64) -> Lost {
        let mut lost = Lost::default();
        while let Some((first, last)) = self.absent.pop_first() {
            if first > passed {
                self.absent.insert(first, last);
                break;
            }
            let end = last.min(passed);
            if end < last {
                self.absent.insert(end + 1, last);
            }
            if first <= self.doubtful_to {
                lost.doubtful.push(first..=end.min(self.doubtful_to));
            }
            if end > self.doubtful_to {
                lost.certain.push(first.max(self.doubtful_to + 1)..=end);
            }
        }
        lost
    }
}

/// A subject that is at CHAT's cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullSubject {
    /// Who posts on it.
    pub sender: Principal,
    /// Where.
    pub channel: Channel,
    /// The oldest post that it still holds.
    pub oldest: u64,
}

/// Lost posts of one sender on one channel; their number is known between two bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// Sender and channel; `None` when no full subject explains the loss.
    pub of: Option<(Principal, Channel)>,
    /// The lowest sequence.
    pub first: u64,
    /// The highest.
    pub last: u64,
    /// At least this many are of this sender and channel.
    pub at_least: u64,
    /// At most this many are.
    pub at_most: u64,
}

/// Whose the lost posts are. A lost post was on a full subject that holds nothing as old; if
/// several subjects qualify, it counts as possible for each.
#[must_use]
pub fn attribute(lost: &Lost, full: &[FullSubject]) -> Vec<Miss> {
    let mut oldest: Vec<u64> = full.iter().map(|subject| subject.oldest).collect();
    oldest.sort_unstable();
    // Below this sequence, at least two subjects may have held a lost post.
    let shared_below = oldest.len().checked_sub(2).map_or(0, |at| oldest[at]);
    let newest = oldest.last().copied().unwrap_or(0);
    let mut misses = Vec::new();
    for subject in full {
        let mine = if subject.oldest == newest { shared_below } else { u64::MAX };
        let certain = within(&lost.certain, mine, subject.oldest);
        let possible = within(&lost.certain, 0, subject.oldest);
        let doubtful = within(&lost.doubtful, 0, subject.oldest);
        let of = Some((subject.sender.clone(), subject.channel.clone()));
        misses.extend(miss(of, certain.count, &[possible, doubtful]));
    }
    // A post newer than the oldest of every full subject is explained by none. If such a post is
    // doubtful, a predecessor routed it.
    let unexplained = within(&lost.certain, newest, u64::MAX);
    misses.extend(miss(None, unexplained.count, &[unexplained]));
    misses
}

fn miss(of: Option<(Principal, Channel)>, at_least: u64, parts: &[Part]) -> Option<Miss> {
    let at_most = parts.iter().map(|part| part.count).sum();
    let first = parts.iter().filter_map(|part| part.first).min()?;
    let last = parts.iter().filter_map(|part| part.last).max()?;
    Some(Miss { of, first, last, at_least, at_most })
}

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    count: u64,
    first: Option<u64>,
    last: Option<u64>,
}

/// Which senders and channels are losing posts now, so that each episode is reported once.
#[derive(Debug, Default)]
pub struct Episodes {
    last_ms: HashMap<Option<(Principal, Channel)>, i64>,
}

impl Episodes {
    /// Whether this miss begins an episode.
    pub fn begins(&mut self, miss: &Miss, now_ms: i64) -> bool {
        self.last_ms.retain(|_, last| now_ms.saturating_sub(*last) < EPISODE_OVER_MS);
        self.last_ms.insert(miss.of.clone(), now_ms).is_none()
    }
}

/// The part of `ranges` at or above `from` and below `end`.
fn within(ranges: &[RangeInclusive<u64>], from: u64, end: u64) -> Part {
    let mut part = Part::default();
    for range in ranges {
        let first = (*range.start()).max(from);
        let after = range.end().saturating_add(1).min(end);
        if first < after {
            part.count += after - first;
            part.first = Some(part.first.map_or(first, |it| it.min(first)));
            part.last = Some(part.last.map_or(after - 1, |it| it.max(after - 1)));
        }
    }
    part
}

#[cfg(test)]
mod tests;
