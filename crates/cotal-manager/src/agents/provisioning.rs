//! The steps between a decided and a complete agent; each may be repeated.

use std::path::PathBuf;

use cotal_nats::NatsError;
use cotal_trust::{Minted, UserKey, mint_named};
use cotal_wire::creds::Creds;
use cotal_wire::names::Bucket;
use cotal_wire::profile::Profile;
use cotal_wire::rows::{AclRow, Frontier};
use cotal_wire::{Lifecycle, LifecycleUid, Principal};
use cotal_workspace::{Reservation, Secret, SecretStore, Segment};

use super::pending::Pending;
use super::{Agents, NewAgent, grant, known_key};
use crate::clock::{unix_millis, unix_seconds};
use crate::error::{Doing, ManagerError};
use crate::provision::ensure_consumer;
use crate::rows::{AclRows, bucket};

/// An agent that is decided and not complete.
#[derive(Debug)]
pub struct Provisioning<'a> {
    agents: &'a Agents,
    agent: &'a NewAgent,
    lifecycle: Lifecycle,
    activated: Frontier,
    minted: Minted,
    continued: bool,
    _held: Reservation,
}

impl<'a> Provisioning<'a> {
    /// Continues what a crash left, or decides a new incarnation and records it.
    pub(super) async fn open(
        agents: &'a Agents,
        agent: &'a NewAgent,
        rows: &AclRows,
        held: Reservation,
    ) -> Result<Self, ManagerError> {
        let principal = agent.name.principal();
        let path = pending_path(agents, principal);
        // An incarnation that has a row, and is not live, has been retired: it never comes back.
        let left = Pending::load(&path, principal)?
            .filter(|(lifecycle, _)| !rows.rows.contains_key(lifecycle));
        let continued = left.is_some();
        let (lifecycle, activated) = match left {
            Some((lifecycle, pending)) => (lifecycle, pending.activated),
            None => {
                let uid = LifecycleUid::from_random(random()?);
                (Lifecycle::new(principal.clone(), uid), frontier(agents).await?)
            }
        };
        // Signed before anything is recorded: a set of channels that does not fit is refused whole.
        let minted = mint(agents, agent, &lifecycle)?;
        if !continued {
            Pending::new(&lifecycle, activated).save(&path)?;
        }
        Ok(Self { agents, agent, lifecycle, activated, minted, continued, _held: held })
    }

    /// Whether an earlier run had begun it.
    #[must_use]
    pub fn is_continued(&self) -> bool {
        self.continued
    }

    /// Makes the incarnation's consumers, and its role's when it is the first of the role.
    ///
    /// # Errors
    /// When the broker does not make one.
    pub async fn consumers(&self) -> Result<(), ManagerError> {
        let (space, connection) = (self.agents.space(), &self.agents.connection);
        let dlv = space.dlv_config(&self.lifecycle);
        ensure_consumer(connection, &space.dlv_stream(), &dlv).await?;
        let dm = space.dm_config(&self.lifecycle, self.activated.dm);
        ensure_consumer(connection, &space.dm_stream(), &dm).await?;
        if let Some(role) = &self.agent.role {
            let svc = space.svc_config(role);
            ensure_consumer(connection, &space.task_stream(), &svc).await?;
        }
        Ok(())
    }

    /// Stores the credential.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn credential(&self) -> Result<(), ManagerError> {
        let claims = Creds::parse(self.minted.creds.expose()).map_err(|source| {
            ManagerError::DamagedCreds { principal: self.lifecycle.principal.clone(), source }
        })?;
        let (nkey, issued) = (&claims.claims.subject, claims.claims.issued_at);
        known_key::note(self.agents, &self.lifecycle, nkey, issued)?;
        let key = self.agents.key(&self.lifecycle.principal);
        Ok(self.agents.store.put(&key, &self.minted.creds)?)
    }

    /// Writes the ACL row, which makes the agent exist, and forgets the record.
    ///
    /// # Errors
    /// When the broker does not take the row.
    pub async fn activate(self) -> Result<(), ManagerError> {
        let row = AclRow {
            allow_subscribe: self.agent.read.clone(),
            revision: 1,
            updated_at: unix_millis(),
            name: Some(self.agent.name.display().to_owned()),
            activated: Some(self.activated),
            retired: false,
        };
        let value = serde_json::to_vec(&row)?;
        // The gate may have frozen since this began; the record lets it go on later.
        self.agents.gate().pass()?;
        let (space, principal) = (self.agents.space(), &self.lifecycle.principal);
        let acl = bucket(&self.agents.connection, space, Bucket::Acl);
        match acl.create(&self.lifecycle.dotted(), value.into()).await {
            // The uid is known to this record alone, so an unconfirmed write of ours was stored.
            Ok(_) | Err(NatsError::Conflict { .. }) => {}
            Err(error) => return Err(error).doing(|| format!("write the ACL row of {principal}")),
        }
        forget(self.agents, principal)
    }
}

/// One process at a time provisions a principal.
pub(super) fn reserve(agents: &Agents, principal: &Principal) -> Result<Reservation, ManagerError> {
    let dir = agents.root.agents_dir(&Segment::from(agents.space()));
    cotal_workspace::files::private_dir(&dir)?;
    Ok(Reservation::try_acquire(&dir.join(format!("{principal}.lock")))?)
}

/// Removes the record of a provisioning that is complete.
pub(super) fn forget(agents: &Agents, principal: &Principal) -> Result<(), ManagerError> {
    Pending::remove(&pending_path(agents, principal))
}

fn pending_path(agents: &Agents, principal: &Principal) -> PathBuf {
    Pending::path(&agents.root, &Segment::from(agents.space()), principal)
}

/// A credential that a crashed run had stored already keeps its key: two keys of one incarnation
/// would need two revocations.
fn mint(agents: &Agents, agent: &NewAgent, lifecycle: &Lifecycle) -> Result<Minted, ManagerError> {
    let stored = agents.creds_of(lifecycle)?;
    let key = match stored {
        Some(creds) => UserKey::from_seed(&Secret::new(creds.seed))?,
        None => UserKey::generate(),
    };
    let profile = Profile::Agent(grant(agent, lifecycle));
    let expires_at = profile.lifetime().map(|life| unix_seconds() + life);
    let name = agent.name.display();
    Ok(mint_named(agents.account(), &key, &profile, name, unix_seconds(), expires_at)?)
}

/// The last sequences now: nothing older belongs to the incarnation.
async fn frontier(agents: &Agents) -> Result<Frontier, ManagerError> {
    let space = agents.space();
    let last = async |stream: String| {
        let seq = agents.connection.last_seq(&stream).await;
        seq.doing(|| format!("read where {stream} stands"))
    };
    Ok(Frontier {
        chat: last(space.chat_stream()).await?,
        dm: last(space.dm_stream()).await?,
        task: last(space.task_stream()).await?,
    })
}

fn random() -> Result<[u8; 26], ManagerError> {
    let mut bytes = [0; 26];
    getrandom::fill(&mut bytes).map_err(|e| ManagerError::Randomness(e.to_string()))?;
    Ok(bytes)
}
