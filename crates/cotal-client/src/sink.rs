//! The one place where copies meet: ledger in, queue out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cotal_nats::{Delivery, NatsError};
use cotal_wire::{Channel, Principal};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::copy::{Copy, Rejected};
use crate::incoming::{Incoming, Receipt, SharedLedger, locked};
use crate::place::Source;
use crate::ledger::{Owed, Verdict};
use crate::notice::Notice;

/// Messages that wait for the caller. Behind a full queue the pulls stop, so that the broker keeps what
/// is not read.
pub(crate) const QUEUE: usize = 256;
/// Notices that wait for the caller; each tells of a change, so a caller that reads none misses history
/// and not state.
pub(crate) const NOTICES: usize = 64;

/// Where every pump puts what it found.
#[derive(Debug, Clone)]
pub(crate) struct Sink {
    pub(crate) own: Principal,
    pub(crate) ledger: SharedLedger,
    pub(crate) messages: mpsc::Sender<Incoming>,
    pub(crate) notices: mpsc::Sender<Notice>,
    /// The channels whose posts are known to come through the delivery durable too.
    pub(crate) backed: Arc<Mutex<HashSet<Channel>>>,
    /// Told when a durable copy was acked that a message acked before had expected.
    pub(crate) caught_up: Arc<Notify>,
    pub(crate) stop: CancellationToken,
}

impl Sink {
    /// A live or backfilled copy, which nobody waits to have acked. An own post is not news.
    pub(crate) async fn passing(&self, copy: Copy, source: Source) {
        if copy.sender == self.own {
            return;
        }
        let Some(key) = copy.key.clone() else {
            return self.surface(Incoming::new(copy, source, false, None)).await;
        };
        let backed = copy.place.channel().is_some_and(|channel| self.backed().contains(channel));
        let verdict = locked(&self.ledger).offer(key, None, backed);
        if let Verdict::Surface { claim, again } = verdict {
            let receipt = Receipt::new(&self.ledger, claim);
            let incoming = Incoming::new(copy, source, again, Some(receipt));
            self.surface(incoming).await;
        }
    }

    /// A copy from one of the agent's durables; its ack follows the delivery's.
    pub(crate) async fn durable(
        &self,
        judged: Result<Copy, Rejected>,
        source: Source,
        delivery: Delivery,
        durable: &str,
    ) {
        let copy = match judged {
            Ok(copy) => copy,
            Err(why) => return self.refuse(delivery, durable, &why).await,
        };
        let Some(key) = copy.key.clone() else {
            // A copy that a stream holds always has a key; without one it could not be acked.
            return answered(delivery.nak(None).await);
        };
        let seq = delivery.stream_seq;
        let owed = Some(Owed { seq, token: delivery });
        let verdict = locked(&self.ledger).offer(key, owed, true);
        match verdict {
            Verdict::Hold => {}
            Verdict::Ack(delivery) => {
                answered(delivery.ack().await);
                self.caught_up.notify_one();
            }
            Verdict::Surface { claim, again } => {
                let receipt = Receipt::new(&self.ledger, claim);
                let incoming = Incoming::new(copy, source, again, Some(receipt));
                self.surface(incoming).await;
            }
        }
    }

    /// A garbled or forged copy would come again for ever; it ends here, visibly.
    async fn refuse(&self, delivery: Delivery, durable: &str, why: &Rejected) {
        self.notify(Notice::Rejected { found_in: durable.to_owned(), reason: why.to_string() });
        answered(delivery.term().await);
    }

    async fn surface(&self, incoming: Incoming) {
        tokio::select! {
            // What is not queued any more is released by its receipt; closing has returned its copies.
            () = self.stop.cancelled() => {}
            _ = self.messages.send(incoming) => {}
        }
    }

    pub(crate) fn backed(&self) -> MutexGuard<'_, HashSet<Channel>> {
        self.backed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every message that was acked is acked at the broker too, whose copy may come last.
    pub(crate) async fn caught_up(&self) {
        while locked(&self.ledger).expected() > 0 {
            self.caught_up.notified().await;
        }
    }

    /// Tells the caller something, unless it has left the last ones unread.
    pub(crate) fn notify(&self, notice: Notice) {
        if let Err(error) = self.notices.try_send(notice) {
            debug!(%error, "a notice is not queued");
        }
    }
}

/// An answer that the broker does not get only brings the copy again, and the ledger knows it.
pub(crate) fn answered(outcome: Result<(), NatsError>) {
    if let Err(error) = outcome {
        debug!(%error, "an answer to a delivery was not sent");
    }
}

/// A ledger that everybody shares.
pub(crate) fn new_ledger() -> SharedLedger {
    Arc::new(Mutex::new(crate::ledger::Ledger::new(REMEMBERED)))
}

/// Settled messages that are remembered: minutes of a busy space, and under 5 MiB.
const REMEMBERED: usize = 16_384;
