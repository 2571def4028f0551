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
pub(crate) struct Turns {
    rows: [Mutex<()>; STRIPES],
    lifecycles: [RwLock<()>; STRIPES],
    fenced: StdMutex<HashSet<Lifecycle>>,
}

/// A turn at one row.
pub(crate) struct Turn<'a> {
    _lifecycle: RwLockReadGuard<'a, ()>,
    _row: MutexGuard<'a, ()>,
}

impl Default for Turns {
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

impl Turns {
    /// Waits for a turn at the row `key` of `member`; `None` when the lifecycle is fenced.
    pub(super) async fn take(&self, key: &str, member: &Lifecycle) -> Option<Turn<'_>> {
        let lifecycle = self.lifecycles[stripe(member)].read().await;
        if self.is_fenced(member) {
            return None;
        }
        let row = self.rows[stripe(&key)].lock().await;
        Some(Turn { _lifecycle: lifecycle, _row: row })
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
