//! Hand-offs in flight: entries that were judged and are not settled yet.
//!
//! Invariant: a recall after an ACL change waits for every hand-off that was judged before the
//! change, and for none that was judged after it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// Tracks every hand-off in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightFence(watch::Sender<InFlight>);

/// The numbers of hand-offs, in the order in which they began.
#[derive(Debug, Default)]
struct InFlight {
    next: u64,
    open: BTreeSet<u64>,
}

/// A hand-off in flight, until this is dropped.
#[derive(Debug)]
pub(crate) struct HandOffInFlight {
    fence: Arc<InFlightFence>,
    number: u64,
}

impl InFlightFence {
    /// Begins a hand-off. Call it while holding the lock on the directory that judges it.
    pub(crate) fn begin(self: &Arc<Self>) -> HandOffInFlight {
        let mut number = 0;
        self.0.send_modify(|in_flight| {
            number = in_flight.next;
            in_flight.next += 1;
            in_flight.open.insert(number);
        });
        HandOffInFlight { fence: Arc::clone(self), number }
    }

    /// Waits until every hand-off that had begun before this call has ended.
    pub(crate) async fn passed(&self) {
        let mut seen = self.0.subscribe();
        let end = seen.borrow().next;
        let before =
            |in_flight: &InFlight| in_flight.open.first().is_none_or(|first| *first >= end);
        // The sender is `self`, so this never fails.
        let _ = seen.wait_for(before).await;
    }
}

impl Drop for HandOffInFlight {
    fn drop(&mut self) {
        self.fence.0.send_modify(|in_flight| {
            in_flight.open.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_recall_waits_for_what_began_before_it_alone() {
        let fence = Arc::new(InFlightFence::default());
        let before = fence.begin();
        let passed = fence.passed();
        tokio::pin!(passed);
        assert!(futures_util::poll!(&mut passed).is_pending());
        let _after = fence.begin();
        drop(before);
        passed.await;
    }
}
