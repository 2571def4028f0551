//! More for a lifecycle that goes on, and a new key for it.
//!
//! Widening takes nothing away, so the old credential stays good: sign → role's consumer → ACL row
//! → credential. The row comes before the credential, so that nobody holds a credential for what
//! the daemon would not release. A new key does take something away: sign → revoke the old key,
//! which ends its connections → credential. No step is recorded, because each may be repeated:
//! running it again does all of them.

use cotal_trust::{UserKey, mint_named};
use cotal_wire::accounts::Account;
use cotal_wire::creds::Creds;
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::rows::AclRow;
use cotal_wire::{ChannelPattern, Lifecycle, Principal, Role};
use cotal_workspace::{Reservation, Secret, SecretStore as _};

use super::{AgentName, Agents, known_key, posts, provisioning};
use crate::clock::unix_seconds;
use crate::error::ManagerError;
use crate::provision::ensure_consumer;

/// What an agent is to have beside what it has.
#[derive(Debug, Clone, Default)]
pub struct MoreGrants {
    /// Channels it may read as well.
    pub read: Vec<ChannelPattern>,
    /// Channels it may post on as well.
    pub post: Vec<ChannelPattern>,
    /// The role whose requests it processes from now on, in place of the one that it had.
    pub role: Option<Role>,
}

/// The live incarnation of an agent, with its credential and what it grants.
struct Live {
    lifecycle: Lifecycle,
    creds: Creds,
    read: Vec<ChannelPattern>,
    _held: Reservation,
}

impl Agents {
    /// Widens what an agent may do, under the same lifecycle: inbox, memberships and identity stay.
    /// It takes effect when the agent connects next. Returns what it may do now.
    ///
    /// # Errors
    /// When the agent does not live, the credential would be too large, or a step fails; running it
    /// again continues.
    pub async fn widen(
        &self,
        name: &AgentName,
        more: &MoreGrants,
    ) -> Result<AgentGrant, ManagerError> {
        self.gate().pass()?;
        let Live { lifecycle, creds, read, _held } = self.live(name.principal()).await?;
        let grant = AgentGrant {
            read: union(read, &more.read),
            post: union(posts(self.space(), &lifecycle.principal, &creds), &more.post),
            role: more.role.clone().or_else(|| creds.claims.role()),
            lifecycle,
        };
        // Signed before anything is changed: one that does not fit must not leave half a grant.
        let key = UserKey::from_seed(&Secret::new(creds.seed.clone()))?;
        let issued = unix_seconds().max(creds.claims.issued_at);
        let minted = self.mint_for(&grant, &key, &creds.claims.name, issued)?;
        if let Some(role) = &grant.role {
            let svc = self.space().svc_config(role);
            ensure_consumer(&self.connection, &self.space().task_stream(), &svc).await?;
        }
        let wider = |row: &mut AclRow| row.allow_subscribe = grant.read.clone();
        self.rewrite_acl(&grant.lifecycle, false, wider).await?;
        known_key::note(self, &grant.lifecycle, &creds.claims.subject, issued)?;
        self.store.put(&self.key(name.principal()), &minted)?;
        Ok(grant)
    }

    /// Gives an agent a new key under the same lifecycle, because the old one has leaked. When it
    /// returns, the old one is refused and its connections have ended.
    ///
    /// # Errors
    /// When the agent does not live, or a step fails; running it again continues. The agent can
    /// then not connect until it is done.
    pub async fn rekey(&self, name: &AgentName) -> Result<Principal, ManagerError> {
        let Live { lifecycle, creds, read, _held } = self.live(name.principal()).await?;
        let grant = AgentGrant {
            read,
            post: posts(self.space(), &lifecycle.principal, &creds),
            role: creds.claims.role(),
            lifecycle,
        };
        let key = UserKey::generate();
        let revoked_at = unix_seconds().max(creds.claims.issued_at);
        let minted = self.mint_for(&grant, &key, &creds.claims.name, revoked_at)?;
        let (account, nkey) = (Account::Agents, &creds.claims.subject);
        self.authority.revoke(&self.broker, account, nkey, revoked_at).await?;
        let fresh = Creds::parse(minted.expose()).map_err(|source| ManagerError::DamagedCreds {
            principal: grant.lifecycle.principal.clone(),
            source,
        })?;
        known_key::note(self, &grant.lifecycle, &fresh.claims.subject, revoked_at)?;
        self.store.put(&self.key(name.principal()), &minted)?;
        Ok(grant.lifecycle.principal)
    }

    async fn live(&self, principal: &Principal) -> Result<Live, ManagerError> {
        let held = provisioning::reserve(self, principal)?;
        if self.is_retiring(principal) {
            return Err(ManagerError::Retiring(principal.clone()));
        }
        let lifecycle = self.the_live_one(principal, false).await?;
        let creds = self.creds_of(&lifecycle)?;
        let creds = creds.ok_or_else(|| known_key::lost(self, &lifecycle))?;
        let rows = self.rows().await?;
        let read = rows.rows.get(&lifecycle).map(|row| row.allow_subscribe.clone());
        Ok(Live { lifecycle, creds, read: read.unwrap_or_default(), _held: held })
    }

    fn mint_for(
        &self,
        grant: &AgentGrant,
        key: &UserKey,
        name: &str,
        issued_at: i64,
    ) -> Result<Secret, ManagerError> {
        let profile = Profile::Agent(grant.clone());
        let expires_at = profile.lifetime().map(|life| issued_at + life);
        Ok(mint_named(self.account(), key, &profile, name, issued_at, expires_at)?.creds)
    }
}

/// What covers more takes the place of what it covers, so that a credential does not grow with each
/// grant.
fn union(have: Vec<ChannelPattern>, more: &[ChannelPattern]) -> Vec<ChannelPattern> {
    let mut all = have;
    for pattern in more {
        if !all.iter().any(|known| known.covers_all_of(pattern)) {
            all.retain(|known| !pattern.covers_all_of(known));
            all.push(pattern.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_pattern_takes_the_place_of_what_it_covers() {
        let patterns = |texts: &[&str]| -> Vec<_> {
            texts.iter().map(|text| ChannelPattern::parse(text).unwrap()).collect()
        };
        let all = union(patterns(&["team.a", "ops.b"]), &patterns(&["team.>", "ops.b", "x"]));
        assert_eq!(all, patterns(&["ops.b", "team.>", "x"]));
    }
}
