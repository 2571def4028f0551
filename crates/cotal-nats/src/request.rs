//! Core messaging: publish, request, request-many and subscribe.
//!
//! Invariant: nothing that the broker denies is waited for. A denied operation gets no reply, so
//! every wait is raced against the denials of exactly its subject, and against the loss of the
//! connection.

use std::future::Future;
use std::time::Duration;

use async_nats::client::traits::Publisher as _;
use async_nats::message::OutboundMessage;
use async_nats::{HeaderMap, Message, StatusCode, Subject};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout};

use crate::broadcast::{Listener, RecvError};
use crate::connection::{Connection, PROBE_SUBJECT};
use crate::error::{Denial, NatsError, Operation};

/// The client hands events over in a task of its own, so a denial may be seen just after a later
/// reply.
const DENIAL_GRACE: Duration = Duration::from_millis(5);

impl Connection {
    /// Publishes without waiting for anything but room in the client's queue.
    pub async fn publish(
        &self,
        subject: impl Into<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<(), NatsError> {
        self.send(OutboundMessage { subject: subject.into(), reply: None, payload, headers }).await
    }

    /// Publishes with a reply subject, likewise without waiting.
    pub async fn publish_with_reply(
        &self,
        subject: impl Into<Subject>,
        reply: impl Into<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<(), NatsError> {
        let reply = Some(reply.into());
        self.send(OutboundMessage { subject: subject.into(), reply, payload, headers }).await
    }

    pub(crate) async fn send(&self, message: OutboundMessage) -> Result<(), NatsError> {
        self.check_size(
            &message.subject,
            wire_size(message.headers.as_ref(), message.payload.len()),
        )?;
        self.send_checked(message).await
    }

    /// The same for a message whose size was checked before.
    pub(crate) async fn send_checked(&self, message: OutboundMessage) -> Result<(), NatsError> {
        let subject = message.subject.clone();
        self.client()
            .publish_message(message)
            .await
            .map_err(|e| NatsError::from_publish(&e, &subject))
    }

    /// Asks and waits for one reply. Without `within` the connection's own timeout holds.
    pub async fn request(
        &self,
        subject: impl Into<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
        within: Option<Duration>,
    ) -> Result<Message, NatsError> {
        // Boxed: whoever may ask something now and then is not to hold room for it all the time.
        Box::pin(self.ask(subject.into(), headers, payload, within)).await
    }

    async fn ask(
        &self,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        within: Option<Duration>,
    ) -> Result<Message, NatsError> {
        let within = within.unwrap_or(self.inner.request_timeout);
        self.check_size(&subject, wire_size(headers.as_ref(), payload.len()))?;
        let mut request = async_nats::Request::new().payload(payload).timeout(None);
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let asked = subject.clone();
        let answer = async {
            self.client()
                .send_request(asked.clone(), request)
                .await
                .map_err(|e| NatsError::from_request(e.kind(), &asked, &e, within))
        };
        self.race(&subject, within, answer).await
    }

    /// Waits for `work`, which needs an answer to a publish on `subject`.
    pub(crate) async fn race<T>(
        &self,
        subject: &Subject,
        within: Duration,
        work: impl Future<Output = Result<T, NatsError>>,
    ) -> Result<T, NatsError> {
        let mut denials = self.denials();
        let mut state = self.state();
        let drops = state.borrow_and_update().drops;
        if !self.is_connected() {
            // Lets the redial run even when the caller tries again in a loop without a pause.
            tokio::task::yield_now().await;
            return Err(NatsError::disconnected(subject.as_str()));
        }
        let lost = state.wait_for(|s| s.drops != drops || !s.is_connected());
        let work = async {
            tokio::select! {
                biased;
                answer = work => answer,
                denial = denial_of(&mut denials, subject, is_publish) => {
                    Err(NatsError::denied(denial))
                }
                _ = lost => Err(NatsError::disconnected(subject.as_str())),
            }
        };
        timeout(within, work).await.unwrap_or_else(|_| {
            Err(NatsError::Timeout { what: subject.to_string(), after: within })
        })
    }

    /// Asks once and collects several replies: until `enough` says so of the latest, or until
    /// `within` is over, which is no error: whoever asks many judges for himself whether all
    /// answered.
    pub async fn request_many(
        &self,
        subject: impl Into<Subject>,
        payload: Bytes,
        within: Duration,
        mut enough: impl FnMut(&[Message]) -> bool,
    ) -> Result<Vec<Message>, NatsError> {
        let subject = subject.into();
        let inbox = self.new_inbox();
        let mut replies = self.raw_subscribe(inbox.clone()).await?;
        let mut collected = Vec::new();
        let deadline = Instant::now() + within;
        let asked = self.race(&subject, within, async {
            self.publish_with_reply(subject.clone(), inbox, None, payload).await?;
            loop {
                let Some(reply) = replies.next().await else {
                    return Err(NatsError::Closed);
                };
                if reply.status == Some(StatusCode::NO_RESPONDERS) {
                    return Err(NatsError::NoResponders { subject: subject.to_string() });
                }
                collected.push(reply);
                if enough(&collected) || Instant::now() >= deadline {
                    return Ok(());
                }
            }
        });
        match asked.await {
            Ok(()) => Ok(collected),
            Err(NatsError::Timeout { .. }) if !collected.is_empty() => Ok(collected),
            Err(error) => Err(error),
        }
    }

    /// Subscribes, and returns only once the broker has processed it without a denial.
    pub async fn subscribe(
        &self,
        subject: impl Into<Subject>,
        queue: Option<&str>,
    ) -> Result<Subscription, NatsError> {
        let subject = subject.into();
        let mut denials = self.denials();
        let inner = match queue {
            None => Box::pin(self.client().subscribe(subject.clone())).await,
            Some(queue) => {
                let queued = self.client().queue_subscribe(subject.clone(), queue.to_owned());
                Box::pin(queued).await
            }
        };
        let inner =
            inner.map_err(|e| NatsError::malformed(format!("subscription to {subject}"), e))?;
        let proven = async {
            self.round_trip().await?;
            tokio::time::sleep(DENIAL_GRACE).await;
            Ok::<(), NatsError>(())
        };
        tokio::select! {
            biased;
            denial = denial_of(&mut denials, &subject, is_subscribe) => {
                return Err(NatsError::denied(denial));
            }
            proven = proven => proven?,
        }
        Ok(Subscription { subject, inner, denials, denials_open: true })
    }

    /// Returns once the broker has processed everything sent before. Any answer will do, a refusal
    /// too.
    pub async fn round_trip(&self) -> Result<(), NatsError> {
        match self.request(PROBE_SUBJECT, None, Bytes::new(), None).await {
            Ok(_) | Err(NatsError::NoResponders { .. } | NatsError::Denied { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A subscription to an own inbox, which every credential holds, so that nothing need be
    /// proven.
    pub(crate) async fn raw_subscribe(
        &self,
        subject: String,
    ) -> Result<async_nats::Subscriber, NatsError> {
        self.client()
            .subscribe(subject)
            .await
            .map_err(|e| NatsError::malformed("subscription to an inbox", e))
    }
}

/// A proven subscription. A later denial, after a reconnect with fewer permissions, ends it
/// visibly.
#[derive(Debug)]
pub struct Subscription {
    subject: Subject,
    inner: async_nats::Subscriber,
    denials: Listener<Denial>,
    denials_open: bool,
}

impl Subscription {
    /// What is subscribed to.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    fn is_refused_by(&self, denial: &Denial) -> bool {
        is_subscribe(denial) && self.subject.as_str() == denial.subject
    }

    /// The next message; an error ends the subscription. Cancel-safe.
    pub async fn next(&mut self) -> Result<Message, NatsError> {
        loop {
            tokio::select! {
                biased;
                message = self.inner.next() => return message.ok_or(NatsError::Closed),
                denial = self.denials.recv(), if self.denials_open => match denial {
                    Ok(denial) if self.is_refused_by(&denial) => {
                        return Err(NatsError::denied(denial));
                    }
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => self.denials_open = false,
                },
            }
        }
    }

    /// Ends the subscription; what is buffered is dropped.
    pub async fn unsubscribe(mut self) -> Result<(), NatsError> {
        self.inner.unsubscribe().await.map_err(|_| NatsError::Closed)
    }
}

pub(crate) fn is_publish(denial: &Denial) -> bool {
    denial.operation != Operation::Subscribe
}

fn is_subscribe(denial: &Denial) -> bool {
    denial.operation == Operation::Subscribe
}

/// Waits for a denial of `subject`; pends for ever when none can come any more.
pub(crate) async fn denial_of(
    denials: &mut Listener<Denial>,
    subject: &Subject,
    kind: fn(&Denial) -> bool,
) -> Denial {
    loop {
        match denials.recv().await {
            Ok(denial) if kind(&denial) && denial.subject == subject.as_str() => return denial,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Bytes of a message as the broker counts them against `max_payload`.
pub(crate) fn wire_size(headers: Option<&HeaderMap>, payload: usize) -> usize {
    let Some(headers) = headers.filter(|headers| !headers.is_empty()) else {
        return payload;
    };
    let lines: usize = headers
        .iter()
        .map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(|value| name.len() + value.as_str().len() + 4).sum::<usize>()
        })
        .sum();
    "NATS/1.0\r\n\r\n".len() + lines + payload
}
