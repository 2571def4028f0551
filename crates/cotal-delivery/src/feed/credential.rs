//! The feed's own credential: read from its own store key, proved, and renewed without a restart
//! (the second half of CRD-2).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cotal_nats::{ConnectOptions, CredsSource, prove};
use cotal_rules::renewal::{self, Candidate, renewal_point};
use cotal_wire::Space;
use cotal_wire::accounts::{Topology, inhabited};
use cotal_wire::control::{Accepted, Adoption};
use cotal_wire::creds::Creds;
use cotal_wire::profile::Profile;
use cotal_workspace::{SecretKind, SecretStore};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::census::Scanner;
use crate::clock::now_ms;
use crate::credentials::adoption::{NotAdopted, accepted};
use crate::credentials::{self, CredentialError};
use crate::lane::context::LaneContext;
use crate::sidecar::Health;

/// How often the store is read while the credential is due or missing.
const STORE_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Longest sleep, so that a change of the system clock is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// The credential of the feed.
pub(crate) struct FeedCredential {
    space: Space,
    /// The accounts of the lane; a credential for other accounts is refused.
    accounts: Vec<String>,
    store: Arc<dyn SecretStore>,
    /// How to connect, except for the credential.
    dial: ConnectOptions,
    health: Health,
    held: Mutex<Option<Creds>>,
    source: OnceLock<CredsSource>,
    /// Notified when the first credential is held.
    first: Notify,
}

impl FeedCredential {
    /// Nothing is held yet.
    pub(super) fn new(context: &LaneContext, scanner: &Scanner, health: Health) -> Arc<Self> {
        let space = context.space.clone();
        let name = format!("cotal-feed {space}");
        Arc::new(Self {
            space,
            accounts: scanner.accounts().to_vec(),
            store: Arc::clone(scanner.store()),
            dial: ConnectOptions { name, ..context.connect.clone() },
            health,
            held: Mutex::default(),
            source: OnceLock::new(),
            first: Notify::new(),
        })
    }

    /// How the feed connects; waits until there is a credential.
    pub(super) async fn connect(&self) -> ConnectOptions {
        loop {
            let found = self.first.notified();
            if let Some(source) = self.source.get() {
                return ConnectOptions { creds: source.clone(), ..self.dial.clone() };
            }
            found.await;
        }
    }

    /// Re-reads the key for `reloadCreds`. The feed does not decide about the daemon's own
    /// adoption, so a failure here is only reported.
    pub(crate) async fn reload(&self, expected: Option<&str>) -> Adoption {
        match self.adopt(expected).await {
            Ok((accepted, true)) => Adoption::BrokerAccepted(accepted),
            Ok((accepted, false)) => match self.health.reason() {
                None => Adoption::BrokerAccepted(accepted),
                Some(reason) => {
                    Adoption::Skipped(format!("the membership feed does not run: {reason}"))
                }
            },
            Err(why) => Adoption::Skipped(why.to_string()),
        }
    }

    /// Adopts the credential in the store if the broker accepts it; returns whether it is new.
    async fn adopt(&self, expected: Option<&str>) -> Result<(Accepted, bool), NotAdopted> {
        // Read under the lock, so that of two calls at once the later one has the newer value.
        let mut held = self.held.lock().await;
        let stored = credentials::ask_store(&self.store, &self.space, |store, space| {
            credentials::read(store, space, SecretKind::MembershipRw)
        });
        let stored = stored.await?;
        if expected.is_some_and(|expected| expected != stored.fingerprint()) {
            return Err(NotAdopted::Unexpected);
        }
        let candidate = match &*held {
            None => self.of_this_space(&stored).map(|()| Candidate::Prove)?,
            Some(held) => {
                let subject = &stored.claims.subject;
                let topology = Topology::of(&held.claims);
                let needed = Profile::MembershipRw.permissions(&self.space, subject, topology);
                renewal::judge(held, &stored, &needed, now_ms() / 1_000)
            }
        };
        match candidate {
            Candidate::Unchanged => Ok((accepted(&stored), false)),
            Candidate::Missed => Err(NotAdopted::Missed),
            Candidate::Refused(why) => Err(NotAdopted::Refused(why)),
            Candidate::Prove => {
                let client = credentials::client_creds(&stored, &self.space)?;
                let proof = Box::pin(prove(&self.dial, client.clone())).await;
                proof.map_err(NotAdopted::NotProved)?;
                match self.source.get() {
                    // The connection reconnects by itself when its source is replaced.
                    Some(source) => drop(source.replace(client)),
                    None => drop(self.source.set(CredsSource::new(client))),
                }
                self.first.notify_waiters();
                let accepted = accepted(&stored);
                info!(space = %self.space, fingerprint = accepted.fingerprint, "the membership feed adopted a credential");
                *held = Some(stored);
                Ok((accepted, true))
            }
        }
    }

    fn of_this_space(&self, stored: &Creds) -> Result<(), CredentialError> {
        let tagged = stored.claims.space();
        if tagged.as_ref().ok() == Some(&self.space) && inhabited(&stored.claims) == self.accounts {
            return Ok(());
        }
        Err(CredentialError::Foreign {
            key: SecretKind::MembershipRw.name(),
            space: self.space.clone(),
            why: "it is for another space or account".to_owned(),
        })
    }

    /// Re-reads the key when it is due, and while there is none, until told to stop.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut told = None;
        while !stop.is_cancelled() {
            let wait = self.until_due().await;
            if wait <= STORE_CHECK_EVERY {
                let Some(adopted) = stop.run_until_cancelled(self.adopt(None)).await else {
                    return;
                };
                let why = adopted.err().map(|why| why.to_string());
                if let (Some(why), true) = (&why, why != told) {
                    error!(space = %self.space, why, "the membership feed has no usable credential");
                }
                if let (Some(why), None) = (&why, self.source.get()) {
                    self.health.fails(why.clone());
                }
                told = why;
            }
            let wait = self.until_due().await;
            stop.run_until_cancelled(tokio::time::sleep(wait)).await;
        }
    }

    /// How long until the key is read next: at the renewal point, and every second after it.
    async fn until_due(&self) -> Duration {
        let held = self.held.lock().await;
        let Some(held) = &*held else { return STORE_CHECK_EVERY };
        let Some(point) = renewal_point(held.claims.issued_at, held.claims.expires_at) else {
            return LONGEST_SLEEP;
        };
        let left = (point * 1_000 - now_ms()).max(0).unsigned_abs();
        Duration::from_millis(left).clamp(STORE_CHECK_EVERY, LONGEST_SLEEP)
    }
}
