//! The freshness barrier.

use std::time::Duration;

use cotal_nats::NatsError;
use tokio::sync::{Notify, watch, watch::error::RecvError};
use tokio::time::timeout;

use super::{Feed, Progress, View};

/// How long a lagging watch is waited for before the caller is told.
const FRESH_WITHIN: Duration = Duration::from_secs(5);
/// A watch that has not told a row by then begins anew: its consumer may be gone without a word.
const BEHIND_AFTER: Duration = Duration::from_secs(2);

impl View {
    /// Waits until what the buckets hold *now* has been applied.
    ///
    /// # Errors
    /// When the broker does not say so, or a watch stays behind: then nothing may be decided.
    pub(crate) async fn fresh(&self, feeds: &[Feed]) -> Result<(), NatsError> {
        let barriers = feeds.iter().map(|&feed| self.fresh_one(feed));
        futures_util::future::try_join_all(barriers).await.map(drop)
    }

    async fn fresh_one(&self, feed: Feed) -> Result<(), NatsError> {
        let followed = &self.feeds[feed.index()];
        let mut progress = followed.progress.subscribe();
        let caught_up = async {
            loop {
                let applied = progress.borrow_and_update().applied;
                let next = match followed.kv.next_after(applied).await {
                    // Without a bucket nobody is present.
                    Err(NatsError::Absent { .. }) if feed == Feed::Presence => return Ok(()),
                    next => next?,
                };
                let Some(next) = next else { return Ok(()) };
                if reached(&mut progress, next, &followed.behind).await.is_err() {
                    return Err(NatsError::Closed);
                }
            }
        };
        timeout(FRESH_WITHIN, caught_up).await.unwrap_or_else(|_| {
            let what = format!("the watch of {} to catch up", self.space.bucket(feed.bucket()));
            Err(NatsError::Timeout { what, after: FRESH_WITHIN })
        })
    }
}

/// Waits until `next` is applied; a watch that stays behind is told.
async fn reached(
    progress: &mut watch::Receiver<Progress>,
    next: u64,
    behind: &Notify,
) -> Result<(), RecvError> {
    let is_applied = |progress: &Progress| progress.applied >= next;
    let soon = timeout(BEHIND_AFTER, progress.wait_for(is_applied)).await;
    if let Ok(reached) = soon.map(|reached| reached.map(drop)) {
        return reached;
    }
    behind.notify_one();
    progress.wait_for(is_applied).await.map(drop)
}
