//! Requests on one subject, each answered on a subject of its own below it (`wire.md` §6).
//!
//! Invariant: a request ends with its connection and is never sent again, because a lost reply does
//! not prove that nothing was done.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, StatusCode, Subject};
use bytes::Bytes;
use cotal_wire::names::{replies_of, reply_to};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::task::JoinHandle;

use crate::connection::{Connection, random_hex};
use crate::error::NatsError;
use crate::request::Subscription;

type Pending = Arc<Mutex<HashMap<String, oneshot::Sender<Message>>>>;

/// Asks on one subject. One subscription receives the replies to all of its requests.
#[derive(Debug)]
pub struct RailClient {
    connection: Connection,
    subject: Subject,
    pending: Pending,
    /// Hands each reply to its request; none before the first request.
    router: AsyncMutex<Option<Router>>,
}

/// The task that hands replies to their requests; it ends with this.
#[derive(Debug)]
struct Router(JoinHandle<()>);

impl Drop for Router {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Forgets a request however it ends, so that `pending` holds running requests only.
struct Registered<'a> {
    pending: &'a Pending,
    nonce: String,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        entries(self.pending).remove(&self.nonce);
    }
}

fn entries(pending: &Pending) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Message>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RailClient {
    /// A client of the service behind `subject`; nothing is asked yet.
    pub fn new(connection: &Connection, subject: impl Into<Subject>) -> Self {
        Self {
            connection: connection.clone(),
            subject: subject.into(),
            pending: Pending::default(),
            router: AsyncMutex::new(None),
        }
    }

    /// What it asks on.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Asks once and waits for the reply.
    ///
    /// # Errors
    /// When the broker denies the request, nobody listens, no reply comes `within`, or the
    /// connection is lost; after the last two the request may have been performed.
    pub async fn ask(&self, body: Bytes, within: Duration) -> Result<Message, NatsError> {
        // Boxed: a subscription makes a large future, and whoever asks is to stay small.
        let exchange = Box::pin(self.exchange(body));
        let reply = self.connection.race(&self.subject, within, exchange).await?;
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(NatsError::NoResponders { subject: self.subject.to_string() });
        }
        Ok(reply)
    }

    async fn exchange(&self, body: Bytes) -> Result<Message, NatsError> {
        self.bind().await?;
        let nonce = random_hex()?;
        let reply = reply_to(&self.subject, &nonce);
        let (sender, receiver) = oneshot::channel();
        entries(&self.pending).insert(nonce.clone(), sender);
        let _registered = Registered { pending: &self.pending, nonce };
        self.connection.publish_with_reply(self.subject.clone(), reply, None, body).await?;
        receiver.await.map_err(|_| NatsError::disconnected(self.subject.as_str()))
    }

    /// Subscribes to the replies once, and again if that subscription ended.
    async fn bind(&self) -> Result<(), NatsError> {
        let mut router = self.router.lock().await;
        if router.as_ref().is_some_and(|running| !running.0.is_finished()) {
            return Ok(());
        }
        let replies = self.connection.subscribe(replies_of(&self.subject), None).await?;
        let routing = route(replies, reply_to(&self.subject, ""), Arc::clone(&self.pending));
        *router = Some(Router(tokio::spawn(routing)));
        Ok(())
    }
}

/// Gives every reply to its request; one that nobody waits for any more is dropped.
async fn route(mut replies: Subscription, prefix: String, pending: Pending) {
    while let Ok(reply) = replies.next().await {
        let nonce = reply.subject.strip_prefix(&prefix).map(str::to_owned);
        if let Some(waiting) = nonce.and_then(|nonce| entries(&pending).remove(&nonce)) {
            // Whoever asked may have stopped waiting in this moment.
            let _ = waiting.send(reply);
        }
    }
    // Those who wait learn it from their closed channel.
    entries(&pending).clear();
}
