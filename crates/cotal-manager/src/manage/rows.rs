//! Keeps the ACL and channel rows of a space: what is garbled is put back as the last valid row,
//! from the bucket's history or from the memory of a manager that saw it (`wire.md` §4).
//!
//! Invariant: garbage never grants. An ACL row is taken from memory only while every write since
//! was seen; one that was not may have narrowed it. A channel's config grants nothing.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Bucket, Bytes, Connection, WatchEvent};
use cotal_trust::UserKey;
use cotal_wire::names;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::authority::{Authority, BrokerAddress, MOVE_WITHIN, ONE_SHOT, Office};
use crate::error::{Doing, ManagerError};
use crate::rows::bucket;
use crate::write_back::{Remembered, named, restore};

/// Between the ends of a watch and the next one.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Garbage is put right once in this time at most, however fast it is written.
const REPAIR_EVERY: Duration = Duration::from_millis(500);
/// Half the life of the credential that the watch runs on.
const RENEW_EVERY: Duration = Duration::from_secs(ONE_SHOT.unsigned_abs() / 2);

/// Puts garbled rows back until told to stop. They are tampering or a defect, so each is told.
pub(super) async fn keep(
    authority: Arc<Authority>,
    broker: BrokerAddress,
    stop: CancellationToken,
) {
    let of = |office, of| Watcher { authority: &authority, broker: &broker, office, of };
    let acl = of(Office::Supervisor, names::Bucket::Acl);
    let channels = of(Office::Operator, names::Bucket::Channels);
    tokio::join!(acl.run(&stop), channels.run(&stop));
}

/// Watches one bucket in the office that may write it.
struct Watcher<'a> {
    authority: &'a Authority,
    broker: &'a BrokerAddress,
    office: Office,
    of: names::Bucket,
}

impl Watcher<'_> {
    async fn run(&self, stop: &CancellationToken) {
        let space = self.authority.space();
        loop {
            // Boxed: its many steps make a large future.
            match stop.run_until_cancelled(Box::pin(self.watch())).await {
                None => return,
                Some(Err(error)) => warn!(%space, %error, "rows are not watched for garbage"),
            }
            if stop.run_until_cancelled(tokio::time::sleep(RETRY_AFTER)).await.is_none() {
                return;
            }
        }
    }

    async fn watch(&self) -> Result<Infallible, ManagerError> {
        let space = self.authority.space();
        let doing = || format!("keep the rows of space {space}");
        let key = UserKey::generate();
        let (_, connection) = self.authority.connect_as(&key, self.office, self.broker).await?;
        let kv = bucket(&connection, space, self.of);
        let mut memory = Memory::new(self.of);
        let mut watch = kv.watch_all().await.doing(doing)?;
        let mut renew = interval_at(Instant::now() + RENEW_EVERY, RENEW_EVERY);
        let mut repair = interval_at(Instant::now(), REPAIR_EVERY);
        repair.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = watch.next() => memory.hear(event.doing(doing)?),
                _ = repair.tick(), if !memory.damaged.is_empty() => {
                    self.repair(&kv, &mut memory).await;
                }
                _ = renew.tick() => self.renew(&key, &connection).await?,
            }
        }
    }

    async fn repair(&self, kv: &Bucket, memory: &mut Memory) {
        let space = self.authority.space();
        for (key, revision) in std::mem::take(&mut memory.damaged) {
            let row = named(self.of, &key, b"").map(|(row, _)| row).unwrap_or_default();
            match restore(kv, self.of, &key, revision, memory.recall(&key)).await {
                Ok(true) => {
                    warn!(%space, row, "a row was garbled; the last valid one is put back");
                }
                Ok(false) => {
                    warn!(%space, row, "a row is garbled and no valid one is known; set it anew");
                }
                Err(error) => {
                    warn!(%space, row, %error, "a row is garbled and not put back yet");
                    memory.damaged.insert(key, revision);
                }
            }
        }
    }

    async fn renew(&self, key: &UserKey, connection: &Connection) -> Result<(), ManagerError> {
        let (_, creds) = self.authority.one_shot_of(key, self.office)?;
        if let Err(error) = connection.adopt(creds, MOVE_WITHIN).await {
            // The client presents it at its next dial.
            warn!(space = %self.authority.space(), %error, "the watch of the rows moves to the renewed credential later");
        }
        Ok(())
    }
}

