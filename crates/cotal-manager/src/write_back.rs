//! The manager's part of *a value that is no row is no absence either* (`wire.md` §4): garbled ACL
//! and channel rows are put back as the last valid ones, by revision.
//!
//! Invariant: nothing is written but what the bucket itself still held, over exactly the garbage
//! that was read, so a row that somebody writes meanwhile stands.

use std::time::Duration;

use cotal_nats::{Bucket, Bytes, Connection, Entry, NatsError};
use cotal_wire::names::{self, DEFAULTS_KEY};
use cotal_wire::rows::{AclRow, ChannelConfig, LastValid};
use cotal_wire::{Channel, Lifecycle};

use crate::authority::{Authority, BrokerAddress, Office};
use crate::error::{Doing, ManagerError};
use crate::rows::{bucket, last_valid, last_valid_acl, read_all};

const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A row that was garbled, and what became of it. It names no incarnation: a uid is a capability.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenBack {
    /// `the ACL row of <principal>` or `the config of channel <channel>`.
    pub row: String,
    /// Whether a valid row stands again; otherwise its history holds none.
    pub restored: bool,
}

/// Puts every garbled ACL and channel row of a space back.
///
/// # Errors
/// When the broker fails.
pub async fn write_back_rows(
    authority: &Authority,
    broker: &BrokerAddress,
) -> Result<Vec<WrittenBack>, ManagerError> {
    let space = authority.space();
    let doing = || format!("put the garbled rows of space {space} back");
    let (_, supervisor) = authority.connect(Office::Supervisor, broker).await?;
    let mut done = write_back(&supervisor, authority, names::Bucket::Acl).await.doing(doing)?;
    supervisor.close(CLOSE_WITHIN).await;
    let (_, operator) = authority.connect(Office::Operator, broker).await?;
    done.extend(write_back(&operator, authority, names::Bucket::Channels).await.doing(doing)?);
    operator.close(CLOSE_WITHIN).await;
    Ok(done)
}

async fn write_back(
    connection: &Connection,
    authority: &Authority,
    of: names::Bucket,
) -> Result<Vec<WrittenBack>, NatsError> {
    let kv = bucket(connection, authority.space(), of);
    let mut done = Vec::new();
    for (key, raw) in read_all(&kv).await? {
        let Some((row, valid)) = named(of, &key, &raw.value) else { continue };
        if !valid {
            let restored = restore(&kv, of, &key, raw.revision, None).await?;
            done.push(WrittenBack { row, restored });
        }
    }
    Ok(done)
}

/// What a key names, and whether the value is its row; a foreign key names nothing.
pub(crate) fn named(of: names::Bucket, key: &str, value: &[u8]) -> Option<(String, bool)> {
    match of {
        names::Bucket::Acl => {
            let member = Lifecycle::parse(key).ok().filter(|m| m.principal.has_real_owner())?;
            let row = format!("the ACL row of {}", member.principal);
            Some((row, AclRow::parse(value).is_ok()))
        }
        names::Bucket::Channels => {
            if key != DEFAULTS_KEY && Channel::parse(key).is_err() {
                return None;
            }
            let row = format!("the config of channel {key}");
            Some((row, ChannelConfig::parse(value).is_ok()))
        }
        _ => None,
    }
}

/// The last valid state of a row that is not in its history any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remembered {
    Value(Bytes),
    Deleted,
}

/// Puts the last valid state over the garbage of revision `garbled`: what the history holds, or
/// else what is remembered. `false` when there is neither.
pub(crate) async fn restore(
    kv: &Bucket,
    of: names::Bucket,
    key: &str,
    garbled: u64,
    remembered: Option<&Remembered>,
) -> Result<bool, NatsError> {
    let history = kv.history(key).await?;
    let held = match last_of(of, &history, garbled) {
        LastValid::Row(value, _) => Some(Remembered::Value(value)),
        // Garbage over a deletion: the deletion was the last valid state.
        LastValid::Deleted(_) => Some(Remembered::Deleted),
        LastValid::Unknown => remembered.cloned(),
    };
    let written = match held {
        Some(Remembered::Value(value)) => kv.update(key, value, garbled).await,
        Some(Remembered::Deleted) => kv.delete(key, Some(garbled)).await,
        None => return Ok(false),
    };
    match written {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() => Ok(true),
        Err(error) => Err(error),
    }
}

fn last_of(of: names::Bucket, history: &[Entry], garbled: u64) -> LastValid<Bytes> {
    match of {
        names::Bucket::Acl => last_valid_acl(history, garbled).map(|(_, value)| value),
        _ => {
            let parse = |value: &[u8]| ChannelConfig::parse(value).ok();
            last_valid(history, garbled, parse).map(|(_, value)| value)
        }
    }
}
