//! A delivered message as an owned value that its verdict consumes.

use std::time::Duration;

use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;

use crate::connection::Connection;
use crate::error::NatsError;
use crate::headers;

/// What the reply subject of a delivery says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckInfo {
    pub(crate) delivered: u64,
    pub(crate) stream_seq: u64,
    pub(crate) consumer_seq: u64,
    pub(crate) timestamp_ns: u64,
    pub(crate) pending: u64,
}

impl AckInfo {
    /// Reads `$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>`, or the
    /// longer form that begins with a domain and an account hash and ends with a token.
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let tokens = rest.bytes().filter(|b| *b == b'.').count() + 1;
        let skip = if tokens >= 9 { 4 } else { 2 };
        let mut numbers = rest.split('.').skip(skip).map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        Some(Self {
            delivered: next()?,
            stream_seq: next()?,
            consumer_seq: next()?,
            timestamp_ns: next()?,
            pending: next()?,
        })
    }
}

/// A message that was pulled and must be answered: [`ack`](Self::ack), [`nak`](Self::nak) or
/// [`term`](Self::term) consume it. Dropping it leaves it to the broker's ack wait.
#[derive(Debug)]
#[must_use = "an unanswered delivery comes again after the ack wait"]
pub struct Delivery {
    /// Subject it was published on.
    pub subject: Subject,
    /// Its headers.
    pub headers: Option<HeaderMap>,
    /// Its body.
    pub payload: Bytes,
    /// Its sequence in the stream.
    pub stream_seq: u64,
    /// Its number among the consumer's deliveries.
    pub consumer_seq: u64,
    /// How often it was delivered, this one included.
    pub delivered: u64,
    /// How many more wait for the consumer.
    pub pending: u64,
    /// When the stream stored it, in Unix nanoseconds.
    pub timestamp_ns: u64,
    reply: Subject,
    connection: Connection,
}

impl Delivery {
    pub(crate) fn new(connection: &Connection, message: Message) -> Result<Self, NatsError> {
        let reply = message
            .reply
            .ok_or_else(|| NatsError::malformed("delivery", "it has no reply subject"))?;
        let info = AckInfo::parse(&reply)
            .ok_or_else(|| NatsError::malformed("delivery", format!("reply subject {reply}")))?;
        Ok(Self {
            subject: message.subject,
            headers: message.headers,
            payload: message.payload,
            stream_seq: info.stream_seq,
            consumer_seq: info.consumer_seq,
            delivered: info.delivered,
            pending: info.pending,
            timestamp_ns: info.timestamp_ns,
            reply,
            connection: connection.clone(),
        })
    }

    /// The deduplication key it was published with.
    pub fn msg_id(&self) -> Option<&str> {
        headers::get(self.headers.as_ref(), headers::MSG_ID)
    }

    pub(super) fn reply(&self) -> &Subject {
        &self.reply
    }

    /// One header.
    pub fn header(&self, name: &'static str) -> Option<&str> {
        headers::get(self.headers.as_ref(), name)
    }

    /// Done with it. Fire and forget: a lost ack only brings it again.
    pub async fn ack(self) -> Result<(), NatsError> {
        self.connection.publish(self.reply, None, Bytes::from_static(b"+ACK")).await
    }

    /// Done with it, and the broker has confirmed that.
    pub async fn ack_confirmed(self) -> Result<(), NatsError> {
        let reply = self.reply.clone();
        self.connection.request(reply, None, Bytes::from_static(b"+ACK"), None).await.map(drop)
    }

    /// Again, at once or after `delay`.
    pub async fn nak(self, delay: Option<Duration>) -> Result<(), NatsError> {
        let body = match delay {
            None => Bytes::from_static(b"-NAK"),
            Some(delay) => format!("-NAK {{\"delay\": {}}}", delay.as_nanos()).into(),
        };
        self.answer(body).await
    }

    /// Never again.
    pub async fn term(self) -> Result<(), NatsError> {
        self.answer(Bytes::from_static(b"+TERM")).await
    }

    /// Still at it: the ack wait starts anew.
    pub async fn progress(&self) -> Result<(), NatsError> {
        self.answer(Bytes::from_static(b"+WPI")).await
    }

    async fn answer(&self, body: Bytes) -> Result<(), NatsError> {
        self.connection.publish(self.reply.clone(), None, body).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_reply_subject_are_read() {
        let expected =
            AckInfo { delivered: 1, stream_seq: 22, consumer_seq: 3, timestamp_ns: 44, pending: 5 };
        assert_eq!(AckInfo::parse("$JS.ACK.S.c.1.22.3.44.5"), Some(expected));
        assert_eq!(AckInfo::parse("$JS.ACK._.acc.S.c.1.22.3.44.5.tok"), Some(expected));
        assert_eq!(AckInfo::parse("$JS.ACK.S.c.1.22.3.44"), None);
        assert_eq!(AckInfo::parse("_INBOX.x"), None);
    }
}
