//! The inventory that a retirement requests before it deletes a lifecycle's member rows.

use cotal_rules::membership::{Inventory, InventoryAnswer, InventoryAsk};
use cotal_wire::{Channel, Lifecycle};

use super::{Registry, RegistryError};

impl Registry {
    /// Serves `lifecycleMemberships`: fences the lifecycle, unless its ACL row refuses reads by
    /// itself; waits for the writes that had begun; then reads (INV-4).
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
        Ok(self.inventories.of(member).await?)
    }
}
