//! The inventory that a retirement reads before it deletes a lifecycle's member rows.
//!
//! Inventories that arrive together share one read of the bucket, and each one's read begins after
//! it arrived (INV-2): the reader of the queue drains it, and only then asks for freshness.

use std::sync::Arc;

use cotal_nats::NatsError;
use cotal_rules::membership::{Inventory, InventoryAnswer, InventoryAsk};
use cotal_wire::names::parse_member_key;
use cotal_wire::{Channel, Lifecycle};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Registry, RegistryError};
use crate::state::view::{Feed, View};

/// Inventories that wait for the next read; beyond it their callers wait to be queued.
const QUEUE: usize = 256;

type Ask = (Lifecycle, oneshot::Sender<Result<Vec<Channel>, NatsError>>);

/// Asks for inventories.
#[derive(Debug, Clone)]
pub(crate) struct Inventories(mpsc::Sender<Ask>);

/// Answers them, one read for all that wait.
pub(crate) struct InventoryReader {
    view: Arc<View>,
    asks: mpsc::Receiver<Ask>,
}

/// Both sides.
pub(crate) fn inventories(view: &Arc<View>) -> (Inventories, InventoryReader) {
    let (sender, asks) = mpsc::channel(QUEUE);
    (Inventories(sender), InventoryReader { view: Arc::clone(view), asks })
}

impl InventoryReader {
    /// Reads until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut together = Vec::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                count = self.asks.recv_many(&mut together, QUEUE) => {
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

    /// Every row of the lifecycle, open or closed, also one whose latest value is garbled.
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

impl Registry {
    /// Serves `lifecycleMemberships`: fences the lifecycle unless its ACL row refuses reads by
    /// itself, waits for the writes that had begun, then reads (INV-4).
    pub(crate) async fn inventory(
        &self,
        member: &Lifecycle,
    ) -> Result<Vec<Channel>, RegistryError> {
        let mut inventory = Inventory::default();
        loop {
            inventory = match inventory.next() {
                InventoryAsk::Acl => match self.read_acl(member).await {
                    Ok(row) => inventory.answer(InventoryAnswer::Acl(row.as_ref())),
                    Err(_) => inventory.answer(InventoryAnswer::NoAnswer),
                },
                InventoryAsk::Fence => {
                    self.turns.fence(member);
                    inventory.answer(InventoryAnswer::Done)
                }
                InventoryAsk::Settle => {
                    self.turns.settled(member).await;
                    inventory.answer(InventoryAnswer::Done)
                }
                InventoryAsk::Read => break,
            }
        }
        let (answer, channels) = oneshot::channel();
        let gone = |_| NatsError::Closed;
        self.inventories.0.send((member.clone(), answer)).await.map_err(|_| NatsError::Closed)?;
        Ok(channels.await.map_err(gone)??)
    }
}
