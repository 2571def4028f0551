//! What one lane counts since it started; shown by `deliveryStatus`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use cotal_rules::misses::Misses;
use cotal_rules::unrouted::Miss;
use cotal_wire::Principal;
use cotal_wire::control::{DeliveryStatus, MissedCopies, UnroutedPosts};

/// Monotonic counts; cheap enough for the hot path.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) posts: AtomicU64,
    pub(crate) copies: AtomicU64,
    pub(crate) refused_posts: AtomicU64,
    pub(crate) delivered: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) parked: AtomicU64,
    pub(crate) given_up: AtomicU64,
    pub(crate) armed_timers: AtomicU64,
    pub(crate) refused_timers: AtomicU64,
    pub(crate) corrected: AtomicU64,
    missed: Mutex<HashMap<Principal, u64>>,
    unrouted: Mutex<Vec<UnroutedPosts>>,
    /// What members missed and were not told of yet.
    misses: Mutex<Misses>,
}

/// Adds to a count.
pub(crate) fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Ordering::Relaxed);
}

impl Counters {
    /// Counts unread copies of `member` that a stream's cap discarded.
    pub(crate) fn add_missed(&self, member: &Principal, n: u64) {
        let mut missed = self.missed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *missed.entry(member.clone()).or_default() += n;
    }

    /// Counts posts that were never routed.
    pub(crate) fn add_unrouted(&self, miss: &Miss) {
        let (sender, channel) = miss.of.clone().unzip();
        let mut all = self.unrouted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match all.iter_mut().find(|known| known.sender == sender && known.channel == channel) {
            Some(known) => {
                known.first = known.first.min(miss.first);
                known.last = known.last.max(miss.last);
                known.at_least += miss.at_least;
                known.at_most += miss.at_most;
            }
            None => all.push(UnroutedPosts {
                sender,
                channel,
                first: miss.first,
                last: miss.last,
                at_least: miss.at_least,
                at_most: miss.at_most,
            }),
        }
    }

    /// What members missed, to be added to or told.
    pub(crate) fn misses(&self) -> MutexGuard<'_, Misses> {
        self.misses.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Everything counted so far.
    pub(crate) fn status(
        &self,
        incarnation: &str,
        since: i64,
        garbled_rows: u64,
    ) -> DeliveryStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let missed = self.missed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut missed: Vec<_> = missed
            .iter()
            .map(|(member, &missed)| MissedCopies { member: member.clone(), missed })
            .collect();
        let unrouted = self.unrouted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        missed.sort_by(|a, b| a.member.cmp(&b.member));
        DeliveryStatus {
            incarnation: incarnation.to_owned(),
            since,
            posts: read(&self.posts),
            copies: read(&self.copies),
            refused_posts: read(&self.refused_posts),
            delivered: read(&self.delivered),
            denied: read(&self.denied),
            waiting: 0,
            parked: read(&self.parked),
            given_up: read(&self.given_up),
            garbled_rows,
            armed_timers: read(&self.armed_timers),
            refused_timers: read(&self.refused_timers),
            down: Vec::new(),
            corrected: read(&self.corrected),
            missed,
            unrouted: unrouted.clone(),
        }
    }
}
