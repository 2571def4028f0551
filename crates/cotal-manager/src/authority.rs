//! The signing side of one space, and the short-lived credentials it works with.
//!
//! Invariant: nothing here ever runs on an allow-all user. Every connection is one of the wire's
//! profiles, minted for minutes, and its credential never touches a disk.

use std::time::Duration;

use cotal_nats::{ConnectError, ConnectOptions, Connection, Creds, NatsError, TlsMode};
use cotal_trust::{SpaceAccount, Trust, UserKey, mint_profile, mint_system_profile};
use cotal_wire::accounts::{Account, Topology};
use cotal_wire::profile::{Profile, SystemProfile};
use cotal_wire::{ConnId, Principal, Space};
use cotal_workspace::{MeshFile, Mode, Root, Segment};

use crate::clock::unix_seconds;
use crate::error::{Doing, ManagerError};

/// How long a one-shot credential lives, in seconds.
pub(crate) const ONE_SHOT: i64 = 5 * 60;
/// How long a connection may take to move onto a renewed credential, or to close.
pub(crate) const MOVE_WITHIN: Duration = Duration::from_secs(5);

/// Where a broker listens and how it is spoken to.
#[derive(Debug, Clone)]
pub struct BrokerAddress {
    /// Its URL.
    pub url: String,
    /// The transport demanded.
    pub tls: TlsMode,
}

/// An office that the manager's side of a space holds for one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Office {
    /// Agents: their rows, consumers and retirement.
    Supervisor,
    /// What people ask: every bucket and stream's state, channel configs.
    Operator,
    /// Creation of streams and buckets.
    Provisioner,
    /// The same in the shared account of a space of three.
    SharedProvisioner,
    /// Removal of what an agent sent.
    Janitor,
}

impl Office {
    fn profile(self, own: Principal) -> Profile {
        match self {
            Self::Supervisor => Profile::Supervisor(own),
            Self::Operator => Profile::Operator(own),
            Self::Provisioner => Profile::Provisioner,
            Self::SharedProvisioner => Profile::SharedProvisioner,
            Self::Janitor => Profile::Janitor,
        }
    }
}

/// The keys of one space.
#[derive(Debug)]
pub struct Authority {
    root: Root,
    trust: Trust,
    account: SpaceAccount,
    lifetime: Option<i64>,
}

impl Authority {
    /// Opens the trust material of a root and the accounts of a space; makes what is missing. A new
    /// space has three accounts; one that has another topology keeps it.
    ///
    /// # Errors
    /// When trust material is damaged or lost, or cannot be written.
    pub fn create_or_open(root: &Root, space: &Space) -> Result<Self, ManagerError> {
        refuse_lost_trust(root, space)?;
        Self::create_anew(root, space)
    }

    /// The same where keys of a mesh that was here are lost for good: its agents and what it
    /// stored are lost with them.
    ///
    /// # Errors
    /// When trust material is damaged, or cannot be written.
    pub fn create_anew(root: &Root, space: &Space) -> Result<Self, ManagerError> {
        Self::create_as(root, space, Topology::Three)
    }

    /// The same, where a new space gets the accounts that `topology` says.
    ///
    /// # Errors
    /// As [`Self::create_anew`].
    pub fn create_as(root: &Root, space: &Space, topology: Topology) -> Result<Self, ManagerError> {
        let now = unix_seconds();
        let trust = Trust::create_or_open(root, now)?;
        let account = trust.space_account(space, topology, now)?;
        Ok(Self { root: root.clone(), trust, account, lifetime: None })
    }

    /// Opens trust material that must exist.
    ///
    /// # Errors
    /// When the root has none, or none for this space.
    pub fn open(root: &Root, space: &Space) -> Result<Self, ManagerError> {
        refuse_lost_trust(root, space)?;
        let trust = Trust::open(root)?;
        let account = trust
            .find_account(space)?
            .ok_or_else(|| cotal_trust::TrustError::NoAccount(space.clone()))?;
        Ok(Self { root: root.clone(), trust, account, lifetime: None })
    }

    /// Signs what is renewed for this many seconds instead of its profile's lifetime.
    #[must_use]
    pub fn with_lifetime(mut self, seconds: Option<i64>) -> Self {
        self.lifetime = seconds;
        self
    }

    /// How long a renewed credential of `profile` lives, in seconds.
    pub(crate) fn lifetime_of(&self, profile: &Profile) -> Option<i64> {
        let own = profile.lifetime();
        own.map(|seconds| self.lifetime.unwrap_or(seconds))
    }

    /// The root that holds the keys.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The operator, the system account and every space's account.
    #[must_use]
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The accounts of the space.
    #[must_use]
    pub fn account(&self) -> &SpaceAccount {
        &self.account
    }

    /// The space.
    #[must_use]
    pub fn space(&self) -> &Space {
        self.account.space()
    }

