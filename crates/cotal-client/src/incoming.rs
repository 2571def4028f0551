//! What an endpoint surfaces, and how it is acked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cotal_nats::{Bytes, Delivery, NatsError};
use cotal_wire::envelope::Message;
use cotal_wire::{Channel, Principal};

use crate::copy::Copy;
use crate::destination::{Destination, Source};
use crate::ledger::{Claim, Ledger};
use crate::notice::Notice;

/// One thing that [`Endpoint::next`](crate::Endpoint::next) tells.
#[derive(Debug)]
pub enum Event {
    /// A message.
    Message(Box<Incoming>),
    /// Something about the endpoint itself.
    Notice(Notice),
}

/// Why an ack did not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AckError {
    /// The endpoint was closed before; the message was given back and comes again.
    #[error("the endpoint was closed before the ack: the message will be redelivered")]
    Closed,
    /// The broker connection did not take it; the message comes again.
    #[error("the ack did not reach the broker: the message will be redelivered")]
    Nats(#[source] NatsError),
}

pub(crate) type SharedLedger = Arc<Mutex<Ledger<Delivery>>>;

pub(crate) fn locked(ledger: &SharedLedger) -> MutexGuard<'_, Ledger<Delivery>> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message for the caller, who answers it with [`ack`](Self::ack) or [`release`](Self::release).
/// Dropping it leaves it to the broker's ack wait.
#[derive(Debug)]
pub struct Incoming {
    /// Who sent it, proven.
    pub sender: Principal,
    /// Where it was sent to, proven.
    pub place: Destination,
    /// The way it came.
    pub source: Source,
    /// Whether this endpoint surfaced it before and it was not acked.
    pub again: bool,
    /// The message; what this version does not understand of it is in [`body`](Self::body).
    pub message: Message,
    /// The message's own bytes.
    pub body: Bytes,
    receipt: Option<Receipt>,
}

impl Incoming {
    pub(crate) fn new(copy: Copy, source: Source, again: bool, receipt: Option<Receipt>) -> Self {
        Self {
            sender: copy.sender,
            place: copy.place,
            source,
            again,
            message: copy.message,
            body: copy.body,
            receipt,
        }
    }

    /// A message that came from nowhere, for the tests of whoever handles messages: its answers go
    /// nowhere, and succeed.
    ///
    /// ```
    /// use cotal_client::{From, Incoming, Message, Part, Destination, Principal, Source};
    ///
    /// let sender = Principal::parse("local.alice")?;
    /// let message = Message {
    ///     id: "1".into(),
    ///     ts: 0,
    ///     space: "main".into(),
    ///     from: From { id: sender.to_string(), name: "Alice".into(), role: None },
    ///     channel: None,
    ///     to: Some("local.bob".into()),
    ///     to_service: None,
    ///     mentions: vec![],
    ///     parts: vec![Part::Text { text: "hello".into() }],
    ///     reply_to: None,
    ///     context_id: None,
    /// };
    /// let incoming = Incoming::detached(sender, Destination::Direct, Source::Direct, message);
    /// assert_eq!(incoming.text(), "hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn detached(
        sender: Principal,
        place: Destination,
        source: Source,
        message: Message,
    ) -> Self {
        let body = serde_json::to_vec(&message).unwrap_or_default().into();
        Self { sender, place, source, again: false, message, body, receipt: None }
    }

    /// The text parts, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.text()
    }

    /// The channel it was posted on.
    #[must_use]
    pub fn channel(&self) -> Option<&Channel> {
        self.place.channel()
    }

    /// Done with it: every copy of it is acked, also one that comes later.
    ///
    /// The ack is handed to the connection, which [`close`](crate::Endpoint::close) flushes.
    ///
    /// # Errors
    /// When the endpoint was closed before, or the connection did not take the ack.
    pub async fn ack(mut self) -> Result<(), AckError> {
        for delivery in self.settle(Ledger::ack)? {
            delivery.ack().await.map_err(AckError::Nats)?;
        }
        Ok(())
    }

    /// Done with it, and the broker has confirmed so.
    ///
    /// # Errors
    /// When the endpoint was closed before, or the broker did not confirm.
    pub async fn ack_confirmed(mut self) -> Result<(), AckError> {
        for delivery in self.settle(Ledger::ack)? {
            delivery.ack_confirmed().await.map_err(AckError::Nats)?;
        }
        Ok(())
    }

    /// Not done with it: the broker may send it again at once, here or to another endpoint of the
    /// agent.
    ///
    /// # Errors
    /// When the endpoint was closed before, or the connection did not take it.
    pub async fn release(mut self) -> Result<(), AckError> {
        for delivery in self.settle(Ledger::release)? {
            delivery.nak(None).await.map_err(AckError::Nats)?;
        }
        Ok(())
    }

    fn settle(
        &mut self,
        how: fn(&mut Ledger<Delivery>, &Claim) -> Option<Vec<Delivery>>,
    ) -> Result<Vec<Delivery>, AckError> {
        let Some(receipt) = self.receipt.as_mut() else {
            return Ok(Vec::new());
        };
        receipt.settled = true;
        how(&mut locked(&receipt.ledger), &receipt.claim).ok_or(AckError::Closed)
    }
}

/// The caller's hold on a ledger entry; dropped unsettled, it opens the entry for a redelivery.
#[derive(Debug)]
pub(crate) struct Receipt {
    ledger: SharedLedger,
    claim: Claim,
    settled: bool,
}

impl Receipt {
    pub(crate) fn new(ledger: &SharedLedger, claim: Claim) -> Self {
        Self { ledger: Arc::clone(ledger), claim, settled: false }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.settled {
            locked(&self.ledger).release(&self.claim);
        }
    }
}
