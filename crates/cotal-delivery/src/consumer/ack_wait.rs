//! Makes the broker redeliver lost messages within seconds.
//!
//! The broker redelivers a pulled message only after its ack wait, a minute. After a crash or a
//! dropped connection nobody processes the messages that were pulled, and while another process's
//! old pulls still take messages, nobody processes those. So this task shortens the ack wait for a
//! few seconds: at the start, after each drop, and repeatedly while progress is not proven. If a
//! message is processed twice because of that, its message id makes the second copy harmless.

use std::time::Duration;

use cotal_nats::js::{ConsumerAction, ConsumerInfo};
use cotal_nats::{Connection, ConsumerConfig};
use cotal_wire::Space;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;

/// The ack wait of both consumers (`docs/wire.md` §3), in nanoseconds.
pub(crate) const ACK_WAIT_NS: i64 = 60 * SHORT_ACK_WAIT_NS;
/// The shortened ack wait, in nanoseconds.
const SHORT_ACK_WAIT_NS: i64 = 1_000_000_000;
/// How long the ack wait stays short.
const SHORT_FOR: Duration = Duration::from_secs(3);
/// How long it then stays long, so that a slow reader makes progress too.
const LONG_FOR: Duration = Duration::from_secs(5);
/// After a drop, messages that are really in progress are answered by then.
const CHECK_AFTER_DROP: Duration = Duration::from_secs(1);

/// One consumer of the lane.
pub(crate) struct ShortAckWait {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) stream: String,
    pub(crate) config: ConsumerConfig,
    /// The ack wait is not changed while the lane does not serve.
    pub(crate) gate: Gate,
    /// Counts entries that wait on purpose; a shorter ack wait would redeliver those too early.
    pub(crate) waiting: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Whether no delivery that went elsewhere is still unacknowledged.
    pub(crate) is_proven: watch::Receiver<bool>,
}

impl ShortAckWait {
    /// Starts the task. The lease proves that nobody processes what a crashed daemon had pulled, so
    /// it is redelivered at once. `waiting` counts the entries that wait on purpose.
    pub(crate) fn spawn(
        context: &LaneContext,
        info: &ConsumerInfo,
        waiting: impl Fn() -> u64 + Send + Sync + 'static,
        is_proven: watch::Receiver<bool>,
    ) {
        let lost = info.num_ack_pending > 0 || info.config.ack_wait != ACK_WAIT_NS;
        let short = Self {
            space: context.space.clone(),
            connection: context.connection.clone(),
            stream: info.stream_name.clone(),
            config: info.config.clone(),
            gate: context.gate.clone(),
            waiting: Box::new(waiting),
            is_proven,
        };
        context.spawn("the short ack wait", short.run(lost, context.stop.clone()));
    }

    /// Runs until told to stop; `lost` says whether the daemon before left messages unacknowledged.
    pub(crate) async fn run(mut self, lost: bool, stop: CancellationToken) {
        let working = async {
            let mut lost = lost;
            loop {
                let drops = self.connection.state().borrow().drops;
                if lost {
                    self.shorten_for_a_while().await;
                    sleep(LONG_FOR).await;
                }
                lost = self.loses(drops).await;
            }
        };
        stop.run_until_cancelled(working).await;
    }

    /// Waits until messages may have been lost; returns whether some were.
    async fn loses(&mut self, drops: u64) -> bool {
        let mut state = self.connection.state();
        let back = async { state.wait_for(|s| s.drops > drops && s.is_connected()).await.is_ok() };
        let unproven = async { self.is_proven.wait_for(|is_proven| !is_proven).await.is_ok() };
        let (is_back, is_unproven) = tokio::select! {
            is_back = back => (is_back, false),
            is_unproven = unproven => (false, is_unproven),
        };
        if is_unproven {
            return true;
        }
        if !is_back {
            // The end of the connection or of the reader ends the lane elsewhere.
            std::future::pending::<()>().await;
        }
        sleep(CHECK_AFTER_DROP).await;
        self.is_owed().await
    }

    /// Whether more messages are unacknowledged than wait on purpose.
    async fn is_owed(&self) -> bool {
        let waiting = (self.waiting)();
        match self.connection.consumer_info(&self.stream, &self.config.name).await {
            Ok(info) => info.num_ack_pending > waiting,
            // They are redelivered after the ack wait.
            Err(_) => false,
        }
    }

    async fn shorten_for_a_while(&mut self) {
        self.set(SHORT_ACK_WAIT_NS).await;
        sleep(SHORT_FOR).await;
        self.set(ACK_WAIT_NS).await;
    }

    async fn set(&mut self, ack_wait: i64) {
        self.gate.open().await;
        self.config.ack_wait = ack_wait;
        let Self { space, stream, config, .. } = self;
        let (filter, name) = (config.filter_subject.as_deref(), config.name.as_str());
        let update = ConsumerAction::CreateOrUpdate;
        let done = self.connection.create_consumer(stream, name, filter, config, update).await;
        if let Err(error) = done {
            warn!(%space, stream, consumer = name, %error, "the ack wait could not be changed");
        }
    }
}
