//! An inventory of a lifecycle's member rows: fence, wait, read (INV-4).
//!
//! Invariant: the read begins only after every change of the lifecycle's rows that had begun on
//! this process has finished, and after the fence is up, if one is needed. Then each row is either
//! listed, or taken back by whoever wrote it.

use cotal_wire::rows::AclRow;

use super::needs_fence;
use crate::directory::Acl;

/// What to do next for an inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InventoryAsk {
    /// Read the lifecycle's ACL row from the leader.
    Acl,
    /// Refuse every later change of the lifecycle's rows on this process.
    Fence,
    /// Wait until the changes that had begun have finished.
    Settle,
    /// Read the members bucket, as it is from now on.
    Read,
}

/// The answer to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InventoryAnswer<'a> {
    /// The ACL row; `None` if there is none.
    Acl(Option<&'a AclRow>),
    /// The ACL row cannot be read, so it is not known to refuse changes by itself.
    NoAnswer,
    /// Done.
    Done,
}

/// An inventory in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inventory(InventoryAsk);

impl Default for Inventory {
    fn default() -> Self {
        Self(InventoryAsk::Acl)
    }
}

impl Inventory {
    /// The next step. The inventory is over after its last one, the read.
    #[must_use]
    pub fn next(self) -> InventoryAsk {
        self.0
    }

    /// The inventory after this answer.
    #[must_use]
    pub fn answer(self, answer: InventoryAnswer<'_>) -> Self {
        Self(match (self.0, answer) {
            (InventoryAsk::Acl, InventoryAnswer::Acl(row)) if !needs_fence(Acl::of(row)) => {
                InventoryAsk::Settle
            }
            (InventoryAsk::Acl, _) => InventoryAsk::Fence,
            (InventoryAsk::Fence, _) => InventoryAsk::Settle,
            (InventoryAsk::Settle | InventoryAsk::Read, _) => InventoryAsk::Read,
        })
    }
}
