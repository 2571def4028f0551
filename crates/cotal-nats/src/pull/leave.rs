//! Leaving a consumer that nobody else reads, so that whoever reads it next gets everything in
//! order.
//!
//! The broker gives again what was given back before it gives anything new, but in the order in
//! which it came back. So everything is taken first, also what others gave back before, and then
//! goes back at once. Two things are in the way. The client forgets a subscription before the
//! broker has seen its end, and drops what arrives in between, although the broker counts it as
//! delivered. And what the broker cannot deliver any more it gives back to itself, before anybody
//! else can.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use super::{DRAINED_WITHIN, Delivery, Incoming, PullConsumer, PullRequests};
use crate::connection::Connection;
use crate::error::NatsError;
use crate::js::{ConsumerInfo, SequencePair};

/// Messages asked for at once while the rest is taken.
const SWEEP: usize = 256;
/// Silence after which the broker is asked whether it can give anything.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// What goes back to a consumer whose pulls are ended.
#[derive(Debug)]
#[must_use = "what is not given back comes again after the ack wait, behind what is newer"]
pub struct Left {
    connection: Connection,
    /// Where each is answered, in the order of the stream.
    answers: BTreeMap<u64, Subject>,
}

impl Left {
    /// Adds what had been handed out and was not worked on.
    pub fn add(&mut self, deliveries: impl IntoIterator<Item = Delivery>) {
        let answers = deliveries.into_iter().map(|it| (it.stream_seq, it.reply().clone()));
        self.answers.extend(answers);
    }

