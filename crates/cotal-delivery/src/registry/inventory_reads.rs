//! The reads of the members bucket for inventories.
//!
//! Inventories that arrive together share one read of the bucket, and each one's read begins after
//! it arrived (INV-2): the task drains the queue first, and asks for freshness then.

use std::sync::Arc;

use cotal_nats::NatsError;
use cotal_wire::names::parse_member_key;
use cotal_wire::{Channel, Lifecycle};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::state::view::{Feed, View};

/// Inventories that wait for the next read; when the queue is full, callers wait for a place.
const MAX_QUEUED_INVENTORIES: usize = 256;

type Ask = (Lifecycle, oneshot::Sender<Result<Vec<Channel>, NatsError>>);

/// Requests inventories.
#[derive(Debug, Clone)]
pub(crate) struct Inventories(mpsc::Sender<Ask>);

impl Inventories {
    /// The channels on which `member` has a row, from a read that begins after this call.
    pub(super) async fn of(&self, member: &Lifecycle) -> Result<Vec<Channel>, NatsError> {
        let (answer, channels) = oneshot::channel();
        self.0.send((member.clone(), answer)).await.map_err(|_| NatsError::Closed)?;
        channels.await.map_err(|_| NatsError::Closed)?
    }
}

/// Answers all waiting inventories from one read.
pub(crate) struct InventoryReader {
    view: Arc<View>,
    asks: mpsc::Receiver<Ask>,
}

/// Both sides.
pub(crate) fn inventories(view: &Arc<View>) -> (Inventories, InventoryReader) {
    let (sender, asks) = mpsc::channel(MAX_QUEUED_INVENTORIES);
    (Inventories(sender), InventoryReader { view: Arc::clone(view), asks })
}

impl InventoryReader {
    /// Reads until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut together = Vec::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                count = self.asks.recv_many(&mut together, MAX_QUEUED_INVENTORIES) => {
                    if count == 0 {
                        return;
                    }
                }
            }
            let fresh = self.view.fresh(&[Feed::Members]).await;
            for (member, answer) in together.drain(..) {
                let channels = fresh.clone().map(|()| self.channels_of(&member));
                // A caller that has gone needs no answer.
                let _ = answer.send(channels);
            }
        }
    }

    /// Every channel with a row of the lifecycle, open or closed, even if its latest value is
    /// garbled.
    fn channels_of(&self, member: &Lifecycle) -> Vec<Channel> {
        let directory = self.view.directory();
        let rows = directory.memberships_of(member).into_iter().map(|(channel, _)| channel);
        let garbled = directory.garbled_members().filter_map(parse_member_key);
        let garbled = garbled.filter(|(_, owner)| owner == member).map(|(channel, _)| channel);
        let mut channels: Vec<_> = rows.chain(garbled).collect();
        channels.sort();
        channels.dedup();
        channels
    }
}
