//! Starts the watch of a bucket.

use std::time::Duration;

use cotal_nats::{Bucket as Kv, NatsError, Watch, WatchOptions};
use tracing::warn;

/// Between two attempts to start a watch.
pub(crate) const WATCH_RETRY_AFTER: Duration = Duration::from_millis(200);

/// Starts to watch a bucket. If the connection drops, it waits, as a running watch does: only the
/// watchdog gives up the broker.
pub(crate) async fn watch_all(kv: &Kv) -> Result<Watch, NatsError> {
    watch_with(kv, &WatchOptions::default()).await
}

/// The same, with every revision that the bucket holds, oldest first.
pub(crate) async fn watch_history(kv: &Kv) -> Result<Watch, NatsError> {
    watch_with(kv, &WatchOptions { history: true, ..WatchOptions::default() }).await
}

async fn watch_with(kv: &Kv, options: &WatchOptions) -> Result<Watch, NatsError> {
    loop {
        match kv.watch(options.clone()).await {
            Err(error) if error.is_transient() => {
                warn!(bucket = kv.name(), %error, "cannot watch a bucket yet; retrying");
                tokio::time::sleep(WATCH_RETRY_AFTER).await;
            }
            begun => return begun,
        }
    }
}
