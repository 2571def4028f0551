//! The bookkeeping of overlapping pull requests, shared by consumers and watches.

use std::time::Duration;

use async_nats::{Message, Subject};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::options::{PullError, PullOptions};
use crate::broadcast::Listener;
use crate::connection::Connection;
use crate::error::{Denial, NatsError};
use crate::event::ConnState;
use crate::headers;
use crate::js::ConsumerInfo;
use crate::request::{denial_of, is_publish};

/// What arrived on the inbox.
pub(crate) enum Incoming {
    Message(Message),
    Status,
    Error(PullError),
}

enum Woken {
    Message(Option<Message>),
    Denied(Denial),
    Reconnected,
    Silent,
}

#[derive(Debug)]
pub(crate) struct PullRequests {
    connection: Connection,
    stream: String,
    consumer: String,
    options: PullOptions,
    next_subject: Subject,
    inbox_subject: Subject,
    pub(crate) inbox: async_nats::Subscriber,
    denials: Listener<Denial>,
    state: watch::Receiver<ConnState>,
    drops: u64,
    /// Asked for and not yet delivered.
    pending: usize,
    postponed: Option<PullError>,
}

impl PullRequests {
    pub(crate) async fn open(
        connection: &Connection,
        stream: &str,
        consumer: &str,
        options: PullOptions,
    ) -> Result<Self, NatsError> {
        let options = options.no_more_often_than(connection.inner.heartbeat_at_least);
        let inbox_subject = connection.new_inbox();
        let denials = connection.denials();
        let state = connection.state();
        let drops = state.borrow().drops;
        let inbox = connection.raw_subscribe(inbox_subject.clone()).await?;
        let api = connection.api_of(stream);
        Ok(Self {
            connection: connection.clone(),
            next_subject: format!("{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            options,
            inbox_subject: inbox_subject.into(),
            inbox,
            denials,
            drops,
            state,
            pending: 0,
            postponed: None,
        })
    }

    pub(crate) fn stream(&self) -> &str {
        &self.stream
    }

    pub(crate) fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Keeps an error for the next call, because this one has messages to hand out.
    pub(crate) fn postpone(&mut self, error: PullError) {
        self.postponed = Some(error);
    }

    /// The next message, or `None` when `deadline` has passed.
    pub(crate) async fn next_message(
        &mut self,
        deadline: Instant,
    ) -> Result<Option<Message>, PullError> {
        if let Some(error) = self.postponed.take() {
            return Err(error);
        }
        let mut heard = Instant::now();
        loop {
            self.refill().await?;
            let silent_at = heard + self.options.idle_heartbeat * 2;
            let woken = timeout_at(deadline, self.wake(silent_at)).await;
            match woken {
                Err(_) => return Ok(None),
                Ok(Woken::Message(None)) => return Err(NatsError::Closed.into()),
                Ok(Woken::Message(Some(message))) => {
                    heard = Instant::now();
                    match self.classify(message) {
                        Incoming::Message(message) => return Ok(Some(message)),
                        Incoming::Status => {}
                        Incoming::Error(error) => return Err(error),
                    }
                }
                Ok(Woken::Denied(denial)) => return Err(NatsError::denied(denial).into()),
                Ok(Woken::Reconnected) => heard = Instant::now(),
                Ok(Woken::Silent) => return Err(self.missed_heartbeat()),
            }
        }
    }

    async fn wake(&mut self, silent_at: Instant) -> Woken {
        let drops = self.drops;
        let connected = self.state.borrow().is_connected();
        tokio::select! {
            biased;
            message = self.inbox.next() => Woken::Message(message),
            denial = denial_of(&mut self.denials, &self.next_subject, is_publish) => {
                Woken::Denied(denial)
            }
            _ = self.state.wait_for(|s| s.is_connected() && (s.drops != drops || !connected)) => {
                Woken::Reconnected
            }
            // A connection that is down is silent for a reason that its own state tells.
            () = tokio::time::sleep_until(silent_at), if connected => Woken::Silent,
        }
    }

    fn missed_heartbeat(&mut self) -> PullError {
        self.pending = 0;
        PullError::MissedHeartbeat {
            stream: self.stream.clone(),
            consumer: self.consumer.clone(),
            silence: self.options.idle_heartbeat * 2,
        }
    }

    /// Asks for more once half of what may be outstanding has come.
    pub(crate) async fn refill(&mut self) -> Result<(), NatsError> {
        let state = *self.state.borrow();
        if state.drops != self.drops {
            // The broker forgot the pulls of the old connection.
            self.drops = state.drops;
            self.pending = 0;
        }
        if !state.is_connected() || self.pending > self.options.batch / 2 {
            return Ok(());
        }
        let ask = self.options.batch - self.pending;
        let body = self.body(ask);
        self.connection
            .publish_with_reply(self.next_subject.clone(), self.inbox_subject.clone(), None, body)
            .await?;
        self.pending += ask;
        Ok(())
    }

    /// Makes the broker drop the pulls whose inbox is gone: it looks at them when it is asked about
    /// the consumer. Otherwise the first message that is given back goes to one of them, and from
    /// there behind all others.
    pub(crate) async fn forgotten(&self, within: Duration) {
        // Without an answer only the order suffers.
        let _ = tokio::time::timeout(within, self.info()).await;
    }

    pub(crate) async fn info(&self) -> Result<ConsumerInfo, NatsError> {
        self.connection.consumer_info(&self.stream, &self.consumer).await
    }

    pub(crate) fn options(&self) -> PullOptions {
        self.options
    }

    /// Asks for as many messages more as are at hand. If there are fewer, the broker says so at
    /// once, and behind everything that it delivered before.
    pub(crate) async fn probe(&mut self, most: usize) -> Result<(), NatsError> {
        let (to, reply) = (self.next_subject.clone(), self.inbox_subject.clone());
        let body = format!("{{\"batch\":{most},\"no_wait\":true}}").into();
        self.connection.publish_with_reply(to, reply, None, body).await?;
        self.pending += most;
        Ok(())
    }

    /// As many messages that were asked for do not come.
    pub(crate) fn refused(&mut self, count: usize) {
        self.pending = self.pending.saturating_sub(count);
    }

    /// Whether everything that was asked for has come.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.pending == 0
    }

