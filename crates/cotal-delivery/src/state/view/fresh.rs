//! The freshness barrier.

use std::time::Duration;

use cotal_nats::NatsError;
use tokio::time::timeout;

use super::{Feed, View};

/// How long `fresh` waits for a lagging watch.
const FRESH_WITHIN: Duration = Duration::from_secs(5);

impl View {
    /// Waits until everything that the buckets hold *now* has been applied.
    ///
    /// # Errors
    /// If the broker does not answer, or a watch stays behind; then nothing may be decided.
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
                if progress.wait_for(|p| p.applied >= next).await.is_err() {
                    return Err(NatsError::Closed);
                }
            }
        };
        timeout(FRESH_WITHIN, caught_up).await.unwrap_or_else(|_| {
            // The consumer of the watch may be gone without a word.
            followed.behind.notify_one();
            let what = format!("the watch of {} to catch up", self.space.bucket(feed.bucket()));
            Err(NatsError::Timeout { what, after: FRESH_WITHIN })
        })
    }
}
