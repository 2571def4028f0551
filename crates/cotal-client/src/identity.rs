//! Who an endpoint is: what the tags of its credential say, and nothing else.

use cotal_nats::Creds;
use cotal_wire::creds::{Claims, CredsError};
use cotal_wire::envelope::From;
use cotal_wire::{Lifecycle, Role, Space};

/// An agent's identity.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The space its credential is for.
    pub space: Space,
    /// The principal and its incarnation.
    pub lifecycle: Lifecycle,
    /// The role it holds, if any.
    pub role: Option<Role>,
    /// The name it gives itself in messages and in its presence: its display name, unless the
    /// options say another.
    pub name: String,
}

impl Identity {
    pub(crate) fn of(creds: &Creds, name: Option<String>) -> Result<Self, CredsError> {
        let claims = Claims::parse(creds.jwt())?;
        let lifecycle = claims.lifecycle()?;
        let actor = lifecycle.principal.actor();
        // A credential names the agent as it was provisioned, or its profile.
        let provisioned = claims.name.eq_ignore_ascii_case(actor).then_some(&claims.name);
        let name = name.or_else(|| provisioned.cloned()).unwrap_or_else(|| actor.to_owned());
        Ok(Self { space: claims.space()?, name, role: claims.role(), lifecycle })
    }

    /// The sender of what this agent writes.
    pub(crate) fn from(&self) -> From {
        From {
            id: self.lifecycle.principal.to_string(),
            name: self.name.clone(),
            role: self.role.as_ref().map(ToString::to_string),
        }
    }
}
