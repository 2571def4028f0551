//! Waiting entries that INBOX's cap evicts: they never come again, so they are looked for.
//!
//! Invariant: an entry that leaves the store unread ends visibly, and holds no slot any more.

use std::time::Duration;

use cotal_nats::{Connection, Get, NatsError};
use cotal_wire::{Lifecycle, Space};
use tokio::task::JoinSet;
use tracing::{debug, error};

use crate::clock::now_ms;
use crate::counters::Counters;

/// How often owners with waiting entries are looked at.
pub(crate) const DISCARD_SCAN_EVERY: Duration = Duration::from_secs(10);

/// An owner and the first entry that INBOX still holds of it, at or above its lowest waiting one.
pub(crate) type FirstHeld = (Lifecycle, u64);

/// Looks for discarded entries, beside the reader and never in its way.
pub(crate) struct DiscardScan {
    space: Space,
    connection: Connection,
    running: JoinSet<Vec<FirstHeld>>,
}

impl DiscardScan {
    pub(crate) fn new(space: &Space, connection: &Connection) -> Self {
        let running = JoinSet::new();
        Self { space: space.clone(), connection: connection.clone(), running }
    }

    /// Whether nothing is being looked at.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Begins to look at each owner's lowest waiting entry: the cap takes the oldest first.
    pub(crate) fn begin(&mut self, lowest: Vec<(Lifecycle, u64)>) {
        self.running.spawn(look(self.space.clone(), self.connection.clone(), lowest));
    }

    /// What a look found; pends while none runs. Cancel-safe.
    pub(crate) async fn found(&mut self) -> Vec<FirstHeld> {
        match self.running.join_next().await {
            None => std::future::pending().await,
            Some(found) => found.unwrap_or_default(),
        }
    }
}

async fn look(
    space: Space,
    connection: Connection,
    lowest: Vec<(Lifecycle, u64)>,
) -> Vec<FirstHeld> {
    let mut found = Vec::new();
    for (owner, seq) in lowest {
        match first_held(&space, &connection, &owner, seq).await {
            Ok(first) if first == seq => {}
            Ok(first) => found.push((owner, first)),
            Err(error) => debug!(%space, %error, "waiting entries could not be looked at"),
        }
    }
    found
}

async fn first_held(
    space: &Space,
    connection: &Connection,
    owner: &Lifecycle,
    seq: u64,
) -> Result<u64, NatsError> {
    let subject = space.dinbox(owner);
    let get = Get::NextBySubject { seq, subject: &subject };
    let found = connection.get_message(&space.inbox_stream(), get).await?;
    Ok(found.map_or(u64::MAX, |message| message.seq))
}

/// Counts and tells the waiting entries of one owner that are lost.
pub(crate) fn tell(space: &Space, counters: &Counters, owner: &Lifecycle, lost: usize) {
    counters.add_missed(&owner.principal, lost as u64);
    counters.misses().lost(owner, lost as u64, None, now_ms());
    counters.misses().ended(owner);
    error!(
        %space, member = %owner.principal, lost,
        "waiting entries were evicted from INBOX before they could be delivered"
    );
}
