//! The manager's own identities and the ledger of who holds a credential of theirs, on the disk.
//!
//! Invariant: what is issued is in the ledger before it exists (ADM-6), and the identities outlive
//! a restart (ADM-7). One process has a family open at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cotal_nats::Creds;
use cotal_rules::family::{Ledger, Role};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::ConnId;
use cotal_wire::accounts::Account;
use cotal_wire::control::{Evictions, op};
use cotal_wire::profile::Profile;
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{Reservation, Secret, Segment};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use crate::authority::{Authority, BrokerAddress};
use crate::clock::unix_seconds;
use crate::error::ManagerError;
use crate::rail::Rail;

/// The file; it holds keys, so it is as private as a credential.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    seeds: BTreeMap<Role, String>,
    ledger: Ledger,
}

/// The family of one space, open.
pub(super) struct Family {
    path: PathBuf,
    file: File,
    _held: Reservation,
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family").field("ledger", &self.file.ledger).finish_non_exhaustive()
    }
}

impl Family {
    /// Opens the family of a space; makes the identities that are missing.
    ///
    /// # Errors
    /// When another manager has it open, or the file is damaged or cannot be written.
    pub(super) fn open(authority: &Authority) -> Result<Self, ManagerError> {
        let (root, segment) = (authority.root(), Segment::from(authority.space()));
        let held = Reservation::try_acquire(&root.manager_lock(&segment))?;
        let path = root.family_file(&segment);
        let damaged = |error: serde_json::Error| ManagerError::PendingRecord {
            path: path.clone(),
            problem: error.to_string(),
        };
        let file = match files::read(&path)? {
            Some(text) => serde_json::from_str(&text).map_err(damaged)?,
            None => File::default(),
        };
        let mut family = Self { path, file, _held: held };
        for role in Role::KEPT {
            let seed = UserKey::generate().seed()?;
            family.file.seeds.entry(role).or_insert_with(|| seed.expose().to_owned());
        }
        family.save()?;
        Ok(family)
    }

    fn save(&self) -> Result<(), ManagerError> {
        let text = serde_json::to_string(&self.file)?;
        Ok(files::replace(&self.path, text.as_bytes(), Privacy::Secret)?)
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.file.ledger
    }

    /// A new credential of the supervisor's profile: of the identity that is kept for the role, or
    /// of a fresh one for an attach session.
    ///
    /// # Errors
    /// When it cannot be recorded or signed.
    pub(super) fn issue(
        &mut self,
        authority: &Authority,
        role: Role,
    ) -> Result<Creds, ManagerError> {
        let key = match self.file.seeds.get(&role) {
            Some(seed) => UserKey::from_seed(&Secret::new(seed.as_str()))?,
            None => UserKey::generate(),
        };
        let own = key.principal().map_err(cotal_trust::MintError::from)?;
        let nkey = key.conn_id().map_err(cotal_trust::MintError::from)?;
        // What was issued before may be revoked by now; this one is issued after it.
        let before = self.file.ledger.issued_at(&nkey);
        let at = unix_seconds().max(before.map_or(0, |before| before + 1));
        self.file.ledger.issue(nkey, own.clone(), role, at);
        self.save()?;
        let profile = Profile::Supervisor(own);
        let expires_at = authority.lifetime_of(&profile).map(|life| at + life);
        let minted = mint_profile(authority.account(), &key, &profile, at, expires_at)?;
        Ok(Creds::parse(minted.creds.expose())?)
    }

    /// Revokes every holder's credentials, then has them evicted, 256 a request, until each is
    /// verified gone. What a request verified is on the disk before the next is sent.
    ///
    /// # Errors
    /// When a request is refused or not answered, or a holder stays; nothing verified is lost.
    pub(super) async fn evict(
        &mut self,
        authority: &Authority,
        broker: &BrokerAddress,
        rail: &Rail,
        wait: Duration,
    ) -> Result<(), ManagerError> {
        self.file.ledger.sweep();
        self.save()?;
        // Without this a kick would be undone by the holder's next dial.
        let holders = self.file.ledger.holders().iter().filter(|holder| !holder.gone);
        let revoked: Vec<(ConnId, i64)> =
            holders.map(|holder| (holder.nkey.clone(), holder.issued_at)).collect();
        if !revoked.is_empty() {
            authority.revoke_all(broker, Account::Durable, &revoked).await?;
        }
        let started = Instant::now();
        loop {
            let mut stays = None;
            for batch in self.file.ledger.batches() {
                let args = json!({ "principals": batch });
                let data = rail.admin_patiently(op::EVICT_PRINCIPALS, args, wait).await?;
                let evicted: Evictions = serde_json::from_value(data)?;
                self.file.ledger.verified(&evicted.results);
                self.save()?;
                stays = stays.or(evicted.results.into_iter().find(|result| !result.verified_gone));
            }
            if self.file.ledger.finish() {
                return self.save();
            }
            if started.elapsed() >= wait {
                return Err(not_gone(authority, stays));
            }
        }
    }
}

/// The sentence names one of those that stay, as far as the daemon told of any.
fn not_gone(authority: &Authority, stays: Option<cotal_wire::control::Eviction>) -> ManagerError {
    match stays {
        Some(stays) => ManagerError::NotGone {
            principal: stays.principal,
            remaining: stays.remaining,
            note: stays.note.unwrap_or_default(),
        },
        None => ManagerError::Refused {
            space: authority.space().clone(),
            op: op::EVICT_PRINCIPALS.to_owned(),
            reason: "its answer does not tell of every holder asked about".to_owned(),
            code: None,
        },
    }
}
