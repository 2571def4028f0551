//! Joins that another daemon began and did not finish.

use std::sync::PoisonError;

use cotal_wire::names::parse_member_key;
use cotal_wire::rows::MemberRow;
use cotal_wire::{Channel, Lifecycle};

use super::{Feed, View};

impl View {
    /// The joins that another daemon left half done and that were not returned before; waits until
    /// there are any. Cancel-safe.
    pub(crate) async fn foreign_joins(&self) -> Vec<(Channel, Lifecycle)> {
        let mut changes = self.members_changed.subscribe();
        loop {
            let found = {
                let mut foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *foreign)
            };
            if !found.is_empty() {
                return found.into_iter().collect();
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notes a row that another daemon wrote and that is not activated. That daemon was paused, or
    /// died, before its second read of the ACL. This daemon's own start may be over, so the join is
    /// finished now (MEM-3).
    pub(super) fn note_foreign_join(&self, key: &str, value: &[u8]) {
        if !self.feeds[Feed::Members.index()].progress.borrow().scanned {
            return;
        }
        let Some((channel, member)) = parse_member_key(key) else { return };
        let row = MemberRow::parse(value, &channel, &member);
        let is_foreign = row.is_ok_and(|row| {
            row.leave_cursor.is_none()
                && !row.activated
                && row.writer_identity != self.writer_identity
        });
        if is_foreign {
            self.foreign.lock().unwrap_or_else(PoisonError::into_inner).insert((channel, member));
            self.members_changed.send_modify(|changes| *changes += 1);
        }
    }
}
