//! Taking messages from a durable consumer, also when somebody deletes it under the daemon.

use cotal_nats::js::ConsumerAction;
use cotal_nats::{Connection, Delivery, NatsError, PullConsumer, PullError, PullOptions};
use cotal_wire::Space;
use cotal_wire::streams::ConsumerConfig;
use std::time::Duration;
use tracing::{error, warn};

use crate::gate::Gate;

/// How long one look for messages lasts.
const LOOK: Duration = Duration::from_secs(30);

/// A consumer that is read for as long as the lane lives.
pub(crate) struct Intake {
    space: Space,
    connection: Connection,
    stream: String,
    consumer: String,
    options: PullOptions,
    pull: PullConsumer,
    vanished: bool,
}

impl Intake {
    /// Binds the consumer; `ahead` messages are pulled before they are worked on.
    pub(crate) async fn open(
        space: &Space,
        connection: &Connection,
        stream: &str,
        consumer: &str,
        ahead: usize,
    ) -> Result<Self, PullError> {
        let options = PullOptions { batch: ahead, ..PullOptions::default() };
        Ok(Self {
            space: space.clone(),
            connection: connection.clone(),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            options,
            pull: PullConsumer::open(connection, stream, consumer, options).await?,
            vanished: false,
        })
    }

    /// The next messages, once the lane may serve. A vanished consumer is made again as `resume`
    /// says, loudly. Cancel-safe.
    ///
    /// # Errors
    /// When the credential does not allow the pull any more.
    pub(crate) async fn next(
        &mut self,
        gate: &mut Gate,
        max: usize,
        resume: impl Fn() -> ConsumerConfig,
    ) -> Result<Vec<Delivery>, PullError> {
        loop {
            gate.open().await;
            if self.vanished {
                self.create_again(&resume()).await?;
            }
            match self.pull.next_batch(max, LOOK).await {
                Ok(batch) => return Ok(batch),
                Err(PullError::ConsumerDeleted { .. } | PullError::NoSuchConsumer { .. }) => {
                    error!(
                        space = %self.space, stream = self.stream, consumer = self.consumer,
                        "the consumer vanished under the daemon; it is created again"
                    );
                    self.vanished = true;
                }
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => {
                    warn!(space = %self.space, consumer = self.consumer, %error, "pulling again")
                }
            }
        }
    }

    async fn create_again(&mut self, config: &ConsumerConfig) -> Result<(), PullError> {
        let filter = config.filter_subject.as_deref();
        let create = ConsumerAction::Create;
        let made = self
            .connection
            .create_consumer(&self.stream, &self.consumer, filter, config, create)
            .await;
        match made {
            Ok(_) => {}
            Err(error @ NatsError::Denied { .. }) => return Err(error.into()),
            Err(error) => {
                warn!(space = %self.space, consumer = self.consumer, %error, "not created yet");
                tokio::time::sleep(Duration::from_millis(500)).await;
                return Ok(());
            }
        }
        self.pull =
            PullConsumer::open(&self.connection, &self.stream, &self.consumer, self.options)
                .await?;
        self.vanished = false;
        Ok(())
    }
}
