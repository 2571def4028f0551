//! Finds waiting entries that INBOX's cap has discarded. The broker never redelivers those, so the
//! reader must look for them.
//!
//! Invariant: an entry that was discarded unread is counted and logged, and takes no slot any more.

use std::time::Duration;

use cotal_nats::{Connection, Get, NatsError};
use cotal_wire::{Lifecycle, Space};
use tokio::task::JoinSet;
use tracing::{debug, error};

use crate::clock::now_ms;
use crate::counters::Counters;

/// How often owners with waiting entries are checked.
pub(crate) const DISCARD_SCAN_EVERY: Duration = Duration::from_secs(10);

/// An owner, and the first entry at or above its lowest waiting one that INBOX still holds for it.
pub(crate) type FirstHeld = (Lifecycle, u64);

/// Looks for discarded entries in a task of its own, so that the reader never waits for it.
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

    /// Whether no scan runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Starts a scan of each owner's lowest waiting entry: the cap discards the oldest first.
    pub(crate) fn begin(&mut self, lowest: Vec<(Lifecycle, u64)>) {
        self.running.spawn(look(self.space.clone(), self.connection.clone(), lowest));
    }

    /// The result of the scan; pends while none runs. Cancel-safe.
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
            Err(error) => debug!(%space, %error, "could not check waiting entries"),
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

/// Counts and logs the discarded entries of one owner.
pub(crate) fn tell(space: &Space, counters: &Counters, owner: &Lifecycle, lost: usize) {
    counters.add_missed(&owner.principal, lost as u64);
    counters.misses().lost(owner, lost as u64, None, now_ms());
    counters.misses().ended(owner);
    error!(
        %space, member = %owner.principal, lost,
        "INBOX's cap discarded waiting entries before they could be delivered"
    );
}
