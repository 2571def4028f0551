//! Adoption of a renewed credential without a restart (CRD-2 to CRD-6, ADM-8).
//!
//! The daemon re-reads its own store key on request, and at 75 % of the credential's lifetime. A
//! candidate that may replace the held credential is tried on a proof connection. Only then the
//! resident connection reconnects with it, 250 ms after the reply, so that the reply is not lost.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{ConnectOptions, Connection, NatsError, prove};
use cotal_rules::renewal::{self, Candidate, Refused, renewal_point};
use cotal_wire::accounts::Topology;
use cotal_wire::control::{Accepted, Code, Reply};
use cotal_wire::creds::Creds;
use cotal_wire::permissions::Permissions;
use cotal_wire::{Principal, Space, profile::Profile};
use cotal_workspace::{SecretKind, SecretStore};
use tokio::sync::{Mutex, Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::clock::now_ms;
use crate::credentials::{self, CredentialError};
use crate::lane::context::LaneContext;
use crate::lane::link::Renewals;

/// Between the reply to an adoption and the reconnect.
const MOVE_AFTER: Duration = Duration::from_millis(250);
/// How long the reconnect may take, and how long replies wait for it.
const MOVED_WITHIN: Duration = Duration::from_secs(5);
/// How often the store is read while the credential is due or has expired.
const STORE_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Longest sleep, so that a change of the system clock is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Why a candidate was not adopted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAdopted {
    #[error(
        "the daemon has not finished starting; nothing was adopted. The next renewal pass adopts \
         the credential, or the daemon's own re-read"
    )]
    Starting,
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("the stored credential is not adopted: {0}")]
    Refused(Refused),
    #[error("the stored credential is not the expected one; it was not adopted")]
    Unexpected,
    #[error(
        "the renewal was missed: the store still holds the credential that is due; renew it with \
         `cotal doctor auth --fix`, and see that `cotal manage` runs"
    )]
    Missed,
    #[error("the broker did not accept the stored credential: {0}")]
    NotProved(NatsError),
}

impl NotAdopted {
    /// The reply for the caller.
    pub(crate) fn reply(&self) -> Reply {
        let code = match self {
            Self::Starting => Code::NotReady,
            Self::Credential(CredentialError::Store(_)) | Self::Missed => Code::Unavailable,
            Self::NotProved(error) if error.is_transient() => Code::Unavailable,
            Self::Unexpected => Code::Conflict,
            Self::Credential(_) | Self::Refused(_) | Self::NotProved(_) => Code::Invalid,
        };
        Reply::refused(code, self.to_string())
    }
}

/// Renews the resident connection's credential.
pub(crate) struct Renewal {
    space: Space,
    connection: Connection,
    connect: ConnectOptions,
    store: Arc<dyn SecretStore>,
    principal: Principal,
    renewals: Renewals,
    /// The credential that is held now.
    held: Mutex<Creds>,
    /// Whether start-up is finished (CRD-3).
    started: watch::Receiver<bool>,
    /// Whether the connection is about to reconnect; replies wait for that (ADM-8).
    moving: watch::Sender<bool>,
    /// Notified when a reload on the rail ordered a reconnect.
    ordered: Notify,
}

/// Starts the renewal of the lane's credential; `held` is the first one.
pub(crate) fn spawn(
    context: &LaneContext,
    store: Arc<dyn SecretStore>,
    held: Creds,
    renewals: Renewals,
    started: watch::Receiver<bool>,
) -> Arc<Renewal> {
    let renewal = Arc::new(Renewal {
        space: context.space.clone(),
        connection: context.connection.clone(),
        connect: context.connect.clone(),
        store,
        principal: context.principal.clone(),
        renewals,
        held: Mutex::new(held),
        started,
        moving: watch::Sender::new(false),
        ordered: Notify::new(),
    });
    context.spawn("the renewal", Arc::clone(&renewal).run(context.stop.clone()));
    renewal
}

/// A candidate that the broker accepted, or the credential that is held already.
pub(crate) struct Proved {
    pub(crate) accepted: Accepted,
    /// Whether the connection must reconnect with it.
    pub(crate) is_new: bool,
}

impl Renewal {
    /// Re-reads the key and proves its credential. `expected` is the fingerprint that the owner of
    /// the renewal has just stored.
    pub(crate) async fn reload(&self, expected: Option<&str>) -> Result<Proved, NotAdopted> {
        if !*self.started.borrow() {
            return Err(NotAdopted::Starting);
        }
        // The key is read under the lock. Otherwise two requests at once could both read, and the
        // one that gets the lock later could have the older value.
        let mut held = self.held.lock().await;
        let stored = credentials::ask_store(&self.store, &self.space, |store, space| {
            credentials::read(store, space, SecretKind::Delivery)
        });
        let stored = stored.await?;
        if expected.is_some_and(|expected| expected != stored.fingerprint()) {
            return Err(NotAdopted::Unexpected);
        }
        let needed = self.needed(&stored, Topology::of(&held.claims));
        match renewal::judge(&held, &stored, &needed, now_ms() / 1_000) {
            Candidate::Unchanged => Ok(Proved { accepted: accepted(&stored), is_new: false }),
            Candidate::Missed => Err(NotAdopted::Missed),
            Candidate::Refused(why) => Err(NotAdopted::Refused(why)),
            Candidate::Prove => {
                let candidate = credentials::client_creds(&stored, &self.space)?;
                let proof = Box::pin(prove(&self.connect, candidate.clone())).await;
                proof.map_err(NotAdopted::NotProved)?;
                // From now on every redial uses it, and the components beside delivery reconnect
                // with it.
                self.connection.creds().replace(candidate);
                let accepted = accepted(&stored);
                *held = stored;
                self.tell();
                Ok(Proved { accepted, is_new: true })
            }
        }
    }

