//! Locks on member rows: one change of a lifecycle's rows at a time, and none once it is fenced.
//!
//! Invariant (INV-4): an inventory that fences a lifecycle reads only after every write that had
//! begun before has finished, and no write begins after the fence.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use cotal_wire::Lifecycle;
use tokio::sync::MutexGuard;

use crate::striped_locks::StripedLocks;

/// The locks of a registry, by lifecycle. One per lifecycle is enough, because an agent's requests
/// are processed one after the other anyway.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    lifecycles: StripedLocks,
    fenced: Mutex<HashSet<Lifecycle>>,
}

/// The lock on the rows of one lifecycle.
pub(crate) struct RowLock<'a>(#[expect(dead_code, reason = "held, never read")] MutexGuard<'a, ()>);

impl RowLocks {
    /// Waits for the lock on the rows of `member`; `None` if the lifecycle is fenced.
    pub(super) async fn take(&self, member: &Lifecycle) -> Option<RowLock<'_>> {
        let turn = self.lifecycles.lock(member).await;
        (!self.is_fenced(member)).then_some(RowLock(turn))
    }

    fn is_fenced(&self, member: &Lifecycle) -> bool {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner).contains(member)
    }

    /// Refuses every later change of `member`'s rows on this process.
    pub(super) fn fence(&self, member: &Lifecycle) {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner).insert(member.clone());
    }

    /// Waits until a change of `member`'s rows that had begun has finished.
    pub(super) async fn settled(&self, member: &Lifecycle) {
        drop(self.lifecycles.lock(member).await);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn inv_4_an_inventory_waits_for_the_turns_that_had_begun_and_none_begins_after_it() {
        let turns = Arc::new(RowLocks::default());
        let bob = Lifecycle::parse(&format!("local.bob.{}", "b".repeat(26))).unwrap();
        let begun = turns.take(&bob).await.expect("a turn");
        turns.fence(&bob);
        let (waiting, member) = (Arc::clone(&turns), bob.clone());
        let mut settled = tokio::spawn(async move { waiting.settled(&member).await });
        let early = tokio::time::timeout(Duration::from_millis(50), &mut settled).await;
        assert!(early.is_err(), "it did not wait for a change under way");
        drop(begun);
        settled.await.expect("settled");
        assert!(turns.take(&bob).await.is_none(), "a turn of a fenced lifecycle");
        let carol = Lifecycle::parse(&format!("local.carol.{}", "c".repeat(26))).unwrap();
        assert!(turns.take(&carol).await.is_some());
    }
}
