//! Taking messages from a durable consumer, also when somebody deletes it under the daemon.

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

/// How long one look for messages lasts.
const CONSUMER_CHECK_EVERY: Duration = Duration::from_secs(30);
/// Between two attempts to make a consumer again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Binds a consumer; one that is missing is made, and that is said loudly, because what it had read
/// is forgotten.
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
            error!(%space, stream, consumer = config.name, "a consumer is missing; it is created anew");
            let filter = config.filter_subject.as_deref();
            let create = ConsumerAction::Create;
            let make = || connection.create_consumer(stream, &config.name, filter, config, create);
            context.ask("cannot create a consumer", make).await
        }
    }
}

/// A consumer that is read for as long as the lane lives.
pub(crate) struct PullSource {
    space: Space,
    connection: Connection,
    stream: String,
    /// When the stream was created: the sequences of another one mean nothing here.
    created: String,
    consumer: String,
    options: PullOptions,
    pull: PullConsumer,
    /// How the consumer is made again, while it is missing. Kept until that is done, so that a
    /// cancelled attempt is repeated and not contradicted. Not before that instant: the broker is
    /// still removing the files of the one that vanished, and answers to that one are still on
    /// their way.
    missing: Option<(ConsumerConfig, Instant)>,
    /// Where the consumer begins that was made anew and not told of yet.
    recreated: Option<u64>,
    /// Taken while the lane did not serve. Kept here, so that a cancelled call loses nothing.
    held: Vec<Delivery>,
}

/// What a pull brought.
pub(crate) struct Pulled {
    /// Where the consumer begins, if it was made anew before these were delivered.
    pub(crate) recreated: Option<u64>,
    /// In the order in which they arrived.
    pub(crate) deliveries: Vec<Delivery>,
}

impl PullSource {
    /// Binds the consumer; `ahead` messages are pulled before they are worked on.
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

    /// The next messages, handed out only while the lane may serve: the broker still answers the
    /// pulls of a process that was paused. `gather` says whether more than one are waited for. A
    /// vanished consumer is made again as `resume` says, loudly. Cancel-safe.
    ///
    /// # Errors
    /// When the credential does not allow the pull any more.
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
                        "the consumer vanished under the daemon; it is created again"
                    );
                    self.missing = Some((resume(), Instant::now() + RETRY_AFTER));
                }
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => {
                    warn!(space = %self.space, consumer = self.consumer, %error, "pulling again");
                }
            }
        }
    }

    /// Ends the pulls and hands out what they still gave. It comes before anything is given back:
    /// the broker would give that to a pull which is still open, and then again behind what is
    /// newer.
    pub(crate) async fn end(&mut self, gate: &Gate) -> Left {
        let mut left = self.pull.leave(|| gate.is_open()).await;
        left.add(self.held.drain(..));
        left
    }

    /// Returns what was not worked on, so that the daemon that serves next gets it at once and in
    /// order. It is confirmed, because that one pulls as soon as the lease is released. A lane that
    /// no longer serves leaves it alone: the next daemon may be at work on it.
    pub(crate) async fn give_back(&self, left: Left, gate: &Gate) {
        let given_back = left.give_back(|| gate.is_open()).await;
        log_failure(&self.space, "return what was left", given_back);
    }

    /// Whether the consumer is there again, and bound.
    async fn create_again(&mut self, config: &ConsumerConfig) -> Result<bool, PullError> {
        match self.connection.stream_info(&self.stream).await {
            Ok(info) if info.created == self.created => {}
            // The lane ends once it sees that (`state::streams`).
            Ok(_) => std::future::pending().await,
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "not created yet");
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
                warn!(space = %self.space, consumer = self.consumer, "another consumer stands in its place; it is removed");
                self.remove().await;
                return Ok(false);
            }
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "not created yet");
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

    /// Removes what stands in the place of the consumer that vanished. Another one begins
    /// elsewhere, so reading on from it could skip messages; one that was made while the broker
    /// still removed the files of the one before is broken for good.
    async fn remove(&self) {
        match self.connection.delete_consumer(&self.stream, &self.consumer).await {
            Ok(()) | Err(NatsError::Absent { .. }) => {}
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "not removed yet");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}
