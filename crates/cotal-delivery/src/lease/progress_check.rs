//! The lease's part in the proof of progress. It answers only when the broker itself shows this
//! run's row, the row says `ready`, and its last renewal was stored.

use std::time::Duration;

use cotal_nats::Bucket as Kv;
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lane::context::LaneContext;
use crate::lease::handle::LeaseState;
use crate::loop_progress::LoopReporter;

/// Between two reads of a row that does not say `ready` yet.
const LEASE_POLL_EVERY: Duration = Duration::from_millis(200);

struct LeaseProgress {
    kv: Kv,
    incarnation: String,
    state: watch::Receiver<LeaseState>,
    reporter: LoopReporter,
}

/// Starts the witness of the lane's lease.
pub(crate) fn spawn(context: &LaneContext, state: watch::Receiver<LeaseState>) {
    let progress = LeaseProgress {
        kv: context.kv(Bucket::Delivery),
        incarnation: context.incarnation.clone(),
        state,
        reporter: context.reporter("the lease"),
    };
    context.spawn("the lease's witness", progress.run(context.stop.clone()));
}

impl LeaseProgress {
    /// Reads the row whenever it is called, until told to stop.
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let mut call = tokio::select! {
                () = stop.cancelled() => return,
                call = self.reporter.called() => call,
            };
            while !self.stands().await {
                tokio::select! {
                    () = stop.cancelled() => return,
                    newer = self.reporter.called() => call = newer,
                    () = tokio::time::sleep(LEASE_POLL_EVERY) => {}
                }
            }
            self.reporter.answer(call);
        }
    }

    /// That the row can be read proves nothing if the store is full, so the last renewal must have
    /// been stored too.
    async fn stands(&self) -> bool {
        if self.state.borrow().is_refused {
            return false;
        }
        let Ok(Some(entry)) = self.kv.get(LEASE_KEY).await else { return false };
        let row = entry.live().and_then(|value| LeaseRow::parse(value).ok());
        row.is_some_and(|row| row.ready && row.incarnation == self.incarnation)
    }
}