    /// A fresh one-shot credential of an office.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn one_shot(&self, office: Office) -> Result<(Principal, Creds), ManagerError> {
        self.one_shot_of(&UserKey::generate(), office)
    }

    /// The same for a key that holds the office for longer and renews.
    pub(crate) fn one_shot_of(
        &self,
        key: &UserKey,
        office: Office,
    ) -> Result<(Principal, Creds), ManagerError> {
        let own = key.principal().map_err(cotal_trust::MintError::from)?;
        let now = unix_seconds();
        let profile = office.profile(own.clone());
        let minted = mint_profile(&self.account, key, &profile, now, Some(now + ONE_SHOT))?;
        Ok((own, Creds::parse(minted.creds.expose())?))
    }

    /// A connection in an office; it ends with the work it was made for.
    ///
    /// # Errors
    /// When the credential cannot be signed or the broker cannot be reached.
    pub async fn connect(
        &self,
        office: Office,
        broker: &BrokerAddress,
    ) -> Result<(Principal, Connection), ManagerError> {
        self.connect_as(&UserKey::generate(), office, broker).await
    }

    /// The same for a key that holds the office for longer.
    pub(crate) async fn connect_as(
        &self,
        key: &UserKey,
        office: Office,
        broker: &BrokerAddress,
    ) -> Result<(Principal, Connection), ManagerError> {
        let (own, creds) = self.one_shot_of(key, office)?;
        let name = format!("cotal {office:?} {}", self.space()).to_lowercase();
        Ok((own, connect(broker, &name, creds).await?))
    }

    /// A connection in an office to a broker that may not know the space's accounts yet: one that
    /// was running before the space was added is told of them.
    ///
    /// # Errors
    /// As [`Self::connect`] and [`Self::push_account`].
    pub async fn connect_told(
        &self,
        office: Office,
        broker: &BrokerAddress,
    ) -> Result<Connection, ManagerError> {
        match self.connect(office, broker).await {
            Err(error) if is_rejected(&error) => {
                self.push_account(broker).await?;
                Ok(self.connect(office, broker).await?.1)
            }
            connected => Ok(connected?.1),
        }
    }

    /// Pushes the JWTs of the space's accounts to a running broker, so that a space can be added
    /// while it runs.
    ///
    /// # Errors
    /// When the broker cannot be reached, or does not take one.
    pub async fn push_account(&self, broker: &BrokerAddress) -> Result<(), ManagerError> {
        let jwts: Vec<_> = self.account.jwts().into_iter().map(|(_, jwt)| jwt).collect();
        self.push(broker, &jwts).await
    }

    /// Revokes a user of one of the accounts and makes the broker know it: it drops the user within
    /// milliseconds and refuses it from then on.
    ///
    /// # Errors
    /// When the revocation cannot be recorded, or the broker does not take it.
    pub async fn revoke(
        &self,
        broker: &BrokerAddress,
        account: Account,
        user: &ConnId,
        at: i64,
    ) -> Result<(), ManagerError> {
        self.revoke_all(broker, account, &[(user.clone(), at)]).await
    }

    /// The same for many users at once.
    ///
    /// # Errors
    /// As [`Self::revoke`].
    pub async fn revoke_all(
        &self,
        broker: &BrokerAddress,
        account: Account,
        users: &[(ConnId, i64)],
    ) -> Result<(), ManagerError> {
        let revoked = self.trust.revoke(self.space(), account, users, unix_seconds())?;
        self.push(broker, &[revoked.jwt_of(account).to_owned()]).await
    }

    /// Revokes everybody who was issued a credential of one of the accounts at or before `at`.
    ///
    /// # Errors
    /// As [`Self::revoke`].
    pub async fn revoke_everybody(
        &self,
        broker: &BrokerAddress,
        account: Account,
        at: i64,
    ) -> Result<(), ManagerError> {
        let revoked = self.trust.revoke_everybody(self.space(), account, at, unix_seconds())?;
        self.push(broker, &[revoked.jwt_of(account).to_owned()]).await
    }

    async fn push(&self, broker: &BrokerAddress, jwts: &[String]) -> Result<(), ManagerError> {
        let key = UserKey::generate();
        let (system, profile) = (self.trust.system(), SystemProfile::ClaimsPusher);
        let minted = mint_system_profile(system, &key, &profile, None, unix_seconds())?;
        let creds = Creds::parse(minted.creds.expose())?;
        let connection = connect(broker, "cotal claims-pusher", creds).await?;
        let mut pushed = Ok(());
        for jwt in jwts {
            pushed = crate::claims::push(&connection, jwt).await;
            if pushed.is_err() {
                break;
            }
        }
        connection.close(CLOSE).await;
        pushed.doing(|| format!("push the accounts of space {} to the broker", self.space()))
    }
}

fn is_rejected(error: &ManagerError) -> bool {
    matches!(
        error,
        ManagerError::Broker { source: NatsError::Connect(ConnectError::Rejected { .. }), .. }
    )
}

/// A root whose keys are gone is no new root: making others in silence would leave every agent,
/// and all that is stored, behind.
fn refuse_lost_trust(root: &Root, space: &Space) -> Result<(), ManagerError> {
    // A mesh.json that cannot be parsed is told by whoever needs it.
    let mesh = MeshFile::load(root).ok().flatten().filter(|mesh| mesh.mode == Mode::Auth);
    let witness = match &mesh {
        Some(_) => root.mesh_file(),
        None if knows_accounts(root) => root.broker_resolver(),
        None => return Ok(()),
    };
    let mut needed = vec![root.operator_seed(), root.system_file()];
    if mesh.is_some_and(|mesh| mesh.spaces.contains(space)) {
        needed.push(root.account_file(&Segment::from(space)));
    }
    needed.retain(|file| matches!(file.try_exists(), Ok(false)));
    if needed.is_empty() {
        return Ok(());
    }
    Err(ManagerError::TrustLost { missing: needed, witness, auth: root.auth_dir() })
}

/// Whether the broker of the root was ever given an account.
fn knows_accounts(root: &Root) -> bool {
    let accounts = std::fs::read_dir(root.broker_resolver()).into_iter().flatten().flatten();
    accounts.into_iter().any(|entry| entry.path().extension().is_some_and(|ext| ext == "jwt"))
}

const CLOSE: Duration = Duration::from_secs(2);

pub(crate) async fn connect(
    broker: &BrokerAddress,
    name: &str,
    creds: Creds,
) -> Result<Connection, ManagerError> {
    let options = ConnectOptions::new(&broker.url, name, creds.into()).tls(broker.tls.clone());
    Connection::connect(options)
        .await
        .doing(|| format!("connect to the broker at {} as {name}", broker.url))
}
