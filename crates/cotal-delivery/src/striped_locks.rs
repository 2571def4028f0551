//! A bounded number of locks, shared by any number of keys.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};

use tokio::sync::{Mutex, MutexGuard};

/// How many there are. Two keys may share a lock; then their callers only wait for each other.
const STRIPES: usize = 64;

/// A mutex for each key, several keys sharing one.
#[derive(Debug)]
pub(crate) struct StripedLocks(Vec<Mutex<()>>);

impl Default for StripedLocks {
    fn default() -> Self {
        Self(std::iter::repeat_with(|| Mutex::new(())).take(STRIPES).collect())
    }
}

impl StripedLocks {
    /// Waits for the lock of `key`.
    pub(crate) async fn lock(&self, key: &impl Hash) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        let stripe = usize::try_from(hash % STRIPES as u64).unwrap_or_default();
        self.0[stripe].lock().await
    }
}
