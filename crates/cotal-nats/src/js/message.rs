//! Single stored messages: leader-served reads and deletes.

use async_nats::HeaderMap;
use bytes::Bytes;
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::connection::Connection;
use crate::error::{NO_MESSAGE, NatsError};
use crate::headers;

/// Which message to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get<'a> {
    /// Exactly this sequence.
    Seq(u64),
    /// The first at or after `seq` whose subject matches.
    NextBySubject {
        /// Where to begin.
        seq: u64,
        /// A subject, wildcards allowed.
        subject: &'a str,
    },
    /// The newest of this subject.
    LastBySubject(&'a str),
}

impl Get<'_> {
    pub(crate) fn body(self) -> Value {
        match self {
            Self::Seq(seq) => json!({ "seq": seq }),
            Self::NextBySubject { seq, subject } => json!({ "seq": seq, "next_by_subj": subject }),
            Self::LastBySubject(subject) => json!({ "last_by_subj": subject }),
        }
    }
}

/// A message as its stream holds it.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    /// Its subject.
    pub subject: String,
    /// Its sequence.
    pub seq: u64,
    /// Its headers.
    pub headers: Option<HeaderMap>,
    /// Its body.
    pub payload: Bytes,
    /// When it was stored.
    pub time: OffsetDateTime,
}

/// Outcome of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It was there and is gone now.
    Deleted,
    /// The stream did not hold it any more.
    AlreadyGone,
}

#[derive(Deserialize)]
struct GetAnswer {
    message: RawMessage,
}

#[derive(Deserialize)]
struct RawMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    time: String,
}

impl TryFrom<RawMessage> for StoredMessage {
    type Error = NatsError;

    fn try_from(raw: RawMessage) -> Result<Self, NatsError> {
        let what = |part: &str| format!("{part} of stored message {} on {}", raw.seq, raw.subject);
        let payload = BASE64
            .decode(raw.data.as_bytes())
            .map_err(|e| NatsError::malformed(what("body"), e))?;
        let block = BASE64
            .decode(raw.hdrs.as_bytes())
            .map_err(|e| NatsError::malformed(what("headers"), e))?;
        let time = OffsetDateTime::parse(&raw.time, &Rfc3339)
            .map_err(|e| NatsError::malformed(what("time"), e))?;
        let headers = headers::parse_block(&block);
        Ok(Self { subject: raw.subject, seq: raw.seq, headers, payload: payload.into(), time })
    }
}

impl Connection {
    /// `STREAM.MSG.GET`, answered by the leader; `None` when there is no such message.
    pub async fn get_message(
        &self,
        stream: &str,
        get: Get<'_>,
    ) -> Result<Option<StoredMessage>, NatsError> {
        let subject = format!("{}.STREAM.MSG.GET.{stream}", self.api_of(stream));
        match self.js_call::<GetAnswer>(&subject, &get.body(), None).await {
            Ok(answer) => answer.message.try_into().map(Some),
            Err(NatsError::Absent { err_code: NO_MESSAGE, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `STREAM.MSG.DELETE` without erasing; a repeated delete is no error.
    pub async fn delete_message(&self, stream: &str, seq: u64) -> Result<Deleted, NatsError> {
        self.may_write(|| format!("deleting {seq} from {stream}"))?;
        let subject = format!("$JS.API.STREAM.MSG.DELETE.{stream}");
        let body = json!({ "seq": seq, "no_erase": true });
        match self.js_call::<Value>(&subject, &body, None).await {
            Ok(_) => Ok(Deleted::Deleted),
            Err(error) if error.is_already_deleted() => Ok(Deleted::AlreadyGone),
            Err(error) => Err(error),
        }
    }
}
