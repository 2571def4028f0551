//! Writes the dead bucket: the row of each entry that leaves the reader.

use cotal_nats::{Bucket as Kv, Connection, NatsError, to_json};
use cotal_wire::envelope::InboxEntry;
use cotal_wire::names::{Bucket, dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use cotal_wire::{Lifecycle, Space};

/// What is recorded about an entry.
pub(crate) struct About<'a> {
    pub(crate) seq: u64,
    pub(crate) member: &'a Lifecycle,
    pub(crate) entry: &'a InboxEntry,
    pub(crate) reason: DeadReason,
    pub(crate) attempts: u64,
}

/// The dead bucket, for writing.
#[derive(Debug, Clone)]
pub(crate) struct DeadStore {
    pub(super) kv: Kv,
}

impl DeadStore {
    /// The dead bucket of a space.
    pub(crate) fn new(connection: &Connection, space: &Space) -> Self {
        Self { kv: Kv::new(connection, &space.bucket(Bucket::Dead)) }
    }

    /// Writes a row. An existing row is replaced by revision, and its first date is kept.
    pub(crate) async fn record(&self, row: &DeadRow) -> Result<(), NatsError> {
        let key = dead_key(row.seq);
        let mut row = row.clone();
        loop {
            match self.kv.create(&key, to_json(&row)?).await {
                Err(error) if error.is_conflict() => {}
                other => return other.map(drop),
            }
            let Some(entry) = self.kv.get(&key).await? else { continue };
            let Some(value) = entry.live() else { continue };
            if let Ok(old) = DeadRow::parse(value, row.seq) {
                row.first_at = old.first_at;
            }
            match self.kv.update(&key, to_json(&row)?, entry.revision).await {
                Err(error) if error.is_conflict() => {}
                other => return other.map(drop),
            }
        }
    }
}

/// The row of an entry that is retried at `next_at`.
pub(crate) fn parked(about: &About<'_>, now: i64, next_at: i64) -> DeadRow {
    row(about, DeadState::Parked, now, next_at)
}

/// The row of an entry that is given up.
pub(crate) fn given_up(about: &About<'_>, now: i64) -> DeadRow {
    row(about, DeadState::GivenUp, now, 0)
}

fn row(about: &About<'_>, state: DeadState, now: i64, next_at: i64) -> DeadRow {
    DeadRow {
        seq: about.seq,
        owner: about.member.principal.clone(),
        lifecycle_uid: about.member.uid,
        channel: about.entry.channel.clone(),
        chat_seq: about.entry.seq,
        state,
        reason: about.reason,
        attempts: about.attempts,
        first_at: now,
        next_at,
    }
}
