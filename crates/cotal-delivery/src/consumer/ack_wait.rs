//! What was pulled and is lost comes back soon.
//!
//! The broker gives a pulled message again only after the ack wait, a minute. What a crashed daemon had
//! pulled, and what was on its way when a connection dropped, is nobody's: so at the start and after
//! each drop the wait is short for a few seconds. What is done twice by it is harmless: message ids see
//! to that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cotal_nats::js::{ConsumerAction, ConsumerInfo};
use cotal_nats::{Connection, ConsumerConfig};
use cotal_wire::Space;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::counters::Counters;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;

/// The ack wait of both consumers (`docs/wire.md` §3), in nanoseconds.
pub(crate) const ACK_WAIT_NS: i64 = 60 * SHORT_ACK_WAIT_NS;
/// The ack wait for a while, in nanoseconds.
const SHORT_ACK_WAIT_NS: i64 = 1_000_000_000;
/// How long it stays so short.
const SHORT_FOR: Duration = Duration::from_secs(3);
/// After a drop, what is really worked on is answered by then.
const CHECK_AFTER_DROP: Duration = Duration::from_secs(1);

/// One consumer of the lane.
pub(crate) struct ShortAckWait {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) stream: String,
    pub(crate) config: ConsumerConfig,
    /// What is not served is not changed.
    pub(crate) gate: Gate,
    /// Entries that wait on purpose; shortening the wait would bring them too soon.
    pub(crate) waiting: Option<Arc<Counters>>,
}

impl ShortAckWait {
    /// Brings back what a crashed daemon had pulled: the lease proves that nobody works on it any
    /// more. `waiting` counts what waits on purpose.
    pub(crate) fn spawn(
        context: &LaneContext,
        stream: &str,
        info: &ConsumerInfo,
        waiting: Option<Arc<Counters>>,
    ) {
        let lost = info.num_ack_pending > 0 || info.config.ack_wait != ACK_WAIT_NS;
        let short = Self {
            space: context.space.clone(),
            connection: context.connection.clone(),
            stream: stream.to_owned(),
            config: info.config.clone(),
            gate: context.gate.clone(),
            waiting,
        };
        context.spawn("the short ack wait", short.run(lost, context.stop.clone()));
    }

    /// Runs until told to stop; `lost` tells whether something was left by whoever served before.
    pub(crate) async fn run(mut self, mut lost: bool, stop: CancellationToken) {
        let mut state = self.connection.state();
        loop {
            let drops = state.borrow().drops;
            if lost {
                self.for_a_while(&stop).await;
            }
            let back = state.wait_for(|s| s.drops > drops && s.is_connected());
            let back = stop.run_until_cancelled(back).await.map(|seen| seen.is_ok());
            match back {
                Some(true) => {}
                // The connection's own end ends the lane elsewhere.
                Some(false) => return stop.cancelled().await,
                None => return,
            }
            if stop.run_until_cancelled(tokio::time::sleep(CHECK_AFTER_DROP)).await.is_none() {
                return;
            }
            lost = self.is_owed().await;
        }
    }

    /// Whether more is unanswered than waits on purpose.
    async fn is_owed(&self) -> bool {
        let waiting =
            self.waiting.as_ref().map_or(0, |counters| counters.waiting.load(Ordering::Relaxed));
        match self.connection.consumer_info(&self.stream, &self.config.name).await {
            Ok(info) => info.num_ack_pending > waiting,
            // It comes back after its ack wait.
            Err(_) => false,
        }
    }

    async fn for_a_while(&mut self, stop: &CancellationToken) {
        self.set(SHORT_ACK_WAIT_NS, stop).await;
        stop.run_until_cancelled(tokio::time::sleep(SHORT_FOR)).await;
        self.set(ACK_WAIT_NS, stop).await;
    }

    async fn set(&mut self, ack_wait: i64, stop: &CancellationToken) {
        stop.run_until_cancelled(self.gate.open()).await;
        if !self.gate.is_open() {
            return;
        }
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
