//! Redelivery within seconds of what a process or a connection has lost.
//!
//! The broker redelivers a pulled message only once its ack wait has run out, a minute. After a
//! crash, a dropped connection, or while another process's pulls still take messages away, nobody
//! works on them. So this task shortens the ack wait for a few seconds: at the start, after each
//! drop, and again as long as progress is not proven. What is done twice by it is harmless: message
//! ids see to that.

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
/// The ack wait for a while, in nanoseconds.
const SHORT_ACK_WAIT_NS: i64 = 1_000_000_000;
/// How long it stays so short.
const SHORT_FOR: Duration = Duration::from_secs(3);
/// How long it is left alone in between, so that a slow reader also makes progress.
const LONG_FOR: Duration = Duration::from_secs(5);
/// After a drop, what is really worked on is answered by then.
const CHECK_AFTER_DROP: Duration = Duration::from_secs(1);

/// One consumer of the lane.
pub(crate) struct ShortAckWait {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) stream: String,
    pub(crate) config: ConsumerConfig,
    /// Nothing is changed while the lane does not serve.
    pub(crate) gate: Gate,
    /// Counts what waits on purpose; shortening the wait would bring it too soon.
    pub(crate) waiting: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Whether nothing is owed by a delivery that went elsewhere.
    pub(crate) is_proven: watch::Receiver<bool>,
}

impl ShortAckWait {
    /// Brings back what a crashed daemon had pulled: the lease proves that nobody works on it any
    /// more. `waiting` counts what waits on purpose.
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

    /// Runs until told to stop; `lost` tells whether something was left by whoever served before.
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

    /// Waits until something may be lost, and tells whether it is.
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
            // The end of the connection, or of the reader, ends the lane elsewhere.
            std::future::pending::<()>().await;
        }
        sleep(CHECK_AFTER_DROP).await;
        self.is_owed().await
    }

    /// Whether more is unanswered than waits on purpose.
    async fn is_owed(&self) -> bool {
        let waiting = (self.waiting)();
        match self.connection.consumer_info(&self.stream, &self.config.name).await {
            Ok(info) => info.num_ack_pending > waiting,
            // It comes back after its ack wait.
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
            warn!(%space, stream, consumer = name, %error, "the ack wait was not changed");
        }
    }
}
