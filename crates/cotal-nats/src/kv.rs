//! Rows of a KV bucket: leader-served reads and compare-and-set writes.
//!
//! Invariant: every read here is the truth as of now, and every conditional write is decided by the
//! broker. Nothing is cached; the cached view is a [`Watch`](crate::Watch).

use std::fmt;
use std::ops::Deref;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;
use cotal_wire::rows::LastValid;
use time::OffsetDateTime;

use crate::connection::Connection;
use crate::error::NatsError;
use crate::headers;
use crate::js::{Get, StoredMessage};

/// A row's key. It borrows the subject it came in, so that scanning a large bucket copies nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    subject: Subject,
    start: usize,
}

impl Key {
    pub(crate) fn new(subject: Subject, prefix: &str) -> Option<Self> {
        subject.strip_prefix(prefix)?;
        Some(Self { subject, start: prefix.len() })
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.subject[self.start..]
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a stored revision of a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryOperation {
    /// A value.
    Put,
    /// A delete marker written by a client.
    Delete,
    /// A purge marker written by a client.
    Purge,
    /// A marker the broker wrote because the value reached its age limit.
    Expired,
    /// A marker the broker wrote because a message was removed or purged.
    Removed,
}

impl EntryOperation {
    pub(crate) fn of(headers: Option<&HeaderMap>) -> Self {
        if let Some(reason) = headers::get(headers, headers::MARKER_REASON) {
            return if reason == "MaxAge" { Self::Expired } else { Self::Removed };
        }
        match headers::get(headers, headers::KV_OPERATION) {
            Some("DEL") => Self::Delete,
            Some("PURGE") => Self::Purge,
            _ => Self::Put,
        }
    }
}

/// One revision of a row.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The private key of the certificate.
    pub key: Key,
    /// Its value; empty for a marker.
    pub value: Bytes,
    /// Its revision, which is the sequence in the bucket's stream.
    pub revision: u64,
    /// What it means.
    pub operation: EntryOperation,
    /// When it was stored.
    pub created: OffsetDateTime,
}

impl Entry {
    /// The value, unless this is a marker.
    pub fn live(&self) -> Option<&Bytes> {
        (self.operation == EntryOperation::Put).then_some(&self.value)
    }
}

/// A history as [`LastValid`] reads it.
pub fn revisions(
    history: &[Entry],
) -> impl DoubleEndedIterator<Item = (u64, Option<&[u8]>)> + Clone {
    history.iter().map(|entry| (entry.revision, entry.live().map(AsRef::as_ref)))
}

/// A cheap handle to one bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    connection: Connection,
    name: String,
    stream: String,
    prefix: String,
}

impl Bucket {
    /// A handle; nothing is asked of the broker.
    pub fn new(connection: &Connection, bucket: &str) -> Self {
        Self {
            connection: connection.clone(),
            name: bucket.to_owned(),
            stream: format!("KV_{bucket}"),
            prefix: format!("$KV.{bucket}."),
        }
    }

