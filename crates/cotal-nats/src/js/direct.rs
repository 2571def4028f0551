//! Direct gets: reads that any replica may answer, one by one or many for one request.
//!
//! Invariant: only streams with `allow_direct` answer, and an answer may lag behind the leader;
//! whoever needs the truth as of now uses [`Connection::get_message`].

use std::time::Duration;

use async_nats::Message;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::message::{Get, StoredMessage};
use crate::connection::Connection;
use crate::error::{ApiError, NatsError};
use crate::headers;

/// A batch may be thousands of messages off a cold disk.
const BATCH_TIMEOUT: Duration = Duration::from_secs(10);
const NO_MESSAGE: u16 = 404;
const END_OF_BATCH: u16 = 204;

/// One answered batch.
#[derive(Clone, Debug, Default)]
pub struct DirectBatch {
    /// In sequence order.
    pub messages: Vec<StoredMessage>,
    /// How many more match beyond this batch.
    pub pending: u64,
}

impl Connection {
    /// `DIRECT.GET.<stream>`; `None` when there is no such message.
    pub async fn direct_get(
        &self,
        stream: &str,
        get: Get<'_>,
    ) -> Result<Option<StoredMessage>, NatsError> {
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        let body = get.body().to_string();
        let reply = self.request(subject.as_str(), None, body.into(), None).await?;
        match reply.status.map_or(200, |status| status.as_u16()) {
            200 => decode(reply).map(Some),
            NO_MESSAGE => Ok(None),
            code => Err(refusal(&subject, code, &reply)),
        }
    }

    /// The newest message of each of `subjects` (wildcards allowed). The broker refuses a request
    /// that matches more than about a thousand subjects.
    pub async fn direct_multi_last(
        &self,
        stream: &str,
        subjects: &[String],
        batch: usize,
    ) -> Result<DirectBatch, NatsError> {
        self.direct_batch(stream, json!({ "multi_last": subjects, "batch": batch })).await
    }

    /// Up to `batch` messages at or after `seq` whose subject matches `filter`.
    pub async fn direct_next(
        &self,
        stream: &str,
        seq: u64,
        filter: &str,
        batch: usize,
    ) -> Result<DirectBatch, NatsError> {
        let body = json!({ "seq": seq, "next_by_subj": filter, "batch": batch });
        self.direct_batch(stream, body).await
    }

    /// The same of the messages stored at or after an instant.
    pub async fn direct_since(
        &self,
        stream: &str,
        since: OffsetDateTime,
        filter: &str,
        batch: usize,
    ) -> Result<DirectBatch, NatsError> {
        let since =
            since.format(&Rfc3339).map_err(|e| NatsError::malformed("instant to read from", e))?;
        let body = json!({ "start_time": since, "next_by_subj": filter, "batch": batch });
        self.direct_batch(stream, body).await
    }

    async fn direct_batch(&self, stream: &str, body: Value) -> Result<DirectBatch, NatsError> {
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        let inbox = self.new_inbox();
        let mut replies = self.raw_subscribe(inbox.clone()).await?;
        let mut batch = DirectBatch::default();
        let collect = async {
            self.publish_with_reply(subject.as_str(), inbox, None, body.to_string().into()).await?;
            loop {
                let Some(reply) = replies.next().await else {
                    return Err(NatsError::Closed);
                };
                let pending = headers::number(reply.headers.as_ref(), "Nats-Num-Pending");
                match reply.status.map_or(200, |status| status.as_u16()) {
                    200 => batch.messages.push(decode(reply)?),
                    END_OF_BATCH => {
                        batch.pending = pending.unwrap_or(0);
                        return Ok(());
                    }
                    NO_MESSAGE => return Ok(()),
                    503 => {
                        return Err(NatsError::NoResponders { subject: subject.clone() });
                    }
                    code => return Err(refusal(&subject, code, &reply)),
                }
            }
        };
        self.race(&subject.as_str().into(), BATCH_TIMEOUT, collect).await?;
        Ok(batch)
    }
}

fn refusal(subject: &str, code: u16, reply: &Message) -> NatsError {
    let description = reply.description.clone().unwrap_or_default();
    ApiError { code, err_code: 0, description }.classify(subject)
}

fn decode(reply: Message) -> Result<StoredMessage, NatsError> {
    // The broker adds its lines behind those of the publisher, who may have used the same names.
    let part = |name: &'static str| {
        headers::last(reply.headers.as_ref(), name)
            .ok_or_else(|| NatsError::malformed("directly read message", format!("no {name}")))
    };
    let subject = part(headers::SUBJECT)?.to_owned();
    let seq = part(headers::SEQUENCE)?
        .parse()
        .map_err(|e| NatsError::malformed("directly read message", e))?;
    let time = OffsetDateTime::parse(part(headers::TIME_STAMP)?, &Rfc3339)
        .map_err(|e| NatsError::malformed("directly read message", e))?;
    Ok(StoredMessage { subject, seq, headers: reply.headers, payload: reply.payload, time })
}
