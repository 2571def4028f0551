//! Pulls messages from a durable consumer, and re-creates the consumer if somebody deletes it.

use cotal_nats::js::{ConsumerAction, ConsumerInfo};
use cotal_nats::{
    Connection, Delivery, Gather, Left, NatsError, PullConsumer, PullError, PullOptions,
};
use cotal_wire::Space;
use cotal_wire::streams::ConsumerConfig;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{error, warn};

use crate::consumer::answers::log_failure;
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use crate::lease::gate::Gate;

/// How long one pull waits for messages.
const CONSUMER_CHECK_EVERY: Duration = Duration::from_secs(30);
/// Between two attempts to re-create a consumer.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Binds a consumer. A missing one is created, and logged as an error, because its position is
/// lost.
pub(crate) async fn bind(
    context: &LaneContext,
    stream: &str,
    config: &ConsumerConfig,
) -> Result<ConsumerInfo, LaneError> {
    let LaneContext { space, connection, .. } = context;
    let found = context.ask("cannot read a consumer", || async {
        match connection.consumer_info(stream, &config.name).await {
            Err(error) if error.is_absent() => Ok(None),
            found => found.map(Some),
        }
    });
    match found.await? {
        Some(info) => Ok(info),
        None => {
            error!(%space, stream, consumer = config.name, "a consumer is missing; it is re-created");
            let filter = config.filter_subject.as_deref();
            let create = ConsumerAction::Create;
            let make = || connection.create_consumer(stream, &config.name, filter, config, create);
            context.ask("cannot create a consumer", make).await
        }
    }
}

/// A consumer that is pulled from for the whole life of the lane.
pub(crate) struct PullSource {
    space: Space,
    connection: Connection,
    stream: String,
    /// When the stream was created: sequences of another stream mean nothing here.
    created: String,
    consumer: String,
    options: PullOptions,
    pull: PullConsumer,
    /// The configuration for re-creating the consumer, while it is missing. It is kept until that
    /// has succeeded, so a cancelled attempt is repeated with the same configuration. The instant
    /// is the earliest time for it: before that, the broker is still removing the files of the
    /// deleted consumer, and acks for that one are still in flight.
    missing: Option<(ConsumerConfig, Instant)>,
    /// Where a re-created consumer begins, if that was not reported yet.
    recreated: Option<u64>,
    /// Messages pulled while the lane did not serve. Kept here, so that a cancelled call loses
    /// none.
    held: Vec<Delivery>,
}

/// The result of a pull.
pub(crate) struct Pulled {
    /// Where the consumer begins, if it was re-created before these were delivered.
    pub(crate) recreated: Option<u64>,
    /// In the order in which they arrived.
    pub(crate) deliveries: Vec<Delivery>,
}

impl PullSource {
    /// Binds the consumer; up to `ahead` messages are pulled before they are processed.
    pub(crate) async fn open(
        context: &LaneContext,
        stream: &str,
        consumer: &str,
        ahead: usize,
    ) -> Result<Self, LaneError> {
        let LaneContext { space, connection, .. } = context;
        let options = PullOptions { batch: ahead, ..PullOptions::default() };
        let open = || async {
            match PullConsumer::open(connection, stream, consumer, options).await {
                Err(PullError::Nats(error)) => Err(error),
                other => Ok(other),
            }
        };
        let pull = context.ask("cannot pull from a consumer", open).await??;
        let read = || connection.stream_info(stream);
        let created = context.ask("cannot read a stream", read).await?.created;
        Ok(Self {
            space: space.clone(),
            connection: connection.clone(),
            stream: stream.to_owned(),
            created,
            consumer: consumer.to_owned(),
            options,
            pull,
            missing: None,
            recreated: None,
            held: Vec::new(),
        })
    }

