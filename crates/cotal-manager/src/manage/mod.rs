//! The manager of one space: renewal owner of what the daemon runs on, and keeper of the
//! registration gate.
//!
//! Order is the safety in it. A start freezes the gate when an earlier run left holders, waits for
//! the daemon's rail, checks that the daemon reads the very store that this manager writes, has the
//! predecessor's holders evicted and verified, and only then opens the gate and connects under its
//! own identity. While it runs it renews only under the `renewal` lease, puts garbled ACL and
//! channel rows back (`wire.md` §4), and makes again what agents can destroy (`wire.md` §11).

mod family;
mod lease;
mod renew;
mod rows;
mod shared;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cotal_nats::{Connection, Creds};
use cotal_rules::cadence::{RETIREMENT_WAIT, START_WAIT};
use cotal_rules::family::{Holder, Role};
use cotal_rules::renewal::half_life;
use cotal_wire::Principal;
use cotal_wire::control::op;
use cotal_workspace::SecretStore;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::authority::{Authority, BrokerAddress, MOVE_WITHIN, Office, connect};
use crate::clock::{unix_millis, unix_seconds};
use crate::error::ManagerError;
use crate::gate::Gate;
use crate::rail::Rail;

use self::family::Family;
use self::lease::Keeper;
use self::renew::{Renewer, same_store};

pub use renew::{Renewal, RenewalOutcome, Renewals};

/// How long the broker may be away before the manager ends; `up` starts both again.
const BROKER_GONE: Duration = Duration::from_secs(60);
/// How long a stop waits for the broker; `down` stops the daemon after it.
const STOP_WITHIN: Duration = Duration::from_millis(500);

/// How a manager is run.
pub struct ManagerOptions {
    /// The keys of the space.
    pub authority: Authority,
    /// The store that the daemon reads.
    pub store: Arc<dyn SecretStore>,
    /// The broker.
    pub broker: BrokerAddress,
    /// How long a start waits for the daemon's rail (ADM-4).
    pub start_wait: Duration,
    /// How long it waits for its predecessor to be gone.
    pub evict_wait: Duration,
}

impl ManagerOptions {
    /// With the waits of the contracts.
    #[must_use]
    pub fn new(authority: Authority, store: Arc<dyn SecretStore>, broker: BrokerAddress) -> Self {
        let (start_wait, evict_wait) = (START_WAIT, RETIREMENT_WAIT);
        Self { authority, store, broker, start_wait, evict_wait }
    }
}

/// A manager that has started and not yet been run.
#[derive(Debug)]
pub struct Manager {
    sessions: Sessions,
    broker: BrokerAddress,
    connection: Connection,
    own: Principal,
    creds: Creds,
    renewer: Renewer,
    instance: String,
    renewing: Arc<watch::Sender<bool>>,
}

/// Attach sessions of a manager; cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions {
    authority: Arc<Authority>,
    family: Arc<Mutex<Family>>,
}

impl Sessions {
    /// A credential of the supervisor's profile for one more session; it adds one holder, which the
    /// next restart evicts (ADM-7).
    ///
    /// # Errors
    /// When it cannot be recorded or signed.
    pub fn attach(&self) -> Result<Creds, ManagerError> {
        self.issue(Role::Attach)
    }