/// What is known of the rows of one bucket.
#[derive(Debug)]
struct Memory {
    of: names::Bucket,
    /// The last valid state of each row, with the count of gaps at which it was seen.
    known: HashMap<String, (Remembered, u64)>,
    /// Garbled rows and their revision.
    damaged: BTreeMap<String, u64>,
    /// The last revision heard.
    heard: u64,
    /// Whether the initial state is told; it holds the last revision of each row only.
    complete: bool,
    /// How often writes went by unseen, because a burst was longer than the history.
    gaps: u64,
}

impl Memory {
    fn new(of: names::Bucket) -> Self {
        let (known, damaged) = (HashMap::new(), BTreeMap::new());
        Self { of, known, damaged, heard: 0, complete: false, gaps: 0 }
    }

    fn hear(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Put { key, value, revision } => self.put(key.as_str(), &value, revision),
            WatchEvent::Delete { key, revision, .. } => {
                self.count(revision);
                self.remember(key.as_str(), Remembered::Deleted);
            }
            WatchEvent::Foreign { revision } => self.count(revision),
            WatchEvent::InitialDone => self.complete = true,
            WatchEvent::Reset { bucket_recreated: true } => *self = Self::new(self.of),
            WatchEvent::Reset { bucket_recreated: false } => {}
        }
    }

    fn count(&mut self, revision: u64) {
        if self.complete && revision != self.heard + 1 {
            self.gaps += 1;
        }
        self.heard = revision;
    }

    fn put(&mut self, key: &str, value: &[u8], revision: u64) {
        self.count(revision);
        match named(self.of, key, value) {
            None => {}
            // A copy: the value is a slice of a read buffer that would live as long as the row.
            Some((_, true)) => {
                self.remember(key, Remembered::Value(Bytes::copy_from_slice(value)));
            }
            Some((_, false)) => drop(self.damaged.insert(key.to_owned(), revision)),
        }
    }

    fn remember(&mut self, key: &str, state: Remembered) {
        self.damaged.remove(key);
        self.known.insert(key.to_owned(), (state, self.gaps));
    }

    fn recall(&self, key: &str) -> Option<&Remembered> {
        let (state, gaps) = self.known.get(key)?;
        (self.of != names::Bucket::Acl || *gaps == self.gaps).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &[u8] = br#"{"deliveryClass":"durable"}"#;
    const GARBAGE: &[u8] = b"{";

    fn channels(writes: &[(&[u8], u64)]) -> Memory {
        let mut memory = Memory::new(names::Bucket::Channels);
        memory.hear(WatchEvent::InitialDone);
        for (value, revision) in writes {
            memory.put("team.a", value, *revision);
        }
        memory
    }

    #[test]
    fn a_garbled_row_is_damaged_until_a_valid_one_stands_again() {
        let mut memory = channels(&[(VALID, 1), (GARBAGE, 2), (GARBAGE, 3)]);
        assert_eq!(memory.damaged, [("team.a".to_owned(), 3)].into());
        memory.put("team.a", VALID, 4);
        assert!(memory.damaged.is_empty());
    }

    #[test]
    fn a_key_that_is_foreign_to_the_bucket_is_no_row() {
        let mut memory = channels(&[]);
        memory.put("team.>", GARBAGE, 1);
        assert!(memory.damaged.is_empty());
    }

    #[test]
    fn only_what_grants_nothing_is_recalled_over_writes_that_were_not_seen() {
        let writes: &[(&[u8], u64)] = &[(VALID, 1), (GARBAGE, 2), (GARBAGE, 12)];
        let mut memory = channels(&writes[..2]);
        let value = Remembered::Value(Bytes::from_static(VALID));
        assert_eq!(memory.recall("team.a"), Some(&value));
        memory.of = names::Bucket::Acl;
        assert_eq!(memory.recall("team.a"), Some(&value));
        let mut memory = channels(writes);
        assert_eq!(memory.recall("team.a"), Some(&value));
        memory.of = names::Bucket::Acl;
        assert_eq!(memory.recall("team.a"), None);
    }

    #[test]
    fn the_initial_state_has_no_gaps() {
        let mut memory = Memory::new(names::Bucket::Channels);
        memory.put("team.a", VALID, 3);
        memory.put("team.b", VALID, 7);
        memory.hear(WatchEvent::InitialDone);
        memory.put("team.b", VALID, 8);
        assert_eq!(memory.gaps, 0);
        memory.put("team.b", VALID, 10);
        assert_eq!(memory.gaps, 1);
    }
}
