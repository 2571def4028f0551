//! The public key of an agent, kept beside its credential so that a lost or damaged credential can
//! still be revoked.
//!
//! It holds the incarnation's uid, which is a capability (`wire.md` §8), so it is as private as a
//! credential.

use std::path::PathBuf;

use cotal_wire::{ConnId, Lifecycle, Principal};
use cotal_workspace::Segment;
use cotal_workspace::files::{self, Privacy};
use serde::{Deserialize, Serialize};

use super::Agents;
use crate::error::ManagerError;

/// What a revocation has to name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KnownKey {
    lifecycle: String,
    /// The user's public key.
    pub(super) nkey: String,
    /// When the newest credential of it was issued, in seconds: a revocation holds for what was
    /// issued up to its own time, and a narrowing issues credentials a second ahead.
    pub(super) issued: i64,
}

/// Notes the key of `lifecycle` before a credential of it is stored.
pub(super) fn note(
    agents: &Agents,
    lifecycle: &Lifecycle,
    nkey: &ConnId,
    issued: i64,
) -> Result<(), ManagerError> {
    let known = KnownKey { lifecycle: lifecycle.dotted(), nkey: nkey.to_string(), issued };
    let text = serde_json::to_string(&known)?;
    let path = path(agents, &lifecycle.principal);
    Ok(files::replace(&path, text.as_bytes(), Privacy::Secret)?)
}

/// The key of exactly this incarnation: of its credential, or as it was noted.
pub(super) fn of(agents: &Agents, lifecycle: &Lifecycle) -> Result<KnownKey, ManagerError> {
    match agents.creds_of(lifecycle) {
        Ok(Some(creds)) => {
            let (nkey, issued) = (creds.claims.subject.to_string(), creds.claims.issued_at);
            Ok(KnownKey { lifecycle: lifecycle.dotted(), nkey, issued })
        }
        Ok(None) | Err(ManagerError::DamagedCreds { .. }) => noted(agents, lifecycle)?
            .ok_or_else(|| ManagerError::KeyUnknown(lifecycle.principal.clone())),
        Err(error) => Err(error),
    }
}

/// Why an agent without its credential is left as it is, with what retires it.
pub(super) fn lost(agents: &Agents, lifecycle: &Lifecycle) -> ManagerError {
    let lost = || ManagerError::CredentialLost(lifecycle.principal.clone());
    of(agents, lifecycle).err().unwrap_or_else(lost)
}

/// Removes the note, once nothing is left to revoke.
pub(super) fn forget(agents: &Agents, principal: &Principal) -> Result<(), ManagerError> {
    files::remove(&path(agents, principal))?;
    Ok(())
}

fn noted(agents: &Agents, lifecycle: &Lifecycle) -> Result<Option<KnownKey>, ManagerError> {
    let path = path(agents, &lifecycle.principal);
    let Some(text) = files::read(&path)? else {
        return Ok(None);
    };
    let known: KnownKey = serde_json::from_str(&text)
        .map_err(|e| ManagerError::PendingRecord { path, problem: e.to_string() })?;
    Ok((known.lifecycle == lifecycle.dotted()).then_some(known))
}

fn path(agents: &Agents, principal: &Principal) -> PathBuf {
    agents.root.agents_dir(&Segment::from(agents.space())).join(format!("{principal}.nkey"))
}