    /// Everyone who holds a credential of the family.
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        self.family().ledger().holders().to_vec()
    }

    fn issue(&self, role: Role) -> Result<Creds, ManagerError> {
        self.family().issue(&self.authority, role)
    }

    /// A panic elsewhere leaves the file as it was written last, so the lock stays usable.
    fn family(&self) -> std::sync::MutexGuard<'_, Family> {
        self.family.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Manager {
    /// Starts a manager: see the module. The gate stays frozen when this fails after freezing it.
    ///
    /// # Errors
    /// When another manager of the root runs, the daemon does not answer, refuses or reads another
    /// store, or a predecessor is not proven gone.
    pub async fn start(options: ManagerOptions) -> Result<Self, ManagerError> {
        // Boxed: its many steps make a large future.
        Box::pin(Self::start_in_order(options)).await
    }

    async fn start_in_order(options: ManagerOptions) -> Result<Self, ManagerError> {
        let ManagerOptions { authority, store, broker, start_wait, evict_wait } = options;
        let space = authority.space().clone();
        let mut family = Family::open(&authority)?;
        let gate = Gate::of(authority.root(), &space);
        let held = family.ledger().holders().len();
        let restarts = held > 0 || gate.frozen()?.is_some();
        if restarts {
            warn!(%space, holders = held, "the registration gate is frozen for a restart");
            gate.freeze(&format!(
                "a manager restarts, and {held} holders of its predecessor's credentials are not \
                 all verified gone"
            ))?;
        }
        let (own, connection) = authority.connect(Office::Supervisor, &broker).await?;
        let rail = Rail::new(&connection, &space, &own);
        let theirs = rail.admin_patiently(op::RELOAD_STORE_IDENTITY, json!({}), start_wait);
        same_store(&space, &store.identity(), &serde_json::from_value(theirs.await?)?)?;
        if restarts {
            family.evict(&authority, &broker, &rail, evict_wait).await?;
            gate.open()?;
            info!(%space, "every credential of the earlier manager is verified gone; the registration gate is open");
        }
        connection.close(MOVE_WITHIN).await;
        Self::serve(Arc::new(authority), family, store, broker).await
    }

    async fn serve(
        authority: Arc<Authority>,
        family: Family,
        store: Arc<dyn SecretStore>,
        broker: BrokerAddress,
    ) -> Result<Self, ManagerError> {
        let family = Arc::new(Mutex::new(family));
        let sessions = Sessions { authority: Arc::clone(&authority), family };
        let creds = sessions.issue(Role::Serve)?;
        let own = Principal::new("local", creds.nkey()).map_err(cotal_trust::MintError::from)?;
        let space = authority.space().clone();
        let name = format!("cotal manager {space}");
        let connection = connect(&broker, &name, creds.clone()).await?;
        let rail = Rail::new(&connection, &space, &own);
        let instance = format!("{}-{}", std::process::id(), unix_millis());
        let renewer = Renewer::new(authority, store, rail);
        let renewing = Arc::new(watch::Sender::new(false));
        Ok(Self { sessions, broker, connection, own, creds, renewer, instance, renewing })
    }

    /// Who it is on the wire.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.own
    }

    /// Its process run, as its row in the manager bucket names it.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Its attach sessions.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Whether it holds the lease of the space's renewal owner, and when that changes.
    #[must_use]
    pub fn renewing(&self) -> watch::Receiver<bool> {
        self.renewing.subscribe()
    }

    /// Renews until told to stop.
    ///
    /// # Errors
    /// When the broker stays away, or the own credential cannot be renewed.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), ManagerError> {
        let space = self.renewer.space().clone();
        let keeper = Keeper::new(
            &self.connection,
            &space,
            &self.own,
            &self.instance,
            Arc::clone(&self.renewing),
        );
        let mut held = self.renewing();
        let ending = stop.child_token();
        let keeping = tokio::spawn(keeper.run(ending.clone()));
        let authority = Arc::clone(&self.sessions.authority);
        let shared = shared::keep(Arc::clone(&authority), self.broker.clone(), ending.clone());
        let shared = tokio::spawn(shared);
        let rows = tokio::spawn(rows::keep(authority, self.broker.clone(), ending.clone()));
        let gone = broker_gone(self.connection.clone());
        tokio::pin!(gone);
        let outcome = loop {
            let holds = *held.borrow_and_update();
            let wait = match stop.run_until_cancelled(self.pass(holds)).await {
                None => break Ok(()),
                Some(Err(error)) => break Err(error),
                Some(Ok(wait)) => wait,
            };
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                () = &mut gone => break Err(ManagerError::BrokerGone(self.broker.url.clone())),
                Ok(()) = held.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        };
        ending.cancel();
        // It releases its rows, where the broker answers; else they expire.
        tokio::time::timeout(STOP_WITHIN, async { tokio::join!(keeping, rows, shared) }).await.ok();
        self.connection.close(STOP_WITHIN).await;
        outcome
    }

    /// Renews what is due; tells how long nothing will be.
    async fn pass(&mut self, holds_lease: bool) -> Result<Duration, ManagerError> {
        let own = self.renew_own().await?;
        let theirs = self.renewer.pass(holds_lease).await;
        Ok(own.min(theirs))
    }

    async fn renew_own(&mut self) -> Result<Duration, ManagerError> {
        let claims = self.creds.claims();
        let Some(half) = half_life(claims.issued_at, claims.expires_at) else {
            return Ok(renew::LONGEST_PAUSE);
        };
        let left = half - unix_seconds();
        if left > 0 {
            return Ok(Duration::from_secs(left.unsigned_abs()).min(renew::LONGEST_PAUSE));
        }
        self.creds = self.sessions.issue(Role::Serve)?;
        if let Err(error) = self.connection.adopt(self.creds.clone(), MOVE_WITHIN).await {
            // The client presents it at its next dial.
            warn!(space = %self.renewer.space(), %error, "the manager's connection moves to the renewed credential later");
        }
        Ok(Duration::ZERO)
    }
}

/// Renews what is due for a space that no manager renews, once, and has it adopted where a daemon
/// answers: the repair of `cotal doctor auth --fix`.
///
/// # Errors
/// When a manager holds the `renewal` lease, the daemon reads another store, or something cannot be
/// signed, read or written.
pub async fn renew_once(
    authority: Authority,
    store: Arc<dyn SecretStore>,
    broker: &BrokerAddress,
) -> Result<(), ManagerError> {
    let space = authority.space().clone();
    let (own, connection) = authority.connect(Office::Supervisor, broker).await?;
    let instance = format!("once-{}-{}", std::process::id(), unix_millis());
    let lease = lease::claim(&connection, &space, &own, &instance).await?;
    let rail = Rail::new(&connection, &space, &own);
    let renewed = Renewer::new(Arc::new(authority), store, rail).renew().await;
    lease.release().await;
    connection.close(MOVE_WITHIN).await;
    renewed.map(drop)
}

/// Ends once the broker has been away for a whole window.
async fn broker_gone(connection: Connection) {
    let mut state = connection.state();
    loop {
        if state.wait_for(|s| !s.is_connected()).await.is_err() {
            return;
        }
        let back = state.wait_for(|s| s.is_connected());
        match tokio::time::timeout(BROKER_GONE, back).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
