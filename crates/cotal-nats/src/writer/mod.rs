//! Confirmed writes into one stream, many in flight.
//!
//! Whoever submits a batch gets a [`Ticket`] that resolves once the broker has confirmed or refused each
//! message of it. Invariant: a message counts as confirmed only when an answer of the broker covers it;
//! what a lost connection leaves open is sent again, in order and under the same message ids.
//!
//! Messages go onto the wire in the order of submission, and on an unbroken connection they are stored in
//! it. When the connection breaks, the client keeps what it had queued and sends it right after its
//! redial, so that it may be stored before the older messages that are sent again: never more than
//! [`WriterOptions::max_in_flight`] places early. Whoever needs strict order across a crash awaits the
//! older ticket before it submits the newer batch.

mod actor;
mod flight;
mod tickets;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::error::NatsError;
use crate::headers;
use actor::{Actor, Submission};

/// Tickets that may wait for the writer's task; the messages in them are bounded by permits.
const SUBMISSIONS: usize = 1_024;

/// A message to be written.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Where to; cheap to clone.
    pub subject: Subject,
    /// Deduplication key. Without one, a repeat after a lost connection may store it twice.
    pub msg_id: Option<String>,
    /// One more header, a number.
    pub number: Option<(&'static str, u64)>,
    /// Body.
    pub payload: Bytes,
}

impl Outgoing {
    /// A message without a further header.
    pub fn new(subject: impl Into<Subject>, msg_id: Option<String>, payload: Bytes) -> Self {
        Self { subject: subject.into(), msg_id, number: None, payload }
    }

    /// Bytes as the broker counts them.
    pub(crate) fn wire_size(&self) -> usize {
        let line = |name: &str, value: usize| name.len() + value + 4;
        let id = self.msg_id.as_ref().map_or(0, |id| line(headers::MSG_ID, id.len()));
        let number = self.number.map_or(0, |(name, value)| line(name, digits(value)));
        let block = if id + number > 0 { "NATS/1.0\r\n\r\n".len() + id + number } else { 0 };
        block + self.payload.len()
    }

    pub(crate) fn header_map(&self) -> Option<HeaderMap> {
        if self.msg_id.is_none() && self.number.is_none() {
            return None;
        }
        let mut map = HeaderMap::new();
        if let Some(id) = &self.msg_id {
            map.insert(HeaderName::from_static(headers::MSG_ID), id.as_str());
        }
        if let Some((name, value)) = self.number {
            map.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
        Some(map)
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// How messages are confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Bursts by fast ingest (ADR-50), anything else one by one.
    FastIngest,
    /// Every message by its own answer.
    Pipelined,
}

impl Engine {
    /// The fastest that stream and broker offer.
    pub fn best(connection: &Connection, allow_batched: bool) -> Self {
        if allow_batched && connection.server_at_least(2, 14, 0) {
            Self::FastIngest
        } else {
            Self::Pipelined
        }
    }
}

/// Limits of a writer.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// How to confirm.
    pub engine: Engine,
    /// Messages submitted and not yet confirmed; beyond it `submit` waits.
    pub max_pending: usize,
    /// Messages on the wire and not yet confirmed.
    pub max_in_flight: usize,
    /// Silence after which what is in flight is sent again.
    pub ack_timeout: Duration,
    /// Age at which an unconfirmed message fails.
    pub give_up_after: Duration,
}

impl WriterOptions {
    /// The defaults for this engine.
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            max_pending: 8_192,
            max_in_flight: 1_024,
            ack_timeout: Duration::from_secs(5),
            give_up_after: Duration::from_secs(20),
        }
    }
}

/// The messages of a ticket that were not confirmed; all others were.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} of {total} messages were not confirmed, the first because: {}", failed.len(), first(failed))]
pub struct BatchError {
    /// Position in the submitted batch, and why.
    pub failed: Vec<(usize, NatsError)>,
    /// Messages in the batch.
    pub total: usize,
}

fn first(failed: &[(usize, NatsError)]) -> String {
    failed.first().map_or_else(String::new, |(_, error)| error.to_string())
}

/// Resolves when every message of a batch is confirmed or refused.
#[derive(Debug)]
#[must_use = "a write is only done when its ticket says so"]
pub struct Ticket {
    done: oneshot::Receiver<Result<(), BatchError>>,
    total: usize,
}

impl Future for Ticket {
    type Output = Result<(), BatchError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let total = self.total;
        Pin::new(&mut self.done).poll(cx).map(|outcome| {
            outcome.unwrap_or_else(|_| {
                let failed = (0..total).map(|index| (index, NatsError::Closed)).collect();
                Err(BatchError { failed, total })
            })
        })
    }
}

/// The handle of a write pipeline. Its task ends when the handle and all clones are gone and everything
/// submitted is settled.
#[derive(Clone, Debug)]
pub struct Writer {
    submissions: mpsc::Sender<Submission>,
    permits: Arc<Semaphore>,
    max_pending: usize,
}

impl Writer {
    /// Starts a pipeline. The returned task ends once all clones of the handle are dropped and what was
    /// submitted is settled; its owner awaits it at shutdown.
    pub async fn start(
        connection: &Connection,
        options: WriterOptions,
    ) -> Result<(Self, JoinHandle<()>), NatsError> {
        Self::start_while(connection, options, || true).await
    }

    /// The same, for as long as `may_write` says yes: it is asked before every few messages that go onto
    /// the wire, be it for the first time or again, and what it withholds fails
    /// ([`NatsError::Withheld`]). What it let pass can wait in the client's own queue, so a process that
    /// is paused just then still says that much when it wakes up.
    pub async fn start_while(
        connection: &Connection,
        options: WriterOptions,
        may_write: impl Fn() -> bool + Send + 'static,
    ) -> Result<(Self, JoinHandle<()>), NatsError> {
        let (submissions, receiver) = mpsc::channel(SUBMISSIONS);
        let actor = Actor::new(connection, options, Box::new(may_write), receiver).await?;
        let task = tokio::spawn(actor.run());
        let permits = Arc::new(Semaphore::new(options.max_pending));
        Ok((Self { submissions, permits, max_pending: options.max_pending }, task))
    }

    /// Hands a batch in. Waits while too much is pending; the order of calls is the order on the wire.
    pub async fn submit(&self, messages: Vec<Outgoing>) -> Result<Ticket, NatsError> {
        let total = messages.len();
        let (tell, done) = oneshot::channel();
        if messages.is_empty() {
            let _ = tell.send(Ok(()));
            return Ok(Ticket { done, total });
        }
        // A batch larger than everything allowed goes alone.
        let wanted = u32::try_from(total.min(self.max_pending)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.permits)
            .acquire_many_owned(wanted)
            .await
            .map_err(|_| NatsError::Closed)?;
        let submission = Submission { messages, tell, permit };
        self.submissions.send(submission).await.map_err(|_| NatsError::Closed)?;
        Ok(Ticket { done, total })
    }

    /// Writes a batch and waits for its end.
    pub async fn write(&self, messages: Vec<Outgoing>) -> Result<(), WriteError> {
        Ok(self.submit(messages).await?.await?)
    }
}

/// Why [`Writer::write`] failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was handed in.
    #[error(transparent)]
    Submit(#[from] NatsError),
    /// Some messages were not confirmed.
    #[error(transparent)]
    Batch(#[from] BatchError),
}
