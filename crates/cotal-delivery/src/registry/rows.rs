//! Member and ACL rows as the leader has them at this moment.

use cotal_nats::{Bytes, Entry};
use cotal_rules::directory::{Acl, Membership};
use cotal_rules::membership::{Change, Expect, Write};
use cotal_wire::control::Code;
use cotal_wire::rows::{AclRow, MemberRow};
use cotal_wire::{Channel, Lifecycle};

use super::{Registry, RegistryError};
use crate::clock::now_ms;
use crate::state::view::Feed;

impl Registry {
    pub(super) fn change<'a>(
        &'a self,
        channel: &'a Channel,
        member: &'a Lifecycle,
        cursor: u64,
    ) -> Change<'a> {
        Change { channel, member, cursor, now_ms: now_ms(), writer: &self.writer_identity }
    }

    /// The row as the leader has it, and the revision of whatever stands in its place. A garbled
    /// value is no row and no absence: the last valid one stands.
    pub(super) async fn read_row(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<(Option<Membership>, Option<u64>), RegistryError> {
        let Some(entry) = self.view.kv(Feed::Members).get(key).await? else {
            return Ok((None, None));
        };
        let Some(value) = entry.live() else {
            return Ok((None, Some(entry.revision)));
        };
        if let Ok(row) = MemberRow::parse(value, channel, member) {
            return Ok((Some(Membership::of(&row, entry.revision)), None));
        }
        self.view.fresh(&[Feed::Members]).await?;
        let mut standing = self.view.directory().membership(channel, member).cloned();
        if let Some(row) = &mut standing {
            row.revision = entry.revision;
        }
        Ok((standing, Some(entry.revision)))
    }

    /// The ACL row as the leader has it now.
    pub(super) async fn read_acl(
        &self,
        member: &Lifecycle,
    ) -> Result<Option<AclRow>, RegistryError> {
        let entry: Option<Entry> = self.view.kv(Feed::Acl).get(&member.dotted()).await?;
        let Some(value) = entry.as_ref().and_then(Entry::live) else {
            return Ok(None);
        };
        if let Ok(row) = AclRow::parse(value) {
            return Ok(Some(row));
        }
        self.view.fresh(&[Feed::Acl]).await?;
        match self.view.directory().acl(member) {
            Acl::Row(row) => Ok(Some(row.clone())),
            Acl::Retired => Err(RegistryError::refused(Code::Retired, "this lifecycle is retired")),
            Acl::Absent => Ok(None),
        }
    }

    pub(super) async fn write(
        &self,
        key: &str,
        write: &Write,
        tombstone: Option<u64>,
    ) -> Result<u64, RegistryError> {
        self.serves()?;
        let value: Bytes = serde_json::to_vec(&write.row).unwrap_or_default().into();
        let kv = self.view.kv(Feed::Members);
        let written = match (write.expect, tombstone) {
            (Expect::Revision(revision), _) | (Expect::Absent, Some(revision)) => {
                kv.update(key, value, revision).await
            }
            // Not as a creation, which would write once more over a marker that it meets: by then the
            // process may have been paused. A conflict begins the change anew instead.
            (Expect::Absent, None) => kv.update(key, value, 0).await,
        };
        Ok(written?)
    }

    /// Refuses once the lane has stopped serving: a process that was paused in the middle of a change
    /// leaves it to the daemon that serves now.
    pub(super) fn serves(&self) -> Result<(), RegistryError> {
        if self.gate.is_open() {
            return Ok(());
        }
        let why = "the daemon stopped serving meanwhile; try again";
        Err(RegistryError::refused(Code::NotReady, why))
    }
}
