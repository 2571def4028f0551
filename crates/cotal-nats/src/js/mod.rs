//! JetStream API calls on [`Connection`], each on a subject that can be read off the code.
//!
//! Invariant: a call publishes on exactly one subject, below `$JS.API` or, for a stream of another
//! account, below the prefix that the credential names; so a permission table that lists the
//! subject permits the call and nothing else.

mod config;
mod direct;
mod message;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use config::{
    ConsumerConfig, ConsumerInfo, PubAck, SequencePair, StreamConfig, StreamInfo, StreamState,
};
pub use direct::DirectBatch;
pub use message::{Deleted, Get, StoredMessage};

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;

use crate::connection::Connection;
use crate::error::{ApiError, NatsError};
use crate::headers;

/// Creating thousands of durables, or a consumer behind a large filter, takes the broker a while.
const SLOW_CALL: Duration = Duration::from_secs(30);

/// Whether a consumer must be new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerAction {
    /// Fails on one of the same name with another configuration, and is idempotent otherwise.
    Create,
    /// Creates it or changes its configuration.
    CreateOrUpdate,
}

#[derive(Deserialize)]
struct Failure {
    error: Option<ApiError>,
}

/// Reads an API reply: the broker's refusal, or the answer.
pub(crate) fn parse_reply<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, NatsError> {
    let failure: Failure =
        serde_json::from_slice(body).map_err(|e| NatsError::malformed(what, e))?;
    if let Some(error) = failure.error {
        return Err(error.classify(what));
    }
    serde_json::from_slice(body).map_err(|e| NatsError::malformed(what, e))
}

impl Connection {
    /// One API call: JSON in, JSON out, failures classified.
    pub async fn js_call<T: DeserializeOwned>(
        &self,
        subject: &str,
        body: &impl Serialize,
        within: Option<Duration>,
    ) -> Result<T, NatsError> {
        let body = serde_json::to_vec(body).map_err(|e| NatsError::malformed(subject, e))?;
        let reply = self.request(subject, None, body.into(), within).await?;
        parse_reply(subject, &reply.payload)
    }

    /// `$JS.API.INFO`: the account's limits and usage, as the broker gives them.
    pub async fn account_info(&self) -> Result<Value, NatsError> {
        self.js_call("$JS.API.INFO", &json!({}), None).await
    }

    /// `STREAM.INFO`: configuration and state.
    pub async fn stream_info(&self, stream: &str) -> Result<StreamInfo, NatsError> {
        let subject = format!("{}.STREAM.INFO.{stream}", self.api_of(stream));
        self.js_call(&subject, &json!({}), None).await
    }

    /// The state alone, leader-served.
    pub async fn stream_state(&self, stream: &str) -> Result<StreamState, NatsError> {
        Ok(self.stream_info(stream).await?.state)
    }

    /// The newest sequence the stream ever gave, leader-served.
    pub async fn last_seq(&self, stream: &str) -> Result<u64, NatsError> {
        Ok(self.stream_state(stream).await?.last_seq)
    }

    /// How many messages each subject below `filter` holds, from `offset` on, and how many subjects
    /// there are in all. The broker answers in pages of 100,000.
    pub async fn stream_info_subjects(
        &self,
        stream: &str,
        filter: &str,
        offset: u64,
    ) -> Result<SubjectsPage, NatsError> {
        #[derive(Deserialize)]
        struct Answer {
            state: State,
            #[serde(default)]
            total: u64,
        }
        #[derive(Deserialize)]
        struct State {
            #[serde(default)]
            subjects: Option<std::collections::BTreeMap<String, u64>>,
        }
        let subject = format!("{}.STREAM.INFO.{stream}", self.api_of(stream));
        let body = json!({ "subjects_filter": filter, "offset": offset });
        let answer: Answer = self.js_call(&subject, &body, Some(SLOW_CALL)).await?;
        let subjects: Vec<_> = answer.state.subjects.unwrap_or_default().into_iter().collect();
        let total = answer.total.max(offset + subjects.len() as u64);
        Ok(SubjectsPage { subjects, total })
    }

    /// `STREAM.CREATE`: idempotent for an equal configuration, a conflict for another.
    pub async fn create_stream(
        &self,
        name: &str,
        config: &impl Serialize,
    ) -> Result<StreamInfo, NatsError> {
        self.js_call(&format!("$JS.API.STREAM.CREATE.{name}"), config, Some(SLOW_CALL)).await
    }

