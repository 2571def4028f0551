//! Whose turn it is: one change of a member row at a time, and none once its lifecycle is fenced.
//!
//! Invariant (INV-4): an inventory that raises a fence reads only after every write that had begun
//! before has finished, and no write begins after it.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{Mutex as StdMutex, PoisonError};

use cotal_wire::Lifecycle;
use tokio::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// Locks by hash; a collision only makes two callers wait for each other.
const STRIPES: usize = 256;

/// The locks of a registry.
#[derive(Debug)]
pub(crate) struct RowLocks {
    rows: [Mutex<()>; STRIPES],
    lifecycles: [RwLock<()>; STRIPES],
    fenced: StdMutex<HashSet<Lifecycle>>,
}

/// A turn at one row.
pub(crate) struct RowLock<'a> {
    _lifecycle: RwLockReadGuard<'a, ()>,
    _row: MutexGuard<'a, ()>,
}

impl Default for RowLocks {
    fn default() -> Self {
        Self {
            rows: std::array::from_fn(|_| Mutex::new(())),
            lifecycles: std::array::from_fn(|_| RwLock::new(())),
            fenced: StdMutex::default(),
        }
    }
}

fn stripe(key: &impl Hash) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    usize::try_from(hash % STRIPES as u64).unwrap_or_default()
}

impl RowLocks {
    /// Waits for a turn at the row `key` of `member`; `None` when the lifecycle is fenced.
    pub(super) async fn take(&self, key: &str, member: &Lifecycle) -> Option<RowLock<'_>> {
        let lifecycle = self.lifecycles[stripe(member)].read().await;
        if self.is_fenced(member) {
            return None;
        }
        let row = self.rows[stripe(&key)].lock().await;
        Some(RowLock { _lifecycle: lifecycle, _row: row })
    }

    fn is_fenced(&self, member: &Lifecycle) -> bool {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner).contains(member)
    }

    /// Refuses every later turn of `member` on this process.
    pub(super) fn fence(&self, member: &Lifecycle) {
        self.fenced.lock().unwrap_or_else(PoisonError::into_inner).insert(member.clone());
    }

    /// Waits until the writes of `member` that had begun have finished.
    pub(super) async fn settled(&self, member: &Lifecycle) {
        drop(self.lifecycles[stripe(member)].write().await);
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
        let begun = turns.take("team/bob", &bob).await.expect("a turn");
        turns.fence(&bob);
        let (waiting, member) = (Arc::clone(&turns), bob.clone());
        let mut settled = tokio::spawn(async move { waiting.settled(&member).await });
        let early = tokio::time::timeout(Duration::from_millis(50), &mut settled).await;
        assert!(early.is_err(), "it did not wait for a change under way");
        drop(begun);
        settled.await.expect("settled");
        assert!(turns.take("team/bob", &bob).await.is_none(), "a turn of a fenced lifecycle");
        let carol = Lifecycle::parse(&format!("local.carol.{}", "c".repeat(26))).unwrap();
        assert!(turns.take("team/carol", &carol).await.is_some());
    }
}
