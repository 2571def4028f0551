//! Copies of last valid rows, kept where no garbage can replace them (`docs/wire.md` §4).
//!
//! Somebody who can make the broker write to a subject can push a row out of its bucket's history,
//! but must name the row's key for that. A kept row is in the dead bucket, under a random key that
//! only the daemon knows: agents may neither read nor list that bucket.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cotal_nats::{Bucket as Kv, NatsError, WatchEvent};
use cotal_wire::names::{Bucket, is_kept_key, kept_key};
use cotal_wire::rows::KeptRow;
use tracing::warn;

use crate::lease::gate::Gate;
use crate::state::bucket_watch::watch_all;

/// The kept rows of a space, by bucket and key.
#[derive(Debug)]
pub(crate) struct KeptRows {
    dead: Kv,
    gate: Gate,
    known: Mutex<HashMap<(Bucket, String), Kept>>,
}

/// A kept row, and its key in the dead bucket.
#[derive(Debug, Clone)]
struct Kept {
    name: String,
    row: KeptRow,
}

impl KeptRows {
    /// Nothing is known before [`Self::load`].
    pub(crate) fn new(dead: Kv, gate: Gate) -> Self {
        Self { dead, gate, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(Bucket, String), Kept>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the rows that earlier daemons kept.
    pub(crate) async fn load(&self) -> Result<(), NatsError> {
        let mut watch = watch_all(&self.dead).await?;
        loop {
            match watch.next().await? {
                WatchEvent::Put { key, value, .. } if is_kept_key(&key) => {
                    // A value under such a key that cannot be parsed is no kept row.
                    let Ok(row) = serde_json::from_slice::<KeptRow>(&value) else { continue };
                    let Some(bucket) = row.bucket() else { continue };
                    let at = (bucket, row.key.clone());
                    let kept = Kept { name: key.to_string(), row };
                    let mut known = self.known();
                    let newest = known.entry(at).or_insert_with(|| kept.clone());
                    if newest.row.revision < kept.row.revision {
                        *newest = kept;
                    }
                }
                WatchEvent::InitialDone => return Ok(()),
                _ => {}
            }
        }
    }

    /// The last valid row of a key, with its revision.
    pub(crate) fn row(&self, bucket: Bucket, key: &str) -> Option<(Vec<u8>, u64)> {
        let known = self.known();
        let kept = known.get(&(bucket, key.to_owned()))?;
        let value = serde_json::to_vec(&kept.row.value).ok()?;
        Some((value, kept.row.revision))
    }

    /// The keys of a bucket whose last valid row is kept.
    pub(crate) fn keys(&self, bucket: Bucket) -> Vec<String> {
        let known = self.known();
        known.keys().filter(|(of, _)| *of == bucket).map(|(_, key)| key.clone()).collect()
    }

    /// Keeps a row. While this lane does not serve, the daemon that serves does it.
    pub(crate) async fn keep(&self, bucket: Bucket, key: &str, value: &[u8], revision: u64) {
        let at = (bucket, key.to_owned());
        let before = self.known().get(&at).cloned();
        let is_kept = before.as_ref().is_some_and(|kept| kept.row.revision >= revision);
        let Ok(value) = serde_json::from_slice(value) else { return };
        if is_kept || !self.gate.is_open() {
            return;
        }
        let row = KeptRow::new(bucket, key, revision, value);
        let Ok(text) = serde_json::to_vec(&row) else { return };
        let name = before.map_or_else(unguessable, |kept| kept.name);
        match self.dead.put(&name, text.into()).await {
            Ok(_) => drop(self.known().insert(at, Kept { name, row })),
            Err(error) => {
                warn!(key, %error, "could not keep a copy of a row outside its bucket yet");
            }
        }
    }

    /// Forgets a row that was deleted.
    pub(crate) async fn forget(&self, bucket: Bucket, key: &str) {
        let Some(kept) = self.known().remove(&(bucket, key.to_owned())) else { return };
        if self.gate.is_open()
            && let Err(error) = self.dead.delete(&kept.name, None).await
        {
            warn!(key, %error, "could not delete the kept copy of a deleted row");
        }
    }
}

/// 128 random bits, from the seed that the standard library gets from the operating system.
fn unguessable() -> String {
    let word = |n: u64| RandomState::new().hash_one(n);
    kept_key(&format!("{:016x}{:016x}", word(0), word(1)))
}
