//! Member and ACL rows, read from the leader.

use cotal_nats::{Entry, NatsError};
use cotal_rules::directory::{Acl, Membership};
use cotal_rules::membership::{RowWrite, Stored};
use cotal_wire::rows::{AclRow, MemberRow};
use cotal_wire::{Channel, Lifecycle};

use super::{Registry, RegistryError};
use crate::state::view::Feed;

impl Registry {
    /// The row, read from the leader. If the value cannot be parsed, the last valid row is in
    /// force.
    pub(super) async fn read_row(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<Stored, NatsError> {
        let Some(entry) = self.view.kv(Feed::Members).get(key).await? else {
            return Ok(Stored::default());
        };
        let revision = entry.revision;
        let Some(value) = entry.live() else {
            return Ok(Stored { membership: None, revision });
        };
        if let Ok(row) = MemberRow::parse(value, channel, member) {
            return Ok(Stored { membership: Some(Membership::of(&row, revision)), revision });
        }
        self.view.fresh(&[Feed::Members]).await?;
        let standing = self.view.directory().membership(channel, member).cloned();
        let membership = standing.map(|row| Membership { revision, ..row });
        Ok(Stored { membership, revision })
    }

    /// The ACL row, read from the leader.
    pub(super) async fn read_acl(&self, member: &Lifecycle) -> Result<Option<AclRow>, NatsError> {
        let entry: Option<Entry> = self.view.kv(Feed::Acl).get(&member.dotted()).await?;
        let Some(value) = entry.as_ref().and_then(Entry::live) else {
            return Ok(None);
        };
        if let Ok(row) = AclRow::parse(value) {
            return Ok(Some(row));
        }
        self.view.fresh(&[Feed::Acl]).await?;
        Ok(match self.view.directory().acl(member) {
            Acl::Row(row) => Some(row.clone()),
            Acl::Retired => Some(tombstone()),
            Acl::Absent => None,
        })
    }

    /// Writes a row or a deletion over exactly the revision that the write names.
    ///
    /// This is an update even if the key is absent. A create would retry over a deletion marker,
    /// and the process may have been paused before that retry. With an update such a case is a
    /// conflict, and the change starts again.
    pub(super) async fn write(&self, key: &str, write: &RowWrite) -> Result<u64, NatsError> {
        let fenced = self.view.kv(Feed::Members);
        let kv = if write.is_undo { &fenced.beyond_the_fence() } else { fenced };
        match &write.row {
            Some(row) => {
                let value = serde_json::to_vec(row).map_err(|e| NatsError::Malformed {
                    what: "the member row to write".to_owned(),
                    detail: e.to_string(),
                })?;
                kv.update(key, value.into(), write.over).await
            }
            None => kv.delete(key, Some(write.over)).await,
        }
    }

    /// Refuses once the lane has stopped serving.
    pub(super) fn serves(&self) -> Result<(), RegistryError> {
        if self.gate.is_open() { Ok(()) } else { Err(RegistryError::NotServing) }
    }
}

/// A substitute for a tombstone that is known, but whose stored value is garbled.
fn tombstone() -> AclRow {
    AclRow {
        allow_subscribe: Vec::new(),
        revision: 0,
        updated_at: 0,
        name: None,
        activated: None,
        retired: true,
    }
}
