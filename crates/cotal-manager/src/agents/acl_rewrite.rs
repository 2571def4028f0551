//! An ACL row changed by revision, also where the value that stands is garbled.

use cotal_nats::{Bucket as Kv, NatsError, to_json};
use cotal_wire::Lifecycle;
use cotal_wire::names::Bucket;
use cotal_wire::rows::{AclRow, LastValid};

use super::Agents;
use crate::clock::unix_millis;
use crate::error::{Doing, ManagerError};
use crate::rows::{bucket, last_valid_acl};

/// Rounds of compare-and-set on an ACL row before somebody else is said to be faster.
const WRITE_ATTEMPTS: usize = 8;

/// What stands under one ACL key, with the revision that a write must replace.
enum AclFound {
    /// A row; the last valid one where the latest value is garbled.
    Row(AclRow, u64),
    /// Garbage, and no valid row is left.
    Garbled(u64),
    /// Nothing.
    Absent,
}

/// What stands under `key` now.
async fn standing_acl(bucket: &Kv, key: &str) -> Result<AclFound, NatsError> {
    let Some(entry) = bucket.get(key).await? else {
        return Ok(AclFound::Absent);
    };
    let Some(value) = entry.live() else {
        return Ok(AclFound::Absent);
    };
    if let Ok(row) = AclRow::parse(value) {
        return Ok(AclFound::Row(row, entry.revision));
    }
    Ok(match last_valid_acl(&bucket.history(key).await?, entry.revision) {
        LastValid::Row((row, _), _) => AclFound::Row(row, entry.revision),
        LastValid::Deleted(_) | LastValid::Unknown => AclFound::Garbled(entry.revision),
    })
}

impl Agents {
    /// Ends a lifecycle for good.
    pub(super) async fn write_tombstone(&self, lifecycle: &Lifecycle) -> Result<(), ManagerError> {
        let change = |row: &mut AclRow| {
            row.allow_subscribe.clear();
            row.retired = true;
        };
        self.rewrite_acl(lifecycle, true, change).await
    }

    /// Changes an ACL row by revision; a tombstone is final and stays as it is. Where the row is
    /// garbled beyond its history, `anew` lets one that reads nothing take its place.
    pub(super) async fn rewrite_acl(
        &self,
        lifecycle: &Lifecycle,
        anew: bool,
        change: impl Fn(&mut AclRow),
    ) -> Result<(), ManagerError> {
        let acl = bucket(&self.connection, self.space(), Bucket::Acl);
        let key = lifecycle.dotted();
        let principal = &lifecycle.principal;
        let doing = || format!("change the ACL row of {principal}");
        for _ in 0..WRITE_ATTEMPTS {
            let standing = standing_acl(&acl, &key).await.doing(doing)?;
            let (mut row, revision) = match standing {
                AclFound::Row(row, revision) => (row, revision),
                AclFound::Garbled(revision) if anew => (reads_nothing(), revision),
                AclFound::Garbled(_) | AclFound::Absent => {
                    return Err(ManagerError::NoSuchAgent(principal.clone()));
                }
            };
            if row.retired {
                return Ok(());
            }
            change(&mut row);
            row.revision += 1;
            row.updated_at = unix_millis();
            let value = to_json(&row).doing(doing)?;
            match acl.update(&key, value, revision).await {
                Ok(_) => return Ok(()),
                Err(NatsError::Conflict { .. }) => {}
                Err(error) => return Err(error).doing(doing),
            }
        }
        Err(ManagerError::Busy(principal.clone()))
    }
}

/// The row that takes the place of garbage.
fn reads_nothing() -> AclRow {
    AclRow {
        allow_subscribe: Vec::new(),
        revision: 0,
        updated_at: 0,
        name: None,
        activated: None,
        retired: false,
    }
}
