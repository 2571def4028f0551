//! Trims CHAT behind the fan-out writer: performs the purges of [`Trim`], one at a time.

use std::pin::Pin;

use cotal_nats::{Connection, Delivery, NatsError};
use cotal_rules::trim::{Purge, Trim};
use cotal_wire::Space;
use tracing::{debug, warn};

use crate::consumer::tracker::Tracker;
use crate::lease::gate::Gate;

/// A purge in progress; resolves to the number of purged posts.
type PurgeUnderWay = Pin<Box<dyn Future<Output = Result<u64, NatsError>> + Send>>;

/// Purges routed posts that CHAT need not keep.
pub(super) struct Trimmer {
    space: Space,
    connection: Connection,
    gate: Gate,
    trim: Trim,
    running: Option<PurgeUnderWay>,
    /// Whether the credential does not allow purges: it is from before CHAT was trimmed.
    is_denied: bool,
}

impl Trimmer {
    pub(super) fn new(
        space: &Space,
        connection: &Connection,
        gate: &Gate,
        tracker: &Tracker,
    ) -> Self {
        Self {
            space: space.clone(),
            connection: connection.clone(),
            gate: gate.clone(),
            trim: Trim::after(tracker.delivered()),
            running: None,
            is_denied: false,
        }
    }

    /// Counts a post that was pulled.
    pub(super) fn arrived(&mut self, delivery: &Delivery) {
        self.trim.arrived(&delivery.subject, delivery.stream_seq);
    }

    /// Begins the next purge, unless one runs. Every post up to `settled` is settled.
    pub(super) fn begin(&mut self, settled: u64) {
        if self.running.is_some() || !self.gate.is_open() {
            return;
        }
        let Some(Purge { subject, up_to }) = self.trim.next(settled) else { return };
        let (connection, chat) = (self.connection.clone(), self.space.chat_stream());
        self.running =
            Some(Box::pin(async move { connection.purge_up_to(&chat, &subject, up_to).await }));
    }

    /// Returns when the purge has ended; pends while none runs. Cancel-safe. A failed purge is not
    /// repeated: the next one of the same subject takes its posts too.
    pub(super) async fn ended(&mut self) {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = running.await;
        self.running = None;
        match ended {
            Ok(purged) => debug!(space = %self.space, purged, "routed posts were trimmed"),
            Err(error @ NatsError::Denied { .. }) if !self.is_denied => {
                self.is_denied = true;
                warn!(
                    space = %self.space, %error,
                    "CHAT is not trimmed until the credential is renewed: this one does not allow purges"
                );
            }
            Err(error) => {
                debug!(space = %self.space, %error, "routed posts could not be trimmed; retrying later");
            }
        }
    }
}
