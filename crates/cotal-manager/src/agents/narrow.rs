//! The narrowing of a lifecycle that goes on.
//!
//! Order: write the narrowed ACL row, so that the daemon releases nothing more of what was taken;
//! revoke the old credential, which ends its connections; have the daemon recall what it had handed
//! off; only then publish a new credential. So from the revocation on nobody can read for the
//! agent, and whoever reads later finds nothing that was taken away. No step is recorded, because
//! each may be repeated: running it again does all of them.

use std::sync::Arc;
use std::time::Duration;

use cotal_rules::cadence::RETIREMENT_WAIT;
use cotal_trust::{UserKey, mint_named};
use cotal_wire::accounts::Account;
use cotal_wire::control::op;
use cotal_wire::creds::Creds;
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::{ChannelPattern, Lifecycle, Principal};
use cotal_workspace::{Secret, SecretStore as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{AgentName, Agents, known_key, posts, provisioning};
use crate::clock::unix_seconds;
use crate::error::ManagerError;

/// A recall is asked for again this often, also while an earlier request is unanswered: it may have
/// gone to a daemon that is paused.
const RECALL_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Requests that may be unanswered at once.
const UNANSWERED: usize = 3;

impl Agents {
    /// Takes channels from what an agent may read; it never adds any. When it returns, no copy that
    /// was taken away can be handed out any more.
    ///
    /// # Errors
    /// When the agent does not live, `read` covers more than before, or a step fails; running it
    /// again continues. [`ManagerError::NotRecalled`] when only the recall and what follows it is
    /// not done.
    pub async fn narrow(
        &self,
        name: &AgentName,
        read: &[ChannelPattern],
    ) -> Result<Principal, ManagerError> {
        let principal = name.principal().clone();
        let _held = provisioning::reserve(self, &principal)?;
        if self.is_retiring(&principal) {
            return Err(ManagerError::Retiring(principal));
        }
        let lifecycle = self.the_live_one(&principal, false).await?;
        let creds = self.creds_of(&lifecycle)?;
        let creds = creds.ok_or_else(|| known_key::lost(self, &lifecycle))?;
        let rows = self.rows().await?;
        let before = rows.rows.get(&lifecycle).map(|row| row.allow_subscribe.clone());
        let before = before.unwrap_or_default();
        if let Some(wider) = read.iter().find(|r| !before.iter().any(|b| b.covers_all_of(r))) {
            return Err(ManagerError::Wider { principal, pattern: wider.clone() });
        }
        // Signed before anything is changed: one that does not fit must not end the old one.
        let revoked_at = unix_seconds().max(creds.claims.issued_at);
        let minted = self.mint_narrowed(&lifecycle, read, &creds, revoked_at + 1)?;
        self.rewrite_acl(&lifecycle, false, |row| row.allow_subscribe = read.to_vec()).await?;
        let (account, nkey) = (Account::Agents, &creds.claims.subject);
        self.authority.revoke(&self.broker, account, nkey, revoked_at).await?;
        self.end_history_read(&lifecycle).await?;
        self.recall(&lifecycle).await?;
        known_key::note(self, &lifecycle, &creds.claims.subject, revoked_at + 1)?;
        self.store.put(&self.key(&principal), &minted)?;
        Ok(principal)
    }

    /// What was issued up to the revocation is refused; this one is issued after it.
    fn mint_narrowed(
        &self,
        lifecycle: &Lifecycle,
        read: &[ChannelPattern],
        old: &Creds,
        issued_at: i64,
    ) -> Result<Secret, ManagerError> {
        let profile = Profile::Agent(AgentGrant {
            lifecycle: lifecycle.clone(),
            read: read.to_vec(),
            post: posts(self.space(), &lifecycle.principal, old),
            role: old.claims.role(),
        });
        let key = UserKey::from_seed(&Secret::new(old.seed.clone()))?;
        let name = &old.claims.name;
        Ok(mint_named(self.account(), &key, &profile, name, issued_at, None)?.creds)
    }

    /// Has the daemon take back what it had handed off, within the wait that a retirement has. The
    /// first answer counts, whichever request it is for.
    async fn recall(&self, lifecycle: &Lifecycle) -> Result<(), ManagerError> {
        let rail = Arc::new(self.rail());
        let args = json!({ "principal": lifecycle.principal, "lifecycleUid": lifecycle.uid });
        let not_recalled = |source: ManagerError| ManagerError::NotRecalled {
            principal: lifecycle.principal.clone(),
            source: Box::new(source),
        };
        let mut asked = JoinSet::new();
        let mut again = tokio::time::interval(RECALL_RETRY_AFTER);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over = std::pin::pin!(tokio::time::sleep(RETIREMENT_WAIT));
        let (mut last, mut timed_out) = ("no request was answered".to_owned(), true);
        loop {
            let answer = tokio::select! {
                () = &mut over => break,
                _ = again.tick(), if asked.len() < UNANSWERED => {
                    let (rail, args) = (Arc::clone(&rail), args.clone());
                    asked.spawn(async move { rail.admin(op::RECALL_NARROWED, args).await });
                    continue;
                }
                Some(Ok(answer)) = asked.join_next(), if !asked.is_empty() => answer,
            };
            match answer {
                Ok(_) => return Ok(()),
                Err(error) if error.is_silence() => {
                    (last, timed_out) = (crate::rail::chain(&error), error.is_timeout());
                }
                Err(error) => return Err(not_recalled(error)),
            }
        }
        let (space, op) = (self.space().clone(), op::RECALL_NARROWED.to_owned());
        Err(not_recalled(ManagerError::RailSilent { space, op, last, timed_out }))
    }
}
