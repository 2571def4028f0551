//! Joins under way, which fan-out lets pass first.
//!
//! Between the moment at which a join reads its cursor and the moment at which its catch-up is handed to
//! the writer, fan-out could write newer posts to the member than those that the catch-up copies, and
//! the member would get its first copies out of order (`docs/wire.md` §3). So nothing is routed
//! meanwhile, within bounds: many joins must not hold the space up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for joins in one go. A join needs a few round trips.
const PATIENCE: Duration = Duration::from_secs(1);
/// After such a wait nothing is waited for, for as long: joins cost fan-out a twentieth at most.
const TIRED_FOR: Duration = Duration::from_secs(20);

/// How many joins are between their cursor and their catch-up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Joins(Arc<AtomicUsize>);

/// A join that fan-out waits for until this is dropped.
#[derive(Debug)]
pub(crate) struct Joining(Joins);

impl Joins {
    /// Announces a join that is about to read its cursor.
    pub(crate) fn begin(&self) -> Joining {
        self.0.fetch_add(1, Ordering::SeqCst);
        Joining(self.clone())
    }

    /// Whether one is under way.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether fan-out still waits for joins.
#[derive(Debug, Default)]
pub(crate) struct Deference {
    since: Option<Instant>,
    tired_until: Option<Instant>,
}

impl Deference {
    /// Whether to wait now, given whether a join is under way.
    pub(crate) fn waits(&mut self, joining: bool, now: Instant) -> bool {
        if !joining || self.tired_until.is_some_and(|until| now < until) {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < PATIENCE {
            return true;
        }
        (self.since, self.tired_until) = (None, Some(now + TIRED_FOR));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_is_under_way_until_it_is_dropped() {
        let joins = Joins::default();
        let (first, second) = (joins.begin(), joins.begin());
        drop(first);
        assert!(joins.any());
        drop(second);
        assert!(!joins.any());
    }

    #[test]
    fn fan_out_waits_for_joins_and_not_for_ever() {
        let mut deference = Deference::default();
        let begin = Instant::now();
        assert!(!deference.waits(false, begin));
        assert!(deference.waits(true, begin));
        assert!(!deference.waits(false, begin + PATIENCE / 2), "it passed");
        let again = begin + PATIENCE;
        assert!(deference.waits(true, again), "another one is waited for anew");
        assert!(!deference.waits(true, again + PATIENCE), "too long");
        let tired = again + PATIENCE + TIRED_FOR / 2;
        assert!(!deference.waits(true, tired), "joins follow on each other");
        assert!(deference.waits(true, again + PATIENCE + TIRED_FOR));
    }
}
