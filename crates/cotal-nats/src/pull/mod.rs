//! Pull consumers: overlapping pull requests, and messages that are acked by whoever owns them.
//!
//! Invariant: what is asked for and not yet delivered never exceeds `batch` by more than one
//! refill, so a slow reader holds back the broker and not its own memory.

mod delivery;
mod leave;
mod newest;
mod options;
mod requests;

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, timeout};

pub(crate) use delivery::AckInfo;
pub use delivery::Delivery;
pub use leave::Left;
pub use options::{Gather, PullError, PullOptions};
pub(crate) use requests::{Incoming, PullRequests};

use crate::connection::Connection;
use newest::Newest;

/// How long the end of the pulls may take to be seen.
pub(crate) const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// A pull consumer bound by name.
#[derive(Debug)]
pub struct PullConsumer {
    connection: Connection,
    requests: PullRequests,
    /// Taken and not yet handed out, so that a cancelled call loses nothing.
    taken: Vec<Delivery>,
    newest: Newest,
    /// Until when more is waited for, once something is taken.
    gather_until: Option<Instant>,
}

impl PullConsumer {
    /// Binds to an existing consumer. Whether it exists shows with the first pull.
    pub async fn open(
        connection: &Connection,
        stream: &str,
        consumer: &str,
        options: PullOptions,
    ) -> Result<Self, PullError> {
        let requests = PullRequests::open(connection, stream, consumer, options).await?;
        Ok(Self {
            connection: connection.clone(),
            requests,
            taken: Vec::new(),
            newest: Newest::default(),
            gather_until: None,
        })
    }

    /// Up to `max` messages: returns as soon as there is at least one and no more are at hand, or
    /// empty when `wait` is over. Survives reconnects. Cancel-safe: what a cancelled call took is
    /// handed out by the next one.
    pub async fn next_batch(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, PullError> {
        self.gather(max, wait, Gather::default()).await
    }

    /// The same, but once there is one message it waits for more as `gather` says: a caller that is
    /// busy anyway gets fewer and larger batches. Cancel-safe likewise; the time of a cancelled
    /// call counts.
    pub async fn gather(
        &mut self,
        max: usize,
        wait: Duration,
        gather: Gather,
    ) -> Result<Vec<Delivery>, PullError> {
        if self.taken.is_empty() {
            let deadline = Instant::now() + wait;
            let Some(first) = self.requests.next_message(deadline).await? else {
                return Ok(Vec::new());
            };
            self.take(first)?;
            self.gather_until = Some(Instant::now() + gather.within);
        }
        loop {
            self.take_what_is_at_hand(max)?;
            let until = self.gather_until.unwrap_or_else(Instant::now);
            if self.taken.len() >= gather.enough.min(max) || until <= Instant::now() {
                break;
            }
            match self.requests.next_message(until).await {
                Ok(Some(message)) => self.take(message)?,
                Ok(None) => break,
                Err(error) => {
                    self.requests.postpone(error);
                    break;
                }
            }
        }
        if let Err(error) = self.requests.refill().await {
            self.requests.postpone(error.into());
        }
        self.gather_until = None;
        Ok(std::mem::take(&mut self.taken))
    }

    /// One message, and none asked for ahead of it when `batch` is 1: for a caller that works on
    /// each before it wants another. `None` when `wait` is over. Cancel-safe.
    pub async fn next_one(&mut self, wait: Duration) -> Result<Option<Delivery>, PullError> {
        if !self.taken.is_empty() {
            return Ok(Some(self.taken.remove(0)));
        }
        let message = self.requests.next_message(Instant::now() + wait).await?;
        message.map(|message| self.own(message)).transpose()
    }

    fn take_what_is_at_hand(&mut self, max: usize) -> Result<(), PullError> {
        while self.taken.len() < max {
            let Some(Some(message)) = self.requests.inbox.next().now_or_never() else {
                return Ok(());
            };
            match self.requests.classify(message) {
                Incoming::Message(message) => self.take(message)?,
                Incoming::Status => {}
                Incoming::Error(error) => {
                    self.requests.postpone(error);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, message: async_nats::Message) -> Result<(), PullError> {
        let delivery = self.own(message)?;
        self.taken.push(delivery);
        Ok(())
    }

    /// The name this consumer is bound by.
    pub fn consumer(&self) -> &str {
        self.requests.consumer()
    }

    /// Ends the pulls and hands out what had arrived and was not asked for yet, so that its owner
    /// can return it at once instead of letting it wait for the ack wait. What is on its way just
    /// then can be lost; whoever is the consumer's only reader [leaves](Self::leave) it instead.
    pub async fn end(mut self) -> Vec<Delivery> {
        let mut left = std::mem::take(&mut self.taken);
        // Draining keeps what is in flight until the broker has seen the end of the subscription.
        if self.requests.inbox.drain().await.is_err() {
            return left;
        }
        while let Ok(Some(message)) = timeout(DRAINED_WITHIN, self.requests.inbox.next()).await {
            if let Incoming::Message(message) = self.requests.classify(message) {
                left.extend(self.own(message).ok());
            }
        }
        self.requests.forgotten(DRAINED_WITHIN).await;
        left
    }

    /// Takes the consumer's undelivered pulls back, by leaving their inbox.
    pub async fn close(mut self) {
        let _ = self.requests.inbox.unsubscribe().await;
    }

    fn own(&mut self, message: async_nats::Message) -> Result<Delivery, PullError> {
        let delivery = Delivery::new(&self.connection, message)?;
        self.newest.note(&delivery);
        Ok(delivery)
    }
}
