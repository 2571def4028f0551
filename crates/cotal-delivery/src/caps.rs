//! Unread copies that DLV's cap evicts: seen, counted, and told once per member and episode.

use cotal_nats::{Connection, NatsError};
use cotal_rules::overflow::{Overflow, OverflowMeter};
use cotal_wire::{Lifecycle, Space};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::counters::Counters;

/// Hand-offs reported and not yet counted; beyond it the reader waits a moment.
const REPORTS: usize = 8_192;
/// Full members are looked at this often, and once more as they go on.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The reader's side: tells which member was handed a copy.
#[derive(Debug, Clone)]
pub(crate) struct Caps(mpsc::Sender<Lifecycle>);

impl Caps {
    /// Counts one copy handed to `member`.
    pub(crate) async fn handed_off(&self, member: &Lifecycle) {
        // The meter ends with the lane; then there is nobody to tell.
        drop(self.0.send(member.clone()).await);
    }
}

/// Reads how much members have left unread, when it could be too much.
pub(crate) struct CapMeter {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) counters: Arc<Counters>,
    meter: OverflowMeter,
    reports: mpsc::Receiver<Lifecycle>,
}

/// A meter and its reporting side.
pub(crate) fn caps(space: &Space, connection: &Connection, counters: &Arc<Counters>) -> (Caps, CapMeter) {
    let (sender, reports) = mpsc::channel(REPORTS);
    let meter = CapMeter {
        space: space.clone(),
        connection: connection.clone(),
        counters: Arc::clone(counters),
        meter: OverflowMeter::default(),
        reports,
    };
    (Caps(sender), meter)
}

impl CapMeter {
    /// Counts hand-offs and checks who could be full, until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut suspects = HashSet::new();
        let mut tick = tokio::time::interval(CHECK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                member = self.reports.recv() => {
                    let Some(member) = member else { return };
                    self.meter.stored(&member);
                    if self.meter.needs_check(&member) {
                        suspects.insert(member);
                    }
                }
                _ = tick.tick(), if !suspects.is_empty() => {
                    for member in suspects.drain() {
                        if let Err(error) = self.check(&member).await {
                            debug!(space = %self.space, %error, "a member's backlog is unknown");
                        }
                    }
                }
            }
        }
    }

    async fn check(&mut self, member: &Lifecycle) -> Result<(), NatsError> {
        let consumer = self.space.dlv_consumer(member);
        let info = self.connection.consumer_info(&self.space.dlv_stream(), &consumer).await?;
        let unread = info.num_pending + info.num_ack_pending;
        let principal = &member.principal;
        match self.meter.checked(member, unread) {
            Overflow::Quiet => {}
            Overflow::Began { missed } => {
                self.counters.add_missed(principal, missed);
                warn!(
                    space = %self.space, member = %principal, missed,
                    "unread copies of a member are lost to the store's cap; it must read more often"
                );
            }
            Overflow::More { missed } => self.counters.add_missed(principal, missed),
            Overflow::Ended { missed } => {
                warn!(space = %self.space, member = %principal, missed, "a member reads again");
            }
        }
        Ok(())
    }
}
