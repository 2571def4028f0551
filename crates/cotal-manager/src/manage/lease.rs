//! The lease of the one renewal owner of a space, and the row of each running manager.
//!
//! The lease prevents double work only: signing the same identity twice is harmless. So an owner
//! counts as one while its row cannot have expired, and a row that was left behind is found again
//! by its identity, which one manager has at a time.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Bucket as Kv, Connection, NatsError, to_json};
use cotal_wire::names::{Bucket, RENEWAL_KEY, manager_key};
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Principal, Space};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::clock::unix_millis;
use crate::error::{Doing, ManagerError};

/// The bucket's time to live, less what a slow clock or an answer on its way may take.
const VALID_FOR: Duration = Duration::from_secs(8);
/// Four renewals fit into the time to live.
const KEEP_EVERY: Duration = Duration::from_secs(2);

/// The keeper; it runs until it is told to stop, and releases what it holds.
pub(super) struct Keeper {
    space: Space,
    kv: Kv,
    row: LeaseRow,
    revision: Option<u64>,
    valid_until: Instant,
    held: Arc<watch::Sender<bool>>,
}

impl Keeper {
    /// A keeper that holds nothing yet; `held` is told whether it does.
    pub(super) fn new(
        connection: &Connection,
        space: &Space,
        holder: &Principal,
        instance: &str,
        held: Arc<watch::Sender<bool>>,
    ) -> Self {
        let row = LeaseRow {
            holder: holder.clone(),
            incarnation: instance.to_owned(),
            since: unix_millis(),
            ready: true,
        };
        Self {
            space: space.clone(),
            kv: Kv::new(connection, &space.bucket(Bucket::Manager)),
            row,
            revision: None,
            valid_until: Instant::now(),
            held,
        }
    }

    /// Keeps both rows until told to stop.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let own = manager_key(&self.row.incarnation);
        loop {
            let written = match to_json(&self.row) {
                Ok(row) => self.kv.put(&own, row).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                debug!(space = %self.space, %error, "the manager's row was not written");
            }
            self.keep().await;
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(KEEP_EVERY) => {}
            }
        }
        self.held.send_replace(false);
        if let Some(revision) = self.revision {
            let released = self.kv.delete(RENEWAL_KEY, Some(revision)).await;
            released.inspect_err(|error| debug!(%error, "the lease expires by itself")).ok();
        }
        self.kv.delete(&own, None).await.ok();
    }

    async fn keep(&mut self) {
        let asked = Instant::now();
        let written = match (to_json(&self.row), self.revision) {
            (Ok(row), Some(revision)) => self.kv.update(RENEWAL_KEY, row, revision).await,
            (Ok(row), None) => self.kv.create(RENEWAL_KEY, row).await,
            (Err(error), _) => Err(error),
        };
        match written {
            Ok(revision) => {
                self.revision = Some(revision);
                self.valid_until = asked + VALID_FOR;
            }
            Err(NatsError::Conflict { .. }) => self.look().await,
            Err(error) => debug!(space = %self.space, %error, "the lease was not kept"),
        }
        let holds = self.revision.is_some() && Instant::now() < self.valid_until;
        if self.held.send_replace(holds) != holds {
            match holds {
                true => info!(space = %self.space, "this manager renews the space's credentials"),
                false => warn!(space = %self.space, "another manager may renew the credentials"),
            }
        }
    }

    /// A row of this identity is taken up: a lost answer left it, or a predecessor that is verified
    /// gone. Any other is somebody else's.
    async fn look(&mut self) {
        self.revision = None;
        let Ok(Some(entry)) = self.kv.get(RENEWAL_KEY).await else { return };
        let row = entry.live().and_then(|value| LeaseRow::parse(value).ok());
        if row.is_some_and(|row| row.holder == self.row.holder) {
            self.revision = Some(entry.revision);
        }
    }
}

/// The lease, held for one short piece of work.
pub(super) struct Claimed {
    kv: Kv,
    revision: u64,
}

impl Claimed {
    /// Gives it back; else it expires by itself.
    pub(super) async fn release(self) {
        self.kv.delete(RENEWAL_KEY, Some(self.revision)).await.ok();
    }
}

/// Claims the lease, unless somebody holds it.
pub(super) async fn claim(
    connection: &Connection,
    space: &Space,
    holder: &Principal,
    instance: &str,
) -> Result<Claimed, ManagerError> {
    let kv = Kv::new(connection, &space.bucket(Bucket::Manager));
    let row = LeaseRow {
        holder: holder.clone(),
        incarnation: instance.to_owned(),
        since: unix_millis(),
        ready: true,
    };
    let created = match to_json(&row) {
        Ok(row) => kv.create(RENEWAL_KEY, row).await,
        Err(error) => Err(error),
    };
    match created {
        Ok(revision) => Ok(Claimed { kv, revision }),
        Err(NatsError::Conflict { .. }) => Err(ManagerError::Renewed(space.clone())),
        Err(error) => Err(error).doing(|| format!("claim the renewal of space {space}")),
    }
}
