//! The watch of the lease row: bound once the claim is won, and bound again whenever it is lost.

use std::pin::Pin;
use std::time::Duration;

use cotal_nats::{Bucket as Kv, NatsError, Watch, WatchEvent, WatchOptions};
use cotal_wire::Space;
use cotal_wire::names::LEASE_KEY;
use tracing::{info, warn};

/// Between two attempts to bind the watch.
const BIND_RETRY_AFTER: Duration = Duration::from_millis(500);

type Binding = Pin<Box<dyn Future<Output = Result<Watch, NatsError>> + Send>>;

/// The watch, bound or not.
pub(super) struct LeaseWatch {
    space: Space,
    kv: Kv,
    bound: Option<Watch>,
    binding: Option<Binding>,
    /// Whether the log says that it is not bound.
    said: bool,
}

/// An event of the watch.
pub(super) enum News {
    /// It is bound; the current row comes next.
    Bound,
    /// It is no longer bound; changes from now on must be read.
    Lost,
    /// The watch shows something.
    Event(WatchEvent),
}

impl LeaseWatch {
    pub(super) fn new(space: &Space, kv: &Kv) -> Self {
        let (space, kv) = (space.clone(), kv.clone());
        Self { space, kv, bound: None, binding: None, said: false }
    }

    /// Begins to bind it, unless that was done. A refused daemon binds nothing, so this comes after
    /// the claim (LSE-1).
    pub(super) fn begin(&mut self) {
        if self.bound.is_none() && self.binding.is_none() {
            self.bind_after(Duration::ZERO);
        }
    }

    /// Whether a loss of the row would be noticed now (LSE-6).
    pub(super) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The next event; pends until [`Self::begin`]. Cancel-safe.
    pub(super) async fn next(&mut self) -> News {
        loop {
            if let Some(watch) = &mut self.bound {
                match watch.next().await {
                    Ok(event) => return News::Event(event),
                    Err(error) => {
                        self.bound = None;
                        self.failed(&error);
                        return News::Lost;
                    }
                }
            }
            let Some(binding) = &mut self.binding else { return std::future::pending().await };
            let bound = binding.await;
            self.binding = None;
            match bound {
                Ok(watch) => {
                    self.bound = Some(watch);
                    if std::mem::take(&mut self.said) {
                        info!(space = %self.space, "the lease is watched again");
                    }
                    return News::Bound;
                }
                Err(error) => self.failed(&error),
            }
        }
    }

    fn failed(&mut self, error: &NatsError) {
        if !std::mem::replace(&mut self.said, true) {
            warn!(
                space = %self.space, %error,
                "the lease cannot be watched, so the daemon is not ready; retrying"
            );
        }
        self.bind_after(BIND_RETRY_AFTER);
    }

    fn bind_after(&mut self, pause: Duration) {
        let kv = self.kv.clone();
        self.binding = Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            kv.watch(WatchOptions { filter: LEASE_KEY.to_owned(), ..WatchOptions::default() }).await
        }));
    }
}
