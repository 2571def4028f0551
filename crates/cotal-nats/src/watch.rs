//! A watch over a bucket that knows when it is stale.
//!
//! It is a named ephemeral consumer that is pulled from. Invariant: every row that is handed out
//! follows the one before without a gap in the consumer's own count; a gap, a missing heartbeat or
//! a vanished consumer makes the watch begin anew right after the last row it handed out, and say
//! so.

use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use data_encoding::BASE32_NOPAD;
use tokio::time::Instant;

use crate::error::NatsError;
use crate::js::{ConsumerAction, ConsumerConfig};
use crate::kv::{Bucket, EntryOperation, Key};
use crate::pull::{AckInfo, PullError, PullOptions, PullRequests};

/// The broker forgets an abandoned watch after this long.
const INACTIVE: Duration = Duration::from_secs(60);
/// Between attempts to begin anew, so that a broker in trouble is not asked in a hot loop.
const RETRY: Duration = Duration::from_millis(250);
/// A wait without events ends now and then; the caller does not see it.
const SLICE: Duration = Duration::from_secs(30);

/// How to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Keys, wildcards allowed; `>` is all. Any other needs the permission for its filter.
    pub filter: String,
    /// Whether the consumer is created with the filter as the subject's tail.
    pub filter_in_subject: bool,
    /// Whether the first scan tells every revision that the bucket holds, oldest first, and not
    /// only the newest of each key.
    pub history: bool,
    /// Pull settings; the heartbeat bounds how long a stalled watch goes unnoticed.
    pub pull: PullOptions,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            filter: ">".to_owned(),
            filter_in_subject: true,
            history: false,
            pull: PullOptions {
                batch: 4_000,
                max_bytes: 0,
                expires: Duration::from_secs(30),
                idle_heartbeat: Duration::from_secs(2),
            },
        }
    }
}

/// Why a row is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// A client deleted it.
    Deleted,
    /// A client purged it.
    Purged,
    /// It reached the bucket's age limit.
    Expired,
    /// The broker removed it for another reason.
    Removed,
}

/// What a watch tells.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A row has this value now.
    Put {
        /// The private key of the certificate.
        key: Key,
        /// Its value, a slice of the read buffer.
        value: Bytes,
        /// Its revision.
        revision: u64,
    },
    /// A row is gone.
    Delete {
        /// The private key of the certificate.
        key: Key,
        /// The marker's revision.
        revision: u64,
        /// Why.
        reason: RemovalReason,
    },
    /// A message whose subject lies outside the bucket; only its revision counts.
    Foreign {
        /// Its revision.
        revision: u64,
    },
    /// Everything the bucket held when the watch began has been told.
    InitialDone,
    /// The watch had to begin anew. Until the next `InitialDone` what it told may be stale.
    Reset {
        /// The bucket itself is another one now: everything is told again from the start, and what
        /// is not told again no longer exists.
        bucket_recreated: bool,
    },
}

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    bucket: Bucket,
    options: WatchOptions,
    bucket_created: String,
    pull: Option<PullRequests>,
    /// Consumer sequence of the last message seen.
    consumer_seq: u64,
    applied: u64,
    /// Whether the initial state of this incarnation is still being told.
    initial: Initial,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Initial {
    Pending,
    Due,
    Told,
}

impl Bucket {
    /// Watches all rows.
    pub async fn watch_all(&self) -> Result<Watch, NatsError> {
        self.watch(WatchOptions::default()).await
    }

    /// Watches as `options` say. Fails at once on a denial or an absent bucket.
    pub async fn watch(&self, options: WatchOptions) -> Result<Watch, NatsError> {
        let info = self.connection().stream_info(self.stream()).await?;
        let mut watch = Watch {
            bucket: self.clone(),
            options,
            bucket_created: info.created,
            pull: None,
            consumer_seq: 0,
            applied: 0,
            initial: Initial::Pending,
        };
        Box::pin(watch.begin()).await?;
        Ok(watch)
    }
}

