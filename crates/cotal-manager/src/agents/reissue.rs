//! Credentials signed anew by another account, under the same lifecycles and keys.

use std::time::Duration;

use cotal_trust::{UserKey, mint_named};
use cotal_wire::Principal;
use cotal_wire::accounts::Account;
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_workspace::{Secret, SecretStore as _};

use super::{Agents, known_key, posts, provisioning};
use crate::clock::unix_seconds;
use crate::error::ManagerError;

/// How long the supervisor's connection may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

impl Agents {
    /// Signs the credential of every live agent anew where another account than the agents' signed
    /// it. Gives those that it signed, and those whose credential is not on this root or does not
    /// read.
    ///
    /// # Errors
    /// When a credential cannot be signed or stored; running it again continues.
    pub(crate) async fn reissue_all(
        &self,
    ) -> Result<(Vec<Principal>, Vec<Principal>), ManagerError> {
        let (mut reissued, mut elsewhere) = (Vec::new(), Vec::new());
        let own = self.account().keys_of(Account::Agents).public_key();
        for (lifecycle, row) in self.rows().await?.live() {
            let principal = &lifecycle.principal;
            let _held = provisioning::reserve(self, principal)?;
            let old = match self.creds_of(lifecycle) {
                Ok(Some(old)) => old,
                // It is told, and the others move: nobody could connect with it again anyway.
                Ok(None) | Err(ManagerError::DamagedCreds { .. }) => {
                    elsewhere.push(principal.clone());
                    continue;
                }
                Err(error) => return Err(error),
            };
            if old.claims.account == own {
                continue;
            }
            let profile = Profile::Agent(AgentGrant {
                lifecycle: lifecycle.clone(),
                read: row.allow_subscribe.clone(),
                post: posts(self.space(), principal, &old),
                role: old.claims.role(),
            });
            let key = UserKey::from_seed(&Secret::new(old.seed.clone()))?;
            let (now, name) = (unix_seconds(), &old.claims.name);
            let end = old.claims.expires_at;
            let minted = mint_named(self.account(), &key, &profile, name, now, end)?;
            known_key::note(self, lifecycle, &old.claims.subject, now)?;
            self.store.put(&self.key(principal), &minted.creds)?;
            reissued.push(principal.clone());
        }
        Ok((reissued, elsewhere))
    }

    /// Ends the connection of the supervisor.
    pub(crate) async fn close(self) {
        self.connection.close(CLOSE_WITHIN).await;
    }
}