    /// Whether the resident connection is about to reconnect; replies wait for that (ADM-8).
    pub(crate) fn moving(&self) -> watch::Receiver<bool> {
        self.moving.subscribe()
    }

    fn needed(&self, stored: &Creds, topology: Topology) -> Permissions {
        let profile = Profile::Delivery(self.principal.clone());
        profile.permissions(&self.space, &stored.claims.subject, topology)
    }

    /// Orders the reconnect after a reply was sent. The reconnect drops the connection that carried
    /// the reply.
    pub(crate) fn order_move(&self) {
        self.moving.send_replace(true);
        self.ordered.notify_one();
    }

    /// Reconnects with the credential that was proved last.
    async fn move_on(&self, after: Duration) {
        self.moving.send_replace(true);
        tokio::time::sleep(after).await;
        let moved = self.connection.move_on(MOVED_WITHIN).await;
        self.moving.send_replace(false);
        // Once more, because the credential held before may have expired between the proof and the
        // reconnect.
        self.tell();
        let fingerprint = self.held.lock().await.fingerprint();
        match moved {
            Ok(()) => {
                info!(space = %self.space, fingerprint, "reconnected with a renewed credential");
            }
            Err(error) => {
                warn!(space = %self.space, %error, "could not reconnect with the renewed credential yet; retrying");
            }
        }
    }

    /// Tells the watchdog of a proved renewal.
    fn tell(&self) {
        self.renewals.send_modify(|renewals| *renewals += 1);
    }

    /// Re-reads the key when it is due, and reconnects, until told to stop.
    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut told = false;
        loop {
            let wait = self.until_due().await;
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.ordered.notified() => {
                    stop.run_until_cancelled(self.move_on(MOVE_AFTER)).await;
                }
                () = tokio::time::sleep(wait) => {
                    stop.run_until_cancelled(self.look(&mut told)).await;
                }
            }
        }
        self.moving.send_replace(false);
    }

    /// When the credential is due, adopts a renewed one from the store; logs once if there is none.
    async fn look(&self, told: &mut bool) {
        if self.until_due().await > STORE_CHECK_EVERY {
            *told = false;
            return;
        }
        match self.reload(None).await {
            Ok(Proved { is_new: true, .. }) => self.move_on(Duration::ZERO).await,
            Ok(_) | Err(NotAdopted::Starting) => {}
            Err(why) if !*told => {
                error!(space = %self.space, %why, "the credential is due for renewal, and no renewed one can be adopted");
                *told = true;
            }
            Err(_) => {}
        }
    }

    /// How long until the key is read next: at the renewal point, and every second after it.
    async fn until_due(&self) -> Duration {
        let held = self.held.lock().await;
        let Some(point) = renewal_point(held.claims.issued_at, held.claims.expires_at) else {
            return LONGEST_SLEEP;
        };
        let left = (point * 1_000 - now_ms()).max(0).unsigned_abs();
        Duration::from_millis(left).clamp(STORE_CHECK_EVERY, LONGEST_SLEEP)
    }
}

/// Waits until the connection is not about to reconnect, at most 5 s, because a reply sent before
/// that would be lost.
pub(crate) async fn settled(moving: &mut watch::Receiver<bool>) {
    let settled = moving.wait_for(|moving| !*moving);
    // After 5 s the reply is sent in any case.
    let _ = tokio::time::timeout(MOVED_WITHIN, settled).await;
}

/// The description of an accepted credential for a reply.
pub(crate) fn accepted(creds: &Creds) -> Accepted {
    Accepted {
        identity: creds.claims.subject.to_string(),
        iat: creds.claims.issued_at,
        exp: creds.claims.expires_at,
        fingerprint: creds.fingerprint(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Takes five seconds: only the time limit ends the wait.
    #[tokio::test]
    async fn adm_8_a_reply_waits_for_a_move_that_never_ends_five_seconds_at_most() {
        let (sender, mut moving) = watch::channel(false);
        settled(&mut moving).await;
        sender.send_replace(true);
        let asked = Instant::now();
        settled(&mut moving).await;
        assert!(asked.elapsed() >= MOVED_WITHIN, "answered into a connection that moves");
    }
}