    fn body(&self, batch: usize) -> Bytes {
        let PullOptions { max_bytes, expires, idle_heartbeat, .. } = self.options;
        let expires = nanos(expires);
        let heartbeat = nanos(idle_heartbeat);
        let mut body =
            format!("{{\"batch\":{batch},\"expires\":{expires},\"idle_heartbeat\":{heartbeat}");
        if max_bytes > 0 {
            body.push_str(&format!(",\"max_bytes\":{max_bytes}"));
        }
        body.push('}');
        body.into()
    }

    /// Tells a message from a status line and keeps the count of what is outstanding.
    pub(crate) fn classify(&mut self, message: Message) -> Incoming {
        let Some(status) = message.status else {
            self.pending = self.pending.saturating_sub(1);
            return Incoming::Message(message);
        };
        let undelivered = headers::number(message.headers.as_ref(), headers::PENDING_MESSAGES);
        let undelivered = undelivered.and_then(|n| usize::try_from(n).ok());
        let description = message.description.unwrap_or_default();
        let stream = self.stream.clone();
        let consumer = self.consumer.clone();
        match status.as_u16() {
            100 => Incoming::Status,
            404 | 408 => self.ended(undelivered),
            409 if description.contains("Consumer Deleted") => {
                self.pending = 0;
                Incoming::Error(PullError::ConsumerDeleted { stream, consumer })
            }
            // These end one pull and leave the consumer usable.
            409 if ends_one_pull(&description) => self.ended(undelivered),
            503 => {
                self.pending = 0;
                Incoming::Error(PullError::NoSuchConsumer { stream, consumer })
            }
            code => {
                self.pending = 0;
                Incoming::Error(PullError::Refused { stream, consumer, code, description })
            }
        }
    }

    fn ended(&mut self, undelivered: Option<usize>) -> Incoming {
        self.pending = undelivered.map_or(0, |n| self.pending.saturating_sub(n));
        Incoming::Status
    }
}

fn ends_one_pull(description: &str) -> bool {
    ["Leadership Change", "Server Shutdown", "Batch Completed", "Message Size Exceeds MaxBytes"]
        .iter()
        .any(|known| description.eq_ignore_ascii_case(known))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