    /// The bucket's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stream behind the bucket.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The connection it is reached through.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The same bucket without a fence, for the one write that must be made also by whoever may not
    /// write any more: taking back its own.
    #[must_use]
    pub fn beyond_the_fence(&self) -> Self {
        let mut bucket = self.clone();
        bucket.connection.fence = None;
        bucket
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn subject(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The newest revision of `key`, a marker included; `None` when there is none.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, NatsError> {
        let subject = self.subject(key);
        let found = self.connection.get_message(&self.stream, Get::LastBySubject(&subject)).await?;
        found.map(|message| self.entry(message)).transpose()
    }

    /// Writes `key` only if it holds no value; a marker counts as none. Returns the revision.
    pub async fn create(&self, key: &str, value: Bytes) -> Result<u64, NatsError> {
        let conflict = match self.write(key, value.clone(), Some(0), &[]).await {
            Err(error) if error.is_conflict() => error,
            outcome => return outcome,
        };
        match self.get(key).await? {
            Some(entry) if entry.operation != EntryOperation::Put => {
                self.write(key, value, Some(entry.revision), &[]).await
            }
            _ => Err(conflict),
        }
    }

    /// Writes `key` only if its newest revision is `revision`. Returns the new one.
    pub async fn update(&self, key: &str, value: Bytes, revision: u64) -> Result<u64, NatsError> {
        self.write(key, value, Some(revision), &[]).await
    }

    /// The same, and removes every earlier revision of `key`. The bucket must allow rollup headers.
    pub async fn replace(&self, key: &str, value: Bytes, revision: u64) -> Result<u64, NatsError> {
        self.write(key, value, Some(revision), &[(headers::ROLLUP, "sub")]).await
    }

    /// Writes `key` whatever it holds. Returns the revision.
    pub async fn put(&self, key: &str, value: Bytes) -> Result<u64, NatsError> {
        self.write(key, value, None, &[]).await
    }

    /// Writes a delete marker, only over `revision` when given. Returns the marker's revision.
    pub async fn delete(&self, key: &str, revision: Option<u64>) -> Result<u64, NatsError> {
        self.write(key, Bytes::new(), revision, &[(headers::KV_OPERATION, "DEL")]).await
    }

    /// Removes all revisions of `key` but a marker, only over `revision` when given. The bucket
    /// must allow rollup headers.
    pub async fn purge(&self, key: &str, revision: Option<u64>) -> Result<u64, NatsError> {
        let marks = [(headers::KV_OPERATION, "PURGE"), (headers::ROLLUP, "sub")];
        self.write(key, Bytes::new(), revision, &marks).await
    }

    /// The revisions of `key` that the bucket still holds, oldest first.
    pub async fn history(&self, key: &str) -> Result<Vec<Entry>, NatsError> {
        let subject = self.subject(key);
        let mut entries = Vec::new();
        let mut seq = 1;
        loop {
            let next = Get::NextBySubject { seq, subject: &subject };
            let Some(message) = self.connection.get_message(&self.stream, next).await? else {
                return Ok(entries);
            };
            seq = message.seq + 1;
            entries.push(self.entry(message)?);
        }
    }

    /// What stands behind the garbage at revision `garbled` of `key`, as its history shows it;
    /// `parse` reads a valid row.
    pub async fn last_valid<T>(
        &self,
        key: &str,
        garbled: u64,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<LastValid<T>, NatsError> {
        let history = self.history(key).await?;
        Ok(LastValid::behind(garbled, revisions(&history), |value, _| parse(value)))
    }

    /// The keys that have any revision, markers included, read through stream info.
    pub async fn keys(&self) -> Result<Vec<String>, NatsError> {
        let filter = format!("{}>", self.prefix);
        let mut keys = Vec::new();
        loop {
            let offset = keys.len() as u64;
            let page = self.connection.stream_info_subjects(&self.stream, &filter, offset).await?;
            if page.subjects.is_empty() {
                return Ok(keys);
            }
            let names = page.subjects.into_iter();
            keys.extend(names.filter_map(|(s, _)| Some(s.strip_prefix(&self.prefix)?.to_owned())));
            if keys.len() as u64 >= page.total {
                return Ok(keys);
            }
        }
    }

    /// The freshness barrier: the revision of the first row after `applied`, leader-served. `None`
    /// says that whoever has applied `applied` is current as of the moment this was asked.
    pub async fn next_after(&self, applied: u64) -> Result<Option<u64>, NatsError> {
        let subject = format!("{}>", self.prefix);
        let next = Get::NextBySubject { seq: applied + 1, subject: &subject };
        Ok(self.connection.get_message(&self.stream, next).await?.map(|message| message.seq))
    }

    async fn write(
        &self,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
        marks: &[(&'static str, &str)],
    ) -> Result<u64, NatsError> {
        let mut map = HeaderMap::new();
        for (name, value) in marks {
            map.insert(HeaderName::from_static(name), *value);
        }
        if let Some(revision) = expected {
            map.insert(
                HeaderName::from_static(headers::EXPECTED_LAST_SUBJECT_SEQ),
                HeaderValue::from(revision),
            );
        }
        let subject = self.subject(key);
        let ack = self.connection.publish_confirmed(subject, Some(map), value, None).await?;
        Ok(ack.seq)
    }

    fn entry(&self, message: StoredMessage) -> Result<Entry, NatsError> {
        let subject = Subject::from(message.subject);
        let key = Key::new(subject.clone(), &self.prefix)
            .ok_or_else(|| NatsError::malformed("row", format!("foreign subject {subject}")))?;
        Ok(Entry {
            key,
            value: message.payload,
            revision: message.seq,
            operation: EntryOperation::of(message.headers.as_ref()),
            created: message.time,
        })
    }
}
