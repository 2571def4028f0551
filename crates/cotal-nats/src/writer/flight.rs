//! What is on the wire and not yet confirmed, for each of the two ways of confirming.

use std::collections::VecDeque;

use async_nats::Subject;
use serde::Deserialize;
use tokio::time::Instant;

use super::outgoing::Outgoing;
use crate::error::{ApiError, NatsError};

/// A message on its way.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) message: Outgoing,
    pub(super) ticket: u64,
    pub(super) index: usize,
    /// Position among all submissions; what is sent again keeps it.
    pub(super) order: u64,
    pub(super) submitted: Instant,
    pub(super) sent: Instant,
    /// Why it had to be sent again.
    pub(super) setback: Option<Box<NatsError>>,
}

/// Messages that are confirmed one by one, by the number at the end of their reply subject.
#[derive(Debug, Default)]
pub(super) struct Singles {
    base: u64,
    slots: VecDeque<Option<Entry>>,
}

impl Singles {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.slots.push_back(Some(entry));
    }

    pub(super) fn take(&mut self, number: u64) -> Option<Entry> {
        let slot = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let entry = self.slots.get_mut(slot)?.take();
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
        entry
    }

    pub(super) fn drain(&mut self, into: &mut Vec<Entry>) {
        self.base += self.slots.len() as u64;
        into.extend(self.slots.drain(..).flatten());
    }

    /// Takes out the messages on `subject`.
    pub(super) fn take_subject(&mut self, subject: &str, into: &mut Vec<Entry>) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|entry| entry.message.subject.as_str() == subject) {
                into.extend(slot.take());
            }
        }
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.slots.front()?.as_ref().map(|entry| entry.sent)
    }
}

/// What to do with a message of a fast batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FastOp {
    Start = 0,
    Append = 1,
    /// Store this one and end the batch.
    Commit = 2,
}

/// How often the broker is asked to report; it may report more often.
const FLOW: u64 = 256;

/// One fast-ingest batch (ADR-50). Its messages are numbered from 1; the broker confirms up to a
/// number.
#[derive(Debug)]
pub(super) struct FastBatch {
    pub(super) id: String,
    reply_prefix: String,
    /// Number of the front entry.
    front: u64,
    entries: VecDeque<Entry>,
    pub(super) committed: bool,
}

impl FastBatch {
    /// Its replies lie below `inbox`, which ends with a dot.
    pub(super) fn new(inbox: &str, id: String) -> Self {
        let reply_prefix = format!("{inbox}{id}.{FLOW}.fail.");
        Self { id, reply_prefix, front: 1, entries: VecDeque::new(), committed: false }
    }

    pub(super) fn unconfirmed(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn sent(&self) -> u64 {
        self.front + self.entries.len() as u64 - 1
    }

    /// The reply subject of the next message. The last token makes the broker read it as fast
    /// ingest.
    pub(super) fn next_reply(&self, last: bool) -> Subject {
        let number = self.sent() + 1;
        let op = match (number, last) {
            (_, true) => FastOp::Commit,
            (1, false) => FastOp::Start,
            _ => FastOp::Append,
        };
        let mut reply = String::with_capacity(self.reply_prefix.len() + 26);
        reply.push_str(&self.reply_prefix);
        push_number(&mut reply, number);
        reply.push('.');
        push_number(&mut reply, op as u64);
        reply.push_str(".$FI");
        reply.into()
    }

    pub(super) fn push(&mut self, entry: Entry, last: bool) {
        self.entries.push_back(entry);
        self.committed |= last;
    }

    /// The next entry that `number` covers.
    pub(super) fn pop_confirmed(&mut self, number: u64) -> Option<Entry> {
        if number < self.front {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.front += 1;
        Some(entry)
    }

    /// Takes out the message with this number, for which the broker had an error of its own.
    pub(super) fn take(&mut self, number: u64) -> Option<Entry> {
        let slot = usize::try_from(number.checked_sub(self.front)?).ok()?;
        self.entries.remove(slot)
    }

    pub(super) fn holds(&self, subject: &str) -> bool {
        self.entries.iter().any(|entry| entry.message.subject.as_str() == subject)
    }

    pub(super) fn drain(self, into: &mut Vec<Entry>) {
        into.extend(self.entries);
    }

    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.sent)
    }
}

/// What the broker reports on a fast batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Everything up to this number is stored.
    Ack(u64),
    /// The batch is over and everything up to this number is stored.
    Final(u64),
    /// The batch is over; this message failed, if it is known which.
    Failed(Option<u64>, Option<ApiError>),
}

#[derive(Deserialize)]
struct RawFlow<'a> {
    #[serde(default, rename = "type")]
    kind: Option<&'a str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    count: u64,
    error: Option<ApiError>,
}

impl Flow {
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let raw: RawFlow<'_> = serde_json::from_slice(body).ok()?;
        Some(match (raw.kind, raw.error) {
            (Some("ack"), None) => Self::Ack(raw.seq),
            (Some("err"), error) => Self::Failed(Some(raw.seq), error),
            (None, None) => Self::Final(raw.count),
            (_, error) => Self::Failed(None, error),
        })
    }
}

/// Appends a number without going through the formatter: it is done once per message.
pub(super) fn push_number(text: &mut String, number: u64) {
    let mut digits = [0_u8; 20];
    let mut rest = number;
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend(digits[start..].iter().map(|digit| char::from(*digit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let mut text = String::new();
            push_number(&mut text, number);
            assert_eq!(text, number.to_string());
        }
    }

    #[test]
    fn reports_are_told_apart() {
        assert_eq!(Flow::parse(br#"{"type":"ack","seq":7,"msgs":10}"#), Some(Flow::Ack(7)));
        let last = br#"{"stream":"S","seq":900,"batch":"b","count":12}"#;
        assert_eq!(Flow::parse(last), Some(Flow::Final(12)));
        let gap = br#"{"type":"gap","last_seq":3,"seq":5}"#;
        assert_eq!(Flow::parse(gap), Some(Flow::Failed(None, None)));
        let err =
            br#"{"type":"err","seq":4,"error":{"code":400,"err_code":10054,"description":"d"}}"#;
        assert!(matches!(Flow::parse(err), Some(Flow::Failed(Some(4), Some(_)))));
    }
}
