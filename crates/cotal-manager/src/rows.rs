//! Whole buckets, read once.

use std::collections::BTreeMap;

use cotal_nats::{Bucket, Bytes, Connection, Entry, NatsError, WatchEvent, revisions};
use cotal_wire::rows::{AclRow, LastValid, PresenceRow};
use cotal_wire::{Lifecycle, Principal, Space, names};

/// One row as the broker holds it.
#[derive(Debug, Clone)]
pub struct RawRow {
    /// Its value.
    pub value: Bytes,
    /// Its revision.
    pub revision: u64,
}

/// The handle to a bucket of a space.
#[must_use]
pub fn bucket(connection: &Connection, space: &Space, bucket: names::Bucket) -> Bucket {
    Bucket::new(connection, &space.bucket(bucket))
}

/// Every row of a bucket, by key.
///
/// # Errors
/// When the credential may not read it, it does not exist, or the connection fails.
pub async fn read_all(bucket: &Bucket) -> Result<BTreeMap<String, RawRow>, NatsError> {
    let mut rows = BTreeMap::new();
    let mut watch = bucket.watch_all().await?;
    loop {
        match watch.next().await? {
            WatchEvent::Put { key, value, revision } => {
                // A copy: the value is a slice of a read buffer that would live as long as the row.
                let value = Bytes::copy_from_slice(&value);
                rows.insert(key.as_str().to_owned(), RawRow { value, revision });
            }
            WatchEvent::Delete { key, .. } => drop(rows.remove(key.as_str())),
            WatchEvent::Reset { bucket_recreated: true } => rows.clear(),
            WatchEvent::Foreign { .. } | WatchEvent::Reset { .. } => {}
            WatchEvent::InitialDone => return Ok(rows),
        }
    }
}

/// The ACL rows of a space.
#[derive(Debug, Default)]
pub struct AclRows {
    /// The valid ones; a garbled value is replaced by the last valid one of its history.
    pub rows: BTreeMap<Lifecycle, AclRow>,
    /// Rows of which no valid value is left.
    pub garbled: Vec<Lifecycle>,
}

impl AclRows {
    /// Reads them; foreign keys are no rows.
    ///
    /// # Errors
    /// As [`read_all`].
    pub async fn read(connection: &Connection, space: &Space) -> Result<Self, NatsError> {
        let bucket = bucket(connection, space, names::Bucket::Acl);
        let mut found = Self::default();
        for (key, raw) in read_all(&bucket).await? {
            let Ok(lifecycle) = Lifecycle::parse(&key) else {
                continue;
            };
            let row = match AclRow::parse(&raw.value) {
                Ok(row) => Some(row),
                Err(_) => match last_valid_acl(&bucket.history(&key).await?, raw.revision) {
                    LastValid::Row((row, _), _) => Some(row),
                    LastValid::Deleted(_) | LastValid::Unknown => None,
                },
            };
            match row {
                Some(row) => drop(found.rows.insert(lifecycle, row)),
                None => found.garbled.push(lifecycle),
            }
        }
        Ok(found)
    }

    /// The live incarnations of a principal.
    pub fn live_of<'a>(
        &'a self,
        principal: &'a Principal,
    ) -> impl Iterator<Item = (&'a Lifecycle, &'a AclRow)> {
        self.live().filter(move |(l, _)| l.principal == *principal)
    }

    /// Every live incarnation.
    pub fn live(&self) -> impl Iterator<Item = (&Lifecycle, &AclRow)> {
        self.rows.iter().filter(|(_, row)| !row.retired)
    }
}

/// What stands behind the garbage at revision `garbled` of an ACL row: its tombstone, which is
/// final whatever came after it, or else the last valid row.
pub(crate) fn last_valid_acl(history: &[Entry], garbled: u64) -> LastValid<(AclRow, Bytes)> {
    let parse = |value: &[u8]| AclRow::parse(value).ok();
    let values = history.iter().filter_map(|it| Some((it.live()?, it.revision)));
    let mut rows = values.filter_map(|(value, at)| Some(((parse(value)?, value.clone()), at)));
    match rows.find(|((row, _), _)| row.retired) {
        Some((row, revision)) => LastValid::Row(row, revision),
        None => last_valid(history, garbled, parse),
    }
}

/// What stands behind the garbage at revision `garbled` of a row.
pub(crate) fn last_valid<T>(
    history: &[Entry],
    garbled: u64,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> LastValid<(T, Bytes)> {
    let parse = |value: &[u8], _| Some((parse(value)?, Bytes::copy_from_slice(value)));
    LastValid::behind(garbled, revisions(history), parse)
}

/// Who says that he is present, and when he last said so; other values are no presence.
///
/// # Errors
/// As [`read_all`].
pub async fn read_presence(
    connection: &Connection,
    space: &Space,
) -> Result<BTreeMap<Principal, PresenceRow>, NatsError> {
    let rows = read_all(&bucket(connection, space, names::Bucket::Presence)).await?;
    let valid = rows.into_iter().filter_map(|(key, raw)| {
        let principal = Principal::parse(&key).ok()?;
        let row = PresenceRow::parse(&raw.value, &principal).ok()?;
        Some((principal, row))
    });
    Ok(valid.collect())
}