impl Watch {
    /// The revision of the last row that was handed out.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The next event. An error is final: the credential lacks a permission, the bucket is gone, or
    /// the connection is closed. Everything else is repaired and told as [`WatchEvent::Reset`].
    pub async fn next(&mut self) -> Result<WatchEvent, NatsError> {
        loop {
            if self.initial == Initial::Due {
                self.initial = Initial::Told;
                return Ok(WatchEvent::InitialDone);
            }
            let Some(pull) = &mut self.pull else {
                return Box::pin(self.restart()).await;
            };
            match pull.next_message(Instant::now() + SLICE).await {
                Ok(Some(message)) => match self.accept(message) {
                    Some(event) => return Ok(event),
                    None => Box::pin(self.leave()).await,
                },
                Ok(None) => {}
                Err(PullError::Nats(error)) if is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(bucket = self.bucket.name(), %error, "watch begins anew");
                    Box::pin(self.leave()).await;
                }
            }
        }
    }

    /// Gives the consumer up and begins anew right after the last row that was handed out, because
    /// the bucket was seen to hold more than the watch tells.
    pub async fn begin_anew(&mut self) {
        self.leave().await;
    }

    async fn begin(&mut self) -> Result<(), NatsError> {
        let connection = self.bucket.connection();
        let name = format!("w{}", unique()?);
        let filter = format!("{}{}", self.bucket.prefix(), self.options.filter);
        let (policy, start) = match self.applied {
            0 if self.options.history => ("all", None),
            0 => ("last_per_subject", None),
            applied => ("by_start_sequence", Some(applied + 1)),
        };
        let config = ConsumerConfig {
            name: name.clone(),
            deliver_policy: policy.to_owned(),
            opt_start_seq: start,
            ack_policy: "none".to_owned(),
            filter_subject: Some(filter.clone()),
            inactive_threshold: i64::try_from(INACTIVE.as_nanos()).unwrap_or(i64::MAX),
            mem_storage: true,
            num_replicas: 1,
            ..ConsumerConfig::default()
        };
        let tail = self.options.filter_in_subject.then_some(filter.as_str());
        let stream = self.bucket.stream();
        let info = connection
            .create_consumer(stream, &name, tail, &config, ConsumerAction::Create)
            .await?;
        let pull = PullRequests::open(connection, stream, &name, self.options.pull).await?;
        self.pull = Some(pull);
        self.consumer_seq = 0;
        self.initial = if info.num_pending == 0 { Initial::Due } else { Initial::Pending };
        Ok(())
    }

    /// Begins anew until it succeeds. Cancel-safe: every step leaves the watch without a consumer
    /// or with a working one.
    async fn restart(&mut self) -> Result<WatchEvent, NatsError> {
        loop {
            match self.try_restart().await {
                Ok(event) => return Ok(event),
                Err(error) if error.is_transient() || is_recovering(&error) => {
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_restart(&mut self) -> Result<WatchEvent, NatsError> {
        let connection = self.bucket.connection();
        let info = connection.stream_info(self.bucket.stream()).await?;
        let bucket_recreated =
            info.created != self.bucket_created || info.state.last_seq < self.applied;
        if bucket_recreated {
            self.applied = 0;
            self.bucket_created = info.created;
        }
        self.begin().await?;
        Ok(WatchEvent::Reset { bucket_recreated })
    }

    /// Drops the current consumer; the broker forgets it after its inactivity threshold, or at once
    /// when the credential may delete it.
    async fn leave(&mut self) {
        let Some(mut pull) = self.pull.take() else {
            return;
        };
        let _ = pull.inbox.unsubscribe().await;
        let (connection, stream) = (self.bucket.connection(), self.bucket.stream());
        let api = connection.api_of(stream);
        let subject = format!("{api}.CONSUMER.DELETE.{stream}.{}", pull.consumer());
        let _ = connection.publish(subject, None, Bytes::new()).await;
    }

    /// Turns a message into its event; `None` when the consumer's count has a gap.
    fn accept(&mut self, message: Message) -> Option<WatchEvent> {
        let info = AckInfo::parse(message.reply.as_deref()?)?;
        if info.consumer_seq != self.consumer_seq + 1 {
            return None;
        }
        self.consumer_seq = info.consumer_seq;
        self.applied = info.stream_seq;
        if self.initial == Initial::Pending && info.pending == 0 {
            self.initial = Initial::Due;
        }
        let revision = info.stream_seq;
        let operation = EntryOperation::of(message.headers.as_ref());
        let Some(key) = Key::new(message.subject, self.bucket.prefix()) else {
            return Some(WatchEvent::Foreign { revision });
        };
        let gone = |reason| WatchEvent::Delete { key: key.clone(), revision, reason };
        Some(match operation {
            EntryOperation::Delete => gone(RemovalReason::Deleted),
            EntryOperation::Purge => gone(RemovalReason::Purged),
            EntryOperation::Expired => gone(RemovalReason::Expired),
            EntryOperation::Removed => gone(RemovalReason::Removed),
            EntryOperation::Put => WatchEvent::Put { key, value: message.payload, revision },
        })
    }
}

/// What beginning anew cannot repair.
fn is_final(error: &NatsError) -> bool {
    matches!(error, NatsError::Denied { .. } | NatsError::Closed)
}

/// A restarted broker refuses for a while before it has recovered its streams.
fn is_recovering(error: &NatsError) -> bool {
    matches!(error, NatsError::Refused { code: 503, .. })
}

/// A consumer name no other watch has, on any connection.
fn unique() -> Result<String, NatsError> {
    let mut bytes = [0_u8; 10];
    getrandom::fill(&mut bytes).map_err(|e| NatsError::malformed("kernel randomness", e))?;
    Ok(BASE32_NOPAD.encode(&bytes))
}