    /// The next messages. They are returned only while the lane may serve, because the broker still
    /// answers the pulls of a process that was paused. `gather` says how many to wait for. If the
    /// consumer was deleted, it is re-created with the configuration from `resume`, and that is
    /// logged as an error. Cancel-safe.
    ///
    /// # Errors
    /// If the credential no longer allows the pull.
    pub(crate) async fn next(
        &mut self,
        gate: &mut Gate,
        max: usize,
        gather: Gather,
        resume: impl Fn() -> ConsumerConfig,
    ) -> Result<Pulled, PullError> {
        loop {
            gate.open().await;
            if !self.held.is_empty() {
                let deliveries = std::mem::take(&mut self.held);
                return Ok(Pulled { recreated: self.recreated.take(), deliveries });
            }
            if let Some((config, at)) = self.missing.clone() {
                tokio::time::sleep_until(at).await;
                if !self.create_again(&config).await? {
                    continue;
                }
            }
            match self.pull.gather(max, CONSUMER_CHECK_EVERY, gather).await {
                Ok(deliveries) if deliveries.is_empty() => {
                    return Ok(Pulled { recreated: self.recreated.take(), deliveries });
                }
                Ok(batch) => self.held = batch,
                Err(PullError::ConsumerDeleted { .. } | PullError::NoSuchConsumer { .. }) => {
                    error!(
                        space = %self.space, stream = self.stream, consumer = self.consumer,
                        "the consumer was deleted while the daemon used it; it is re-created"
                    );
                    self.missing = Some((resume(), Instant::now() + RETRY_AFTER));
                }
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => {
                    warn!(space = %self.space, consumer = self.consumer, %error, "a pull failed; pulling again");
                }
            }
        }
    }

    /// Ends the pulls; returns the messages that they still brought. Call it before messages are
    /// returned to the broker: otherwise the broker would deliver those to a pull that is still
    /// open, and later once more, after newer messages.
    pub(crate) async fn end(&mut self, gate: &Gate) -> Left {
        let mut left = self.pull.leave(|| gate.is_open()).await;
        left.add(self.held.drain(..));
        left
    }

    /// Returns the messages that were not processed, so that the daemon that serves next gets them
    /// at once and in order. The broker must confirm the return, because the next daemon pulls as
    /// soon as the lease is released. A lane that no longer serves does not answer them: the next
    /// daemon may already process them.
    pub(crate) async fn give_back(&self, left: Left, gate: &Gate) {
        let given_back = left.give_back(|| gate.is_open()).await;
        log_failure(&self.space, "return what was left", given_back);
    }

    /// Re-creates the consumer and binds it; returns whether that succeeded.
    async fn create_again(&mut self, config: &ConsumerConfig) -> Result<bool, PullError> {
        match self.connection.stream_info(&self.stream).await {
            Ok(info) if info.created == self.created => {}
            // The lane ends when it notices that (`state::streams`).
            Ok(_) => std::future::pending().await,
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "could not re-create the consumer yet; retrying");
                tokio::time::sleep(RETRY_AFTER).await;
                return Ok(false);
            }
        }
        let filter = config.filter_subject.as_deref();
        let create = ConsumerAction::Create;
        let made = self
            .connection
            .create_consumer(&self.stream, &self.consumer, filter, config, create)
            .await;
        match made {
            Ok(_) => {}
            Err(error @ NatsError::Denied { .. }) => return Err(error.into()),
            Err(error) if error.is_conflict() => {
                warn!(space = %self.space, consumer = self.consumer, "another consumer has taken the place of the deleted one; it is deleted");
                self.remove().await;
                return Ok(false);
            }
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "could not re-create the consumer yet; retrying");
                if matches!(error, NatsError::Refused { .. }) {
                    self.remove().await;
                }
                tokio::time::sleep(RETRY_AFTER).await;
                return Ok(false);
            }
        }
        self.pull =
            PullConsumer::open(&self.connection, &self.stream, &self.consumer, self.options)
                .await?;
        self.missing = None;
        self.recreated = Some(config.opt_start_seq.unwrap_or(1));
        Ok(true)
    }

    /// Deletes the consumer that has replaced the deleted one. It begins at another position, so
    /// pulling from it could skip messages. One that was created while the broker still removed the
    /// files of the one before is broken for good.
    async fn remove(&self) {
        match self.connection.delete_consumer(&self.stream, &self.consumer).await {
            Ok(()) | Err(NatsError::Absent { .. }) => {}
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "could not delete the consumer yet; retrying");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
