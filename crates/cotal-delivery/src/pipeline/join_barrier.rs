//! Joins under way, which fan-out lets pass first.
//!
//! Between the moment at which a join reads its cursor and the moment at which its catch-up is handed to
//! the writer, fan-out could write newer posts to the member than those that the catch-up copies, and
//! the member would get its first copies out of order (`docs/wire.md` §3). So nothing is routed
//! meanwhile, within bounds: many joins must not hold the space up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Longest wait for joins in one go. A join needs a few round trips.
const PATIENCE: Duration = Duration::from_secs(1);
/// After such a wait nothing is waited for, for as long: joins cost fan-out a twentieth at most.
const TIRED_FOR: Duration = Duration::from_secs(20);

/// How many joins are between their cursor and their catch-up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Joins(Arc<watch::Sender<usize>>);

/// A join that fan-out waits for until this is dropped.
#[derive(Debug)]
pub(crate) struct Joining(Joins);

impl Joins {
    /// Announces a join that is about to read its cursor.
    pub(crate) fn begin(&self) -> Joining {
        self.0.send_modify(|joining| *joining += 1);
        Joining(self.clone())
    }

    /// Whether one is under way.
    pub(crate) fn any(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Returns when none is under way, or at `end`. Cancel-safe.
    pub(crate) async fn passed(&self, end: Instant) {
        let mut joining = self.0.subscribe();
        let _ = timeout_at(end, joining.wait_for(|joining| *joining == 0)).await;
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.0.send_modify(|joining| *joining -= 1);
    }
}

/// Whether fan-out still waits for joins.
#[derive(Debug, Default)]
pub(crate) struct Deference {
    since: Option<Instant>,
    tired_until: Option<Instant>,
}

impl Deference {
    /// Until when to wait at most, given whether a join is under way; `None` when not to wait.
    pub(crate) fn until(&mut self, joining: bool, now: Instant) -> Option<Instant> {
        if !joining || self.tired_until.is_some_and(|until| now < until) {
            self.since = None;
            return None;
        }
        let end = *self.since.get_or_insert(now) + PATIENCE;
        if now < end {
            return Some(end);
        }
        (self.since, self.tired_until) = (None, Some(now + TIRED_FOR));
        None
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

    #[tokio::test(start_paused = true)]
    async fn a_join_has_passed_when_it_is_dropped_or_takes_too_long() {
        let joins = Joins::default();
        let end = Instant::now() + PATIENCE;
        joins.passed(end).await;
        assert!(Instant::now() < end, "there was none");
        let joining = joins.begin();
        tokio::join!(joins.passed(end), async { drop(joining) });
        assert!(Instant::now() < end, "it was dropped");
        let _joining = joins.begin();
        joins.passed(end).await;
        assert!(Instant::now() >= end, "it is still under way");
    }

    #[test]
    fn fan_out_waits_for_joins_and_not_for_ever() {
        let mut deference = Deference::default();
        let begin = Instant::now();
        assert_eq!(deference.until(false, begin), None);
        assert_eq!(deference.until(true, begin), Some(begin + PATIENCE));
        assert_eq!(deference.until(false, begin + PATIENCE / 2), None, "it passed");
        let again = begin + PATIENCE;
        let end = again + PATIENCE;
        assert_eq!(deference.until(true, again), Some(end), "another one is waited for anew");
        assert_eq!(deference.until(true, again + PATIENCE / 2), Some(end), "the end stays");
        assert_eq!(deference.until(true, end), None, "too long");
        assert_eq!(deference.until(true, end + TIRED_FOR / 2), None, "joins follow on each other");
        assert!(deference.until(true, end + TIRED_FOR).is_some());
    }
}
