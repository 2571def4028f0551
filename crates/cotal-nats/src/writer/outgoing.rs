//! A message to be written, and its size and headers on the wire.

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;

use crate::headers;

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