    /// `STREAM.UPDATE`.
    pub async fn update_stream(
        &self,
        name: &str,
        config: &impl Serialize,
    ) -> Result<StreamInfo, NatsError> {
        self.js_call(&format!("$JS.API.STREAM.UPDATE.{name}"), config, Some(SLOW_CALL)).await
    }

    /// `STREAM.DELETE`.
    pub async fn delete_stream(&self, name: &str) -> Result<(), NatsError> {
        let subject = format!("$JS.API.STREAM.DELETE.{name}");
        self.js_call::<Value>(&subject, &json!({}), Some(SLOW_CALL)).await.map(drop)
    }

    /// `STREAM.PURGE` of everything, or of what `filter` matches; returns how many went.
    pub async fn purge_stream(&self, name: &str, filter: Option<&str>) -> Result<u64, NatsError> {
        let body = filter.map_or_else(|| json!({}), |filter| json!({ "filter": filter }));
        self.purge(name, body).await
    }

    /// `STREAM.PURGE` of one subject up to a sequence, that one included; returns how many went.
    pub async fn purge_up_to(
        &self,
        name: &str,
        subject: &str,
        up_to: u64,
    ) -> Result<u64, NatsError> {
        self.purge(name, json!({ "filter": subject, "seq": up_to.saturating_add(1) })).await
    }

    async fn purge(&self, name: &str, body: Value) -> Result<u64, NatsError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            purged: u64,
        }
        let subject = format!("$JS.API.STREAM.PURGE.{name}");
        let answer: Answer = self.js_call(&subject, &body, Some(SLOW_CALL)).await?;
        Ok(answer.purged)
    }

    /// `CONSUMER.INFO`.
    pub async fn consumer_info(
        &self,
        stream: &str,
        consumer: &str,
    ) -> Result<ConsumerInfo, NatsError> {
        let subject = format!("{}.CONSUMER.INFO.{stream}.{consumer}", self.api_of(stream));
        self.js_call(&subject, &json!({}), None).await
    }

    /// `CONSUMER.CREATE.<stream>.<name>`, with `filter` as the subject's tail when there is one:
    /// that is the form by which permissions bind a name to a filter. `config` carries the same
    /// two.
    pub async fn create_consumer(
        &self,
        stream: &str,
        name: &str,
        filter: Option<&str>,
        config: &impl Serialize,
        action: ConsumerAction,
    ) -> Result<ConsumerInfo, NatsError> {
        let mut subject = format!("{}.CONSUMER.CREATE.{stream}.{name}", self.api_of(stream));
        if let Some(filter) = filter {
            subject.push('.');
            subject.push_str(filter);
        }
        let action = match action {
            ConsumerAction::Create => "create",
            ConsumerAction::CreateOrUpdate => "",
        };
        let body = json!({ "stream_name": stream, "config": config, "action": action });
        self.js_call(&subject, &body, Some(SLOW_CALL)).await
    }

    /// `CONSUMER.DELETE`; absent is an error of its own, so that the caller decides.
    pub async fn delete_consumer(&self, stream: &str, consumer: &str) -> Result<(), NatsError> {
        let subject = format!("{}.CONSUMER.DELETE.{stream}.{consumer}", self.api_of(stream));
        self.js_call::<Value>(&subject, &json!({}), None).await.map(drop)
    }

    /// Publishes one message and waits until its stream has stored it.
    pub async fn publish_confirmed(
        &self,
        subject: impl Into<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
        msg_id: Option<&str>,
    ) -> Result<PubAck, NatsError> {
        let subject = subject.into();
        self.may_write(|| format!("a message to {subject}"))?;
        let headers = match msg_id {
            None => headers,
            Some(id) => {
                let mut headers = headers.unwrap_or_default();
                let id = id.parse::<HeaderValue>().map_err(|_| {
                    NatsError::malformed("message id", "it holds a line break".to_owned())
                })?;
                headers.insert(HeaderName::from_static(headers::MSG_ID), id);
                Some(headers)
            }
        };
        let reply = self.request(subject.clone(), headers, payload, None).await?;
        parse_reply(&subject, &reply.payload)
    }
}

/// One page of [`Connection::stream_info_subjects`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectsPage {
    /// Subjects with their number of messages.
    pub subjects: Vec<(String, u64)>,
    /// Subjects in all pages together.
    pub total: u64,
}
