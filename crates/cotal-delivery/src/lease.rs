//! The single-flight lease: one daemon serves a space (LSE-1, 2, 8, 9).
//!
//! Invariant: every write names the revision it replaces, and only a row that carries this run's
//! incarnation is ever treated as one's own.

use std::time::Duration;

use cotal_nats::{Bucket as Kv, Bytes, Connection, NatsError};
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Principal, Space};
use tracing::{error, info, warn};

use crate::clock::now_ms;
use crate::gate::GateKeeper;

/// Three renewals fit into the row's 30 s.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How often an unanswered question about the row is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a release may take.
const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Why this process does not, or no longer, serve.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another daemon holds the lease.
    #[error(
        "{space} is served by another daemon: {holder} holds its lease{}; stop that one, or wait \
         until its lease expires (30 s after a crash)",
        if *ready { "" } else { " (still starting)" }
    )]
    Held {
        /// The space.
        space: Space,
        /// Who holds it.
        holder: Principal,
        /// Whether that daemon serves already.
        ready: bool,
    },
    /// The lease row is not a lease.
    #[error("the lease row of {0} is garbled: somebody tampered with it; it expires within 30 s")]
    Tampered(Space),
    /// Another daemon took the lease while this one served.
    #[error("another daemon has taken the shard: {holder} holds the lease of {space}")]
    Taken {
        /// The space.
        space: Space,
        /// Who holds it.
        holder: Principal,
    },
    /// The row was gone and could not be written again.
    #[error("could not re-acquire the lease of {space}: {source}")]
    NotReacquired {
        /// The space.
        space: Space,
        /// What the broker said.
        source: NatsError,
    },
    /// The broker refused the first claim.
    #[error("could not claim the lease of {space}: {source}")]
    Refused {
        /// The space.
        space: Space,
        /// What the broker said.
        source: NatsError,
    },
}

/// The held lease.
#[derive(Debug)]
pub(crate) struct Lease {
    kv: Kv,
    space: Space,
    row: LeaseRow,
    revision: u64,
}

/// What stands in the bucket, as seen by this process.
enum Standing {
    Own(u64),
    Other(LeaseRow),
    Garbled,
    Free,
}

impl Lease {
    /// Claims the lease, or says who holds it.
    pub(crate) async fn claim(
        connection: &Connection,
        space: &Space,
        holder: Principal,
        incarnation: String,
    ) -> Result<Self, LeaseError> {
        let row = LeaseRow { holder, incarnation, since: now_ms(), ready: false };
        let kv = Kv::new(connection, &space.bucket(Bucket::Delivery));
        let mut lease = Self { kv, space: space.clone(), row, revision: 0 };
        let refused = |source| LeaseError::Refused { space: space.clone(), source };
        match lease.kv.create(LEASE_KEY, lease.encoded()).await {
            Ok(revision) => lease.revision = revision,
            Err(error) if error.is_conflict() => match lease.read().await.map_err(refused)? {
                Standing::Own(revision) => lease.revision = revision,
                Standing::Other(LeaseRow { holder, ready, .. }) => {
                    return Err(LeaseError::Held { space: space.clone(), holder, ready });
                }
                Standing::Garbled => return Err(LeaseError::Tampered(space.clone())),
                Standing::Free => return Err(refused(error)),
            },
            Err(error) => return Err(refused(error)),
        }
        info!(%space, "lease claimed");
        Ok(lease)
    }

    fn encoded(&self) -> Bytes {
        serde_json::to_vec(&self.row).unwrap_or_default().into()
    }

    async fn read(&self) -> Result<Standing, NatsError> {
        let Some(entry) = self.kv.get(LEASE_KEY).await? else {
            return Ok(Standing::Free);
        };
        let Some(value) = entry.live() else {
            return Ok(Standing::Free);
        };
        Ok(match LeaseRow::parse(value) {
            Ok(row) if row.incarnation == self.row.incarnation => Standing::Own(entry.revision),
            Ok(row) => Standing::Other(row),
            Err(_) => Standing::Garbled,
        })
    }

    /// Says in the row whether this daemon serves.
    pub(crate) async fn set_ready(&mut self, ready: bool) -> Result<(), LeaseError> {
        self.row.ready = ready;
        match self.renew().await {
            Ok(()) => Ok(()),
            Err(_) => self.question().await,
        }
    }

    async fn renew(&mut self) -> Result<(), NatsError> {
        self.revision = self.kv.update(LEASE_KEY, self.encoded(), self.revision).await?;
        Ok(())
    }

    /// Renews for as long as the lease is this process's own. A failed renewal is a question, not a
    /// verdict: serving stops, the row is read again, and only then it goes on or ends.
    pub(crate) async fn keep(&mut self, gate: &GateKeeper) -> LeaseError {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            if let Err(error) = self.renew().await {
                warn!(space = %self.space, %error, "the lease was not renewed; serving stops until it is proven");
                gate.set(false);
                if let Err(verdict) = self.question().await {
                    return verdict;
                }
                gate.set(true);
                info!(space = %self.space, "the lease is proven; serving again");
            }
        }
    }

    /// Finds out whose the lease is, for as long as the broker does not say.
    async fn question(&mut self) -> Result<(), LeaseError> {
        loop {
            let standing = match self.read().await {
                Ok(standing) => standing,
                Err(error) if error.is_denied() => {
                    return Err(LeaseError::NotReacquired {
                        space: self.space.clone(),
                        source: error,
                    });
                }
                Err(error) => {
                    warn!(space = %self.space, %error, "the lease cannot be read; asking again");
                    tokio::time::sleep(ASK_AGAIN).await;
                    continue;
                }
            };
            match standing {
                Standing::Own(revision) => {
                    self.revision = revision;
                    match self.renew().await {
                        Ok(()) => return Ok(()),
                        Err(error) => {
                            warn!(space = %self.space, %error, "the lease is not renewed yet")
                        }
                    }
                }
                Standing::Free => match self.kv.create(LEASE_KEY, self.encoded()).await {
                    Ok(revision) => {
                        self.revision = revision;
                        warn!(space = %self.space, "the lease had expired and was created again");
                        return Ok(());
                    }
                    Err(error) if error.is_conflict() => {}
                    Err(source) => {
                        return Err(LeaseError::NotReacquired {
                            space: self.space.clone(),
                            source,
                        });
                    }
                },
                Standing::Other(LeaseRow { holder, .. }) => {
                    return Err(LeaseError::Taken { space: self.space.clone(), holder });
                }
                Standing::Garbled => {
                    error!(space = %self.space, "the lease row is garbled: somebody tampered with it");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Frees the space, if the row is still this process's own.
    pub(crate) async fn release(self) {
        let release = async {
            match self.read().await? {
                Standing::Own(revision) => {
                    self.kv.delete(LEASE_KEY, Some(revision)).await?;
                    info!(space = %self.space, "lease released");
                }
                _ => info!(space = %self.space, "the lease is not this process's any more"),
            }
            Ok::<(), NatsError>(())
        };
        match tokio::time::timeout(RELEASE_WITHIN, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(space = %self.space, %error, "the lease was not released; it expires")
            }
            Err(_) => warn!(space = %self.space, "the lease was not released in time; it expires"),
        }
    }
}
