//! Joins in progress, for which fan-out waits.
//!
//! A join reads its cursor, and some time later hands its catch-up to the writer. If fan-out wrote
//! newer posts to the member in between, the member would get its first copies out of order
//! (`docs/wire.md` §3). So nothing is routed in that time. The wait is bounded, because many joins
//! must not hold up the space.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Longest wait for joins without a pause. A join needs a few round trips.
const LONGEST_JOIN_WAIT: Duration = Duration::from_secs(1);
/// After such a wait fan-out does not wait again for this long: joins cost it at most a twentieth.
const NO_JOIN_WAIT_FOR: Duration = Duration::from_secs(20);

/// The number of joins between their cursor and their catch-up.
#[derive(Debug, Clone, Default)]
pub(crate) struct JoinBarrier(Arc<watch::Sender<usize>>);

/// A join that fan-out waits for, until this is dropped.
#[derive(Debug)]
pub(crate) struct JoinInProgress(JoinBarrier);

impl JoinBarrier {
    /// Announces a join that is about to read its cursor.
    pub(crate) fn begin(&self) -> JoinInProgress {
        self.0.send_modify(|joining| *joining += 1);
        JoinInProgress(self.clone())
    }

    /// Whether a join is in progress.
    pub(crate) fn any(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Returns when no join is in progress, or at `end`. Cancel-safe.
    pub(crate) async fn passed(&self, end: Instant) {
        let mut joining = self.0.subscribe();
        let _ = timeout_at(end, joining.wait_for(|joining| *joining == 0)).await;
    }
}

impl Drop for JoinInProgress {
    fn drop(&mut self) {
        self.0.0.send_modify(|joining| *joining -= 1);
    }
}

/// Whether fan-out waits for joins now.
#[derive(Debug, Default)]
pub(crate) struct BarrierPolicy {
    since: Option<Instant>,
    tired_until: Option<Instant>,
}

impl BarrierPolicy {
    /// Until when to wait at most, given whether a join is in progress; `None` if not to wait.
    pub(crate) fn until(&mut self, joining: bool, now: Instant) -> Option<Instant> {
        if !joining || self.tired_until.is_some_and(|until| now < until) {
            self.since = None;
            return None;
        }
        let end = *self.since.get_or_insert(now) + LONGEST_JOIN_WAIT;
        if now < end {
            return Some(end);
        }
        (self.since, self.tired_until) = (None, Some(now + NO_JOIN_WAIT_FOR));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_is_under_way_until_it_is_dropped() {
        let joins = JoinBarrier::default();
        let (first, second) = (joins.begin(), joins.begin());
        drop(first);
        assert!(joins.any());
        drop(second);
        assert!(!joins.any());
    }

    #[tokio::test(start_paused = true)]
    async fn a_join_has_passed_when_it_is_dropped_or_takes_too_long() {
        let joins = JoinBarrier::default();
        let end = Instant::now() + LONGEST_JOIN_WAIT;
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
        let mut barrier_policy = BarrierPolicy::default();
        let begin = Instant::now();
        assert_eq!(barrier_policy.until(false, begin), None);
        assert_eq!(barrier_policy.until(true, begin), Some(begin + LONGEST_JOIN_WAIT));
        assert_eq!(barrier_policy.until(false, begin + LONGEST_JOIN_WAIT / 2), None, "it passed");
        let again = begin + LONGEST_JOIN_WAIT;
        let end = again + LONGEST_JOIN_WAIT;
        assert_eq!(barrier_policy.until(true, again), Some(end), "another one is waited for anew");
        assert_eq!(
            barrier_policy.until(true, again + LONGEST_JOIN_WAIT / 2),
            Some(end),
            "the end stays"
        );
        assert_eq!(barrier_policy.until(true, end), None, "too long");
        assert_eq!(
            barrier_policy.until(true, end + NO_JOIN_WAIT_FOR / 2),
            None,
            "joins follow on each other"
        );
        assert!(barrier_policy.until(true, end + NO_JOIN_WAIT_FOR).is_some());
    }
}
