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
    /// The name it gives itself in messages and in its presence.
    pub name: String,
}

impl Identity {
    pub(crate) fn of(creds: &Creds, name: Option<String>) -> Result<Self, CredsError> {
        let claims = Claims::parse(creds.jwt())?;
        let lifecycle = claims.lifecycle()?;
        Ok(Self {
            space: claims.space()?,
            name: name.unwrap_or_else(|| lifecycle.principal.actor().to_owned()),
            role: claims.role(),
            lifecycle,
        })
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