    /// Gives everything back in the order of the stream, for as long as `may_answer` says yes. When
    /// this returns, the broker has taken it all back.
    ///
    /// # Errors
    /// When the connection is closed, or the broker did not confirm it.
    pub async fn give_back(mut self, may_answer: impl Fn() -> bool) -> Result<(), NatsError> {
        let body = Bytes::from_static(b"-NAK");
        let last = self.answers.pop_last();
        for to in self.answers.into_values() {
            if !may_answer() {
                return Ok(());
            }
            self.connection.publish(to, None, body.clone()).await?;
        }
        // The broker works answers off one by one, so that the last one's end is that of all.
        match last {
            Some((_, to)) if may_answer() => {
                self.connection.request(to, None, body, None).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

/// What the broker answers to a probe that it does not serve, or not in full.
enum Answer {
    /// It has nothing more to give, and what it gave before came before this.
    Empty,
    /// It gives what it has to the pulls that were sent before.
    Busy,
}

impl Answer {
    fn of(message: &async_nats::Message) -> Option<Self> {
        let description = message.description.as_deref().unwrap_or_default();
        match message.status?.as_u16() {
            404 => Some(Self::Empty),
            408 if description.eq_ignore_ascii_case("Requests Pending") => Some(Self::Busy),
            _ => None,
        }
    }
}

impl PullConsumer {
    /// Ends the pulls of a consumer that nobody else reads, and hands out everything that was not
    /// asked for yet. Nothing can be pulled afterwards. Where `is_ours` denies it, somebody else
    /// reads it by now: then the pulls only end, because what is taken would be taken from that
    /// one.
    pub async fn leave(&mut self, is_ours: impl Fn() -> bool) -> Left {
        let deadline = Instant::now() + DRAINED_WITHIN;
        let mut left = Left { connection: self.connection.clone(), answers: BTreeMap::new() };
        if !is_ours() {
            let _ = self.requests.inbox.unsubscribe().await;
            return left;
        }
        let mut deliveries = std::mem::take(&mut self.taken);
        self.catch_up(&mut deliveries, deadline).await;
        let mut seen = self.newest.stream_seq;
        if self.newest.number == 0 {
            // Whatever was delivered until now went to somebody else.
            seen = self.delivered(deadline).await.map_or(u64::MAX, |it| it.stream_seq);
        }
        if self.requests.inbox.drain().await.is_ok() {
            while let Ok(Some(message)) = timeout_at(deadline, self.requests.inbox.next()).await {
                self.keep(message, &mut deliveries);
            }
        }
        // The broker drops the pulls that nobody listens to when it is asked about the consumer.
        if self.delivered(deadline).await.is_some() && is_ours() {
            let _ = self.sweep(&mut deliveries, deadline).await;
            let _ = self.requests.inbox.unsubscribe().await;
        }
        if let Some(ConsumerInfo { delivered, config, .. }) = self.info(deadline).await {
            let (stream, consumer) = (self.requests.stream(), self.requests.consumer());
            let number = delivered.consumer_seq;
            let answer = |seq| format!("$JS.ACK.{stream}.{consumer}.1.{seq}.{number}.0.0").into();
            let unseen = seen.saturating_add(1)..=delivered.stream_seq;
            // More than may be unanswered was answered by somebody before: what came here was old.
            let most = u64::try_from(config.max_ack_pending).unwrap_or_default();
            if delivered.stream_seq.saturating_sub(seen) <= most {
                left.answers.extend(unseen.map(|seq| (seq, answer(seq))));
            }
        }
        left.add(deliveries);
        left
    }

    /// Reads until nothing is on its way.
    async fn catch_up(&mut self, deliveries: &mut Vec<Delivery>, deadline: Instant) {
        while !self.requests.is_exhausted() && Instant::now() < deadline {
            if self.requests.probe(1).await.is_err() {
                return;
            }
            while !self.requests.is_exhausted() {
                let Some(message) = self.next(deadline).await else {
                    return;
                };
                match Answer::of(&message) {
                    Some(Answer::Empty) => return,
                    Some(Answer::Busy) => {
                        self.requests.refused(1);
                        break;
                    }
                    None => self.keep(message, deliveries),
                }
            }
        }
    }

    /// Takes what others gave back, and what the broker gave back to itself, to its end. Nothing is
    /// asked for that would stay open.
    async fn sweep(
        &mut self,
        deliveries: &mut Vec<Delivery>,
        deadline: Instant,
    ) -> Result<(), NatsError> {
        let (stream, consumer) = (self.requests.stream(), self.requests.consumer());
        let options = self.requests.options();
        self.requests = PullRequests::open(&self.connection, stream, consumer, options).await?;
        // What the broker could not deliver is back once it has answered for the first time.
        let mut is_first = true;
        loop {
            self.requests.probe(SWEEP).await?;
            let mut is_empty = false;
            while !is_empty && !self.requests.is_exhausted() {
                let Some(message) = self.next(deadline).await else {
                    return Ok(());
                };
                is_empty = Answer::of(&message).is_some();
                self.keep(message, deliveries);
            }
            self.requests.refused(SWEEP);
            if !is_first && (is_empty || !self.newest.is_again) {
                return Ok(());
            }
            is_first = false;
        }
    }

    fn keep(&mut self, message: async_nats::Message, deliveries: &mut Vec<Delivery>) {
        if let Incoming::Message(message) = self.requests.classify(message) {
            deliveries.extend(self.own(message).ok());
        }
    }

    /// The next message. `None` when none can come: a consumer that has too much unanswered gives
    /// nothing new, and says nothing.
    async fn next(&mut self, deadline: Instant) -> Option<async_nats::Message> {
        loop {
            match timeout(LOOK_AFTER, self.requests.inbox.next()).await {
                Ok(message) => return message,
                Err(_) => {
                    let info = self.info(deadline).await?;
                    let most = u64::try_from(info.config.max_ack_pending).unwrap_or(u64::MAX);
                    if info.num_ack_pending >= most {
                        return None;
                    }
                }
            }
        }
    }

    async fn delivered(&self, deadline: Instant) -> Option<SequencePair> {
        Some(self.info(deadline).await?.delivered)
    }

    async fn info(&self, deadline: Instant) -> Option<ConsumerInfo> {
        timeout_at(deadline, self.requests.info()).await.ok()?.ok()
    }
}
