//! Removes what a retired lifecycle left behind: its entries, and the member row that a daemon
//! leaves if it dies in the middle of a join (RDR-4, RDR-7).

use std::sync::Arc;

use cotal_nats::js::Deleted;
use cotal_nats::{Connection, NatsError};
use cotal_wire::envelope::{InboxEntry, Reason};
use cotal_wire::names::member_key;
use cotal_wire::{Lifecycle, Space};
use tracing::{debug, info, warn};

use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::state::view::{Feed, View};

/// Removes entries and stray rows of retired lifecycles.
#[derive(Clone)]
pub(crate) struct Remover {
    space: Space,
    connection: Connection,
    view: Arc<View>,
    gate: Gate,
}

impl Remover {
    pub(crate) fn new(context: &LaneContext) -> Self {
        let LaneContext { space, connection, view, gate, .. } = context.clone();
        Self { space, connection, view, gate }
    }

    /// Deletes the entry at `seq` from INBOX. An entry that is gone already counts as removed.
    ///
    /// # Errors
    /// If the broker does not confirm the delete; then the entry must not be acked.
    pub(crate) async fn remove(
        &self,
        member: &Lifecycle,
        entry: &InboxEntry,
        seq: u64,
    ) -> Result<(), NatsError> {
        match self.connection.delete_message(&self.space.inbox_stream(), seq).await? {
            Deleted::Deleted => {
                debug!(space = %self.space, seq, "an entry of a retired lifecycle was deleted");
            }
            Deleted::AlreadyGone => {}
        }
        if entry.reason == Reason::DurableChannel && self.gate.is_open() {
            self.remove_row(member, entry).await;
        }
        Ok(())
    }

    /// Best effort: the next entry of the lifecycle tries again.
    async fn remove_row(&self, member: &Lifecycle, entry: &InboxEntry) {
        let channel = &entry.channel;
        let revision = {
            let directory = self.view.directory();
            directory.membership(channel, member).map(|row| row.revision)
        };
        let Some(revision) = revision else { return };
        let key = member_key(channel, member);
        match self.view.kv(Feed::Members).delete(&key, Some(revision)).await {
            Ok(_) => {
                info!(space = %self.space, %channel, "a stray member row of a retired lifecycle was deleted");
            }
            Err(error) => {
                warn!(space = %self.space, %channel, %error, "could not delete a retired lifecycle's member row");
            }
        }
    }
}
