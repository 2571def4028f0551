//! Confirmed writes into one stream, many in flight.
//!
//! Whoever submits a batch gets a [`Ticket`] that resolves once the broker has confirmed or refused
//! each message of it. Invariant: a message counts as confirmed only when an answer of the broker
//! covers it; what a lost connection leaves open is sent again, in order and under the same message
//! ids.
//!
//! Messages go onto the wire in the order of submission, and on an unbroken connection they are
//! stored in it. When the connection breaks, the client keeps what it had queued and sends it right
//! after its redial, so that it may be stored before the older messages that are sent again: never
//! more than [`WriterOptions::max_in_flight`] places early. Whoever needs strict order across a
//! crash awaits the older ticket before it submits the newer batch.

mod actor;
mod flight;
mod options;
mod outgoing;
mod tickets;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::error::NatsError;
use actor::{Actor, Submission};

pub use options::{Engine, WriterOptions};
pub use outgoing::Outgoing;
use tickets::Refusal;

pub use tickets::BatchError;

/// Tickets that may wait for the writer's task; the messages in them are bounded by permits.
const SUBMISSIONS: usize = 1_024;

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

/// The handle of a write pipeline. Its task ends when the handle and all clones are gone and
/// everything submitted is settled.
#[derive(Clone, Debug)]
pub struct Writer {
    submissions: mpsc::Sender<Submission>,
    permits: Arc<Semaphore>,
    max_pending: usize,
    refusal: Refusal,
}

impl Writer {
    /// Starts a pipeline. The returned task ends once all clones of the handle are dropped and what
    /// was submitted is settled; its owner awaits it at shutdown.
    pub async fn start(
        connection: &Connection,
        options: WriterOptions,
    ) -> Result<(Self, JoinHandle<()>), NatsError> {
        Self::start_while(connection, options, || true).await
    }

    /// The same, for as long as `may_write` says yes: it is asked before every few messages that go
    /// onto the wire, be it for the first time or again, and what it withholds fails
    /// ([`NatsError::Withheld`]). What it let pass can wait in the client's own queue, so a process
    /// that is paused just then still says that much when it wakes up.
    pub async fn start_while(
        connection: &Connection,
        options: WriterOptions,
        may_write: impl Fn() -> bool + Send + 'static,
    ) -> Result<(Self, JoinHandle<()>), NatsError> {
        let (submissions, receiver) = mpsc::channel(SUBMISSIONS);
        let refusal = Refusal::default();
        let may_write = Box::new(may_write);
        let shown = Arc::clone(&refusal);
        let actor = Actor::new(connection, options, may_write, receiver, shown).await?;
        let task = tokio::spawn(actor.run());
        let permits = Arc::new(Semaphore::new(options.max_pending));
        let max_pending = options.max_pending;
        Ok((Self { submissions, permits, max_pending, refusal }, task))
    }

    /// Why the broker does not store what it is given, if its last answer was a refusal or a
    /// denial.
    pub fn refusal(&self) -> Option<NatsError> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Hands a batch in. Waits while too much is pending; the order of calls is the order on the
    /// wire.
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
