//! The one place where copies meet: ledger in, queue out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cotal_nats::{Delivery, NatsError};
use cotal_wire::{Channel, Principal};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::copy::{Copy, Rejected};
use crate::destination::Source;
use crate::dropped_live::DroppedLive;
use crate::incoming::{Incoming, Receipt, SharedLedger, locked};
use crate::ledger::{CopyVerdict, Owed};
use crate::notice::Notice;
use crate::queue_limit::{QueueLimit, QueuePermit};

/// Stored messages that wait for the caller: copies from its durables and from histories. Behind a
/// full queue the pulls stop, so that the broker keeps what is not read.
const STORED: usize = 256;
/// Their bytes, counted twice: 16 messages of the broker's usual largest size.
const STORED_BYTES: usize = 32 * 1024 * 1024;
/// Live messages that wait for the caller; what comes beyond is dropped and told, because a live
/// copy has nobody else to wait with.
const LIVE: usize = 4_096;
/// Their bytes, counted twice.
const LIVE_BYTES: usize = 32 * 1024 * 1024;
/// All that can be queued at once.
pub(crate) const QUEUE: usize = STORED + LIVE;
/// Notices that wait for the caller; each tells of a change, so a caller that reads none misses
/// history and not state.
pub(crate) const NOTICES: usize = 64;

/// Where every pump puts what it found.
#[derive(Debug, Clone)]
pub(crate) struct Sink {
    pub(crate) own: Principal,
    pub(crate) ledger: SharedLedger,
    messages: mpsc::Sender<Queued>,
    notices: mpsc::Sender<Notice>,
    stored: QueueLimit,
    live: QueueLimit,
    /// Live copies that found no room.
    pub(crate) overruns: Arc<DroppedLive>,
    /// The channels whose posts are known to come through the delivery durable too.
    pub(crate) backed: Arc<Mutex<HashSet<Channel>>>,
    /// Told when a durable copy was acked that a message acked before had expected.
    pub(crate) caught_up: Arc<Notify>,
    pub(crate) stop: CancellationToken,
}

/// A message on its way to the caller, with the room that it takes.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) incoming: Incoming,
    _room: QueuePermit,
}

impl Sink {
    pub(crate) fn new(
        own: Principal,
        messages: mpsc::Sender<Queued>,
        notices: mpsc::Sender<Notice>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            own,
            ledger: new_ledger(),
            messages,
            notices,
            stored: QueueLimit::new(STORED, STORED_BYTES),
            live: QueueLimit::new(LIVE, LIVE_BYTES),
            overruns: Arc::default(),
            backed: Arc::default(),
            caught_up: Arc::default(),
            stop,
        }
    }

    /// A live copy: queued at once or dropped, so that nothing gathers before it. An own post is no
    /// news.
    pub(crate) fn live(&self, copy: Copy) {
        if copy.sender == self.own {
            return;
        }
        let Some(room) = self.live.try_hold(copy.body.len()) else {
            // What is known already is not lost with one more copy of it.
            let known = copy.key.as_ref().is_some_and(|key| locked(&self.ledger).knows(key));
            if let (false, Some(channel)) = (known, copy.place.channel()) {
                self.overruns.dropped(channel, self.is_backed(&copy));
            }
            return;
        };
        if let Some(incoming) = self.admitted(copy, Source::Live) {
            self.queue(incoming, room);
        }
    }

    /// A copy from a history, which nobody waits to have acked. An own post is no news.
    pub(crate) async fn backfilled(&self, copy: Copy) {
        if copy.sender == self.own {
            return;
        }
        if let Some(incoming) = self.admitted(copy, Source::Backfilled) {
            self.surface(incoming).await;
        }
    }

    /// A copy without a stored one of its own, if it is the first of its delivery.
    fn admitted(&self, copy: Copy, source: Source) -> Option<Incoming> {
        let Some(key) = copy.key.clone() else {
            return Some(Incoming::new(copy, source, false, None));
        };
        let backed = self.is_backed(&copy);
        let verdict = locked(&self.ledger).offer(key, None, backed);
        let CopyVerdict::Surface { claim, again } = verdict else { return None };
        let receipt = Receipt::new(&self.ledger, claim);
        Some(Incoming::new(copy, source, again, Some(receipt)))
    }

    fn is_backed(&self, copy: &Copy) -> bool {
        copy.place.channel().is_some_and(|channel| self.backed().contains(channel))
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
            CopyVerdict::Hold => {}
            CopyVerdict::Ack(delivery) => {
                answered(delivery.ack().await);
                self.caught_up.notify_one();
            }
            CopyVerdict::Surface { claim, again } => {
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
            // What is not queued any more is released by its receipt; closing has returned its
            // copies.
            () = self.stop.cancelled() => {}
            room = self.stored.hold(incoming.body.len()) => {
                if let Some(room) = room {
                    self.queue(incoming, room);
                }
            }
        }
    }

    /// The queue has as many slots as there is room to hold; it is full only when it is closed.
    fn queue(&self, incoming: Incoming, room: QueuePermit) {
        if let Err(error) = self.messages.try_send(Queued { incoming, _room: room }) {
            debug!(%error, "a message is not queued");
        }
    }

    pub(crate) fn backed(&self) -> MutexGuard<'_, HashSet<Channel>> {
        self.backed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every message that was acked is acked at the broker too, whose copy may come
    /// last.
    pub(crate) async fn caught_up(&self) {
        while locked(&self.ledger).expected() > 0 {
            self.caught_up.notified().await;
        }
    }

    /// Tells the caller something, unless it has left the last ones unread.
    pub(crate) fn notify(&self, notice: Notice) {
        self.try_notify(notice);
    }

    /// The same, and says whether it was queued.
    pub(crate) fn try_notify(&self, notice: Notice) -> bool {
        let queued = self.notices.try_send(notice);
        if let Err(error) = &queued {
            debug!(%error, "a notice is not queued");
        }
        queued.is_ok()
    }
}

/// An answer that the broker does not get only brings the copy again, and the ledger knows it.
pub(crate) fn answered(outcome: Result<(), NatsError>) {
    if let Err(error) = outcome {
        debug!(%error, "an answer to a delivery was not sent");
    }
}

/// A ledger that everybody shares.
fn new_ledger() -> SharedLedger {
    Arc::new(Mutex::new(crate::ledger::Ledger::new(REMEMBERED)))
}

/// Settled messages that are remembered: minutes of a busy space, and under 5 MiB.
const REMEMBERED: usize = 16_384;
