//! The rows of the anycast bucket, as the leader has them and as this process last saw them.
//!
//! Invariant: a value that cannot be parsed is neither a record nor a deletion. The last valid
//! record, from the bucket's history or from memory, stays in force and is written back; the
//! garbage is logged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cotal_nats::{Bucket as Kv, Connection, NatsError, to_json};
use cotal_rules::anycast::{Record, RecordWrite};
use cotal_rules::membership::Expect;
use cotal_wire::Space;
use cotal_wire::names::{Bucket, request_key};
use cotal_wire::rows::{LastValid, RequestRow};
use tokio::sync::watch;

use crate::lease::gate::Gate;

/// The bucket, and the records known of it: a few hundred bytes for each request of the last day.
pub(super) struct Records {
    pub(super) space: Space,
    pub(super) kv: Kv,
    gate: Gate,
    known: Mutex<BTreeMap<u64, Record>>,
    pub(super) scanned: watch::Sender<bool>,
    pub(super) garbled: AtomicU64,
}

/// The record that is in force under a key.
#[derive(Debug, Default)]
pub(super) struct StoredRecord {
    /// The record in force, with the revision that a change must name.
    pub(super) record: Option<Record>,
    /// If there is no record: the revision of the garbage that a new one must replace.
    pub(super) garbage: Option<u64>,
}

impl Records {
    pub(super) fn new(space: &Space, connection: &Connection, gate: &Gate) -> Self {
        Self {
            space: space.clone(),
            kv: Kv::new(connection, &space.bucket(Bucket::Anycast)),
            gate: gate.clone(),
            known: Mutex::default(),
            scanned: watch::Sender::new(false),
            garbled: AtomicU64::new(0),
        }
    }

    pub(super) fn garbled(&self) -> u64 {
        self.garbled.load(Ordering::Relaxed)
    }

    /// Every known record, for uses that decide nothing.
    pub(super) fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Record>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the watch has made its first scan.
    pub(super) async fn scanned(&self) {
        // The sender lives as long as this does.
        let _ = self.scanned.subscribe().wait_for(|scanned| *scanned).await;
    }

    /// The record, read from the leader.
    pub(super) async fn read(&self, seq: u64) -> Result<StoredRecord, NatsError> {
        let Some(entry) = self.kv.get(&request_key(seq)).await? else {
            self.known().remove(&seq);
            return Ok(StoredRecord::default());
        };
        let Some(value) = entry.live() else {
            self.forget(seq, entry.revision);
            return Ok(StoredRecord::default());
        };
        match RequestRow::parse(value, seq) {
            Ok(row) => {
                let record = Record { row, revision: entry.revision };
                self.note(record.clone());
                Ok(StoredRecord { record: Some(record), garbage: None })
            }
            Err(_) => self.standing(seq, entry.revision).await,
        }
    }

    /// The record in force before the garbage at `revision`. History and memory complete each
    /// other: a flood of garbage pushes valid rows out of the history, and memory has nothing from
    /// before this process.
    pub(super) async fn standing(
        &self,
        seq: u64,
        revision: u64,
    ) -> Result<StoredRecord, NatsError> {
        let parse = |value: &[u8]| RequestRow::parse(value, seq).ok();
        let stands = self.kv.last_valid(&request_key(seq), revision, parse).await?;
        let remembered = self.known().get(&seq).map(|known| (known.row.clone(), known.revision));
        Ok(match stands.or_newer(remembered) {
            LastValid::Row(row, _) => {
                StoredRecord { record: Some(Record { row, revision }), garbage: None }
            }
            LastValid::Deleted(_) | LastValid::Unknown => {
                StoredRecord { record: None, garbage: Some(revision) }
            }
        })
    }

    /// The take that the record replaced; none if the record is the first. Garbage in between is
    /// skipped, and so is the same take when it was written back over garbage.
    pub(super) async fn before(&self, record: &Record) -> Result<Option<RequestRow>, NatsError> {
        let seq = record.row.seq;
        let entries = self.kv.history(&request_key(seq)).await?;
        for entry in entries.iter().rev().filter(|entry| entry.revision < record.revision) {
            let Some(value) = entry.live() else { return Ok(None) };
            let Ok(row) = RequestRow::parse(value, seq) else { continue };
            let take =
                |row: &RequestRow| (row.stream_created.clone(), row.holder.clone(), row.delivery);
            if take(&row) != take(&record.row) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// Writes over the record or the garbage that was found.
    pub(super) async fn write(
        &self,
        write: &RecordWrite,
        garbage: Option<u64>,
    ) -> Result<Record, NatsError> {
        let key = request_key(write.row.seq);
        may_write(&self.gate, || format!("the record {key}"))?;
        let value = to_json(&write.row)?;
        let revision = match (write.expect, garbage) {
            (Expect::Revision(revision), _) | (Expect::Absent, Some(revision)) => {
                self.kv.update(&key, value, revision).await?
            }
            (Expect::Absent, None) => self.kv.create(&key, value).await?,
        };
        let record = Record { row: write.row.clone(), revision };
        self.note(record.clone());
        Ok(record)
    }

    /// Deletes a record with its history.
    pub(super) async fn remove(&self, seq: u64, revision: u64) -> Result<(), NatsError> {
        may_write(&self.gate, || format!("the removal of record {seq}"))?;
        let marker = self.kv.purge(&request_key(seq), Some(revision)).await?;
        self.forget(seq, marker);
        Ok(())
    }

    /// Results can be large, and only their sender reads them, from the bucket: memory drops them.
    pub(super) fn note(&self, mut record: Record) {
        if let Some(result) = &mut record.row.result {
            result.parts = Vec::new();
        }
        let mut known = self.known();
        let newest = known.get(&record.row.seq).map_or(0, |known| known.revision);
        if record.revision >= newest {
            known.insert(record.row.seq, record);
        }
    }

    pub(super) fn forget(&self, seq: u64, marker: u64) {
        let mut known = self.known();
        if known.get(&seq).is_some_and(|known| known.revision < marker) {
            known.remove(&seq);
        }
    }
}

impl StoredRecord {
    pub(super) fn garbage(&self) -> Option<u64> {
        self.garbage
    }
}

/// Refuses once the lane has stopped serving. A process that was paused in the middle of a change
/// leaves it to the daemon that serves now.
pub(super) fn may_write(gate: &Gate, what: impl FnOnce() -> String) -> Result<(), NatsError> {
    if gate.is_open() { Ok(()) } else { Err(NatsError::Withheld { what: what() }) }
}
