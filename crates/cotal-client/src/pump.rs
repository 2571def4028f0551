//! Reading a durable: bound by name, never created, bound again until the endpoint stops.

use std::time::Duration;

use cotal_nats::{Connection, Delivery, PullConsumer, PullError, PullOptions};
use cotal_wire::names::SEQ_HEADER;
use cotal_wire::{Lifecycle, Space};
use tokio_util::sync::CancellationToken;

use crate::copy;
use crate::destination::Source;
use crate::missed::MissedPlane;
use crate::notice::Notice;
use crate::sink::Sink;

/// A batch ends sooner; this only bounds how long an idle pull keeps one future.
const PULL_WAIT: Duration = Duration::from_secs(30);
/// Between attempts to bind a durable that could not be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One pull brings no more bytes ahead of the caller than this.
const PREFETCH_BYTES: usize = 8 * 1024 * 1024;

/// Which of the agent's durables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    /// Authorized copies of posts.
    Delivery,
    /// Direct messages.
    Direct,
}

impl Durable {
    pub(crate) fn stream(self, space: &Space) -> String {
        match self {
            Self::Delivery => space.dlv_stream(),
            Self::Direct => space.dm_stream(),
        }
    }

    pub(crate) fn consumer(self, space: &Space, own: &Lifecycle) -> String {
        match self {
            Self::Delivery => space.dlv_consumer(own),
            Self::Direct => space.dm_consumer(own),
        }
    }
}

/// The task that reads one durable.
#[derive(Debug)]
pub(crate) struct Pump {
    pub(crate) durable: Durable,
    pub(crate) connection: Connection,
    pub(crate) space: Space,
    pub(crate) own: Lifecycle,
    pub(crate) sink: Sink,
    pub(crate) missed: MissedPlane,
    pub(crate) stop: CancellationToken,
    pub(crate) prefetch: usize,
}

impl Pump {
    pub(crate) async fn run(self) {
        let mut told = false;
        while let Err(error) = self.bound(&mut told).await {
            if !told {
                told = true;
                self.sink.notify(Notice::DurableUnreadable {
                    durable: self.durable.consumer(&self.space, &self.own),
                    reason: error.to_string(),
                });
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(RETRY_AFTER) => {}
            }
        }
    }

    /// Binds and reads until told to stop; `told` is cleared once the durable was readable again.
    async fn bound(&self, told: &mut bool) -> Result<(), PullError> {
        // One message at least must fit, or it would never come.
        let max_bytes = PREFETCH_BYTES.max(self.connection.max_payload() * 2);
        let options = PullOptions { batch: self.prefetch, max_bytes, ..PullOptions::default() };
        let stream = self.durable.stream(&self.space);
        let name = self.durable.consumer(&self.space, &self.own);
        let mut consumer = PullConsumer::open(&self.connection, &stream, &name, options).await?;
        loop {
            let batch = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.finish(consumer, &name).await;
                    return Ok(());
                }
                batch = consumer.next_batch(self.prefetch, PULL_WAIT) => batch,
            };
            match batch {
                Ok(batch) => {
                    *told = false;
                    for delivery in batch {
                        self.admit(delivery, &name).await;
                    }
                }
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => tracing::debug!(%error, "pulling anew"),
            }
        }
    }

    /// Takes what the broker has handed over already, so that the ledger gives it back; left in the
    /// connection's buffer it would be nobody's until its ack wait is over.
    async fn finish(&self, consumer: PullConsumer, name: &str) {
        // Nothing is asked for any more; what was asked for is here before this is answered.
        // Without an answer there is no broker to give anything back to.
        let _ = self.connection.round_trip().await;
        for delivery in consumer.end().await {
            self.admit(delivery, name).await;
        }
    }

    /// What a delivery is, its subject says: a pull that an earlier process of the agent left at
    /// the broker may answer into this one's inbox, and then brings the other durable's message
    /// here.
    async fn admit(&self, delivery: Delivery, name: &str) {
        let (stored, body) = (delivery.stream_seq, delivery.payload.clone());
        let own = &self.own.principal;
        if self.space.parse_dlv(&delivery.subject).as_ref() == Some(&self.own) {
            self.missed.behind(delivery.pending);
            let chat_seq = delivery.header(SEQ_HEADER).and_then(|seq| seq.parse().ok());
            let judged = copy::delivered(body, chat_seq, stored);
            self.sink.durable(judged, Source::Durable, delivery, name).await;
        } else if self.space.parse_inst(&delivery.subject).is_some_and(|(to, _)| to == *own) {
            let judged = copy::direct(&self.space, own, &delivery.subject, body, stored);
            self.sink.durable(judged, Source::Direct, delivery, name).await;
        } else {
            tracing::debug!(subject = %delivery.subject, "a delivery for something else is left alone");
        }
    }
}
