//! Adding an agent: made, completed after a crash, or found as it is.

use cotal_wire::Principal;

use super::provisioning::{self, Provisioning};
use super::{Agents, NewAgent, known_key};
use crate::error::ManagerError;

/// How an agent came to be complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Added {
    /// It was made.
    Created(Principal),
    /// A provisioning that a crash had interrupted was completed.
    Completed(Principal),
    /// It was there, just as asked.
    Existing(Principal),
    /// It was there, with other channels or another role; nothing was changed.
    Different(Principal),
}

/// What [`Agents::begin`] found.
#[derive(Debug)]
pub enum Begun<'a> {
    /// A complete agent; `same` tells whether it is just as asked.
    Existing {
        /// Whether nothing differs.
        same: bool,
    },
    /// An agent to be made or completed.
    Open(Box<Provisioning<'a>>),
}

impl Agents {
    /// Provisions an agent, or completes or reports the one of that name.
    ///
    /// # Errors
    /// When the name is taken, the credential would be too large, or a step fails; running it
    /// again continues.
    pub async fn add(&self, agent: &NewAgent) -> Result<Added, ManagerError> {
        let principal = agent.name.principal().clone();
        match self.begin(agent).await? {
            Begun::Existing { same: true } => Ok(Added::Existing(principal)),
            Begun::Existing { same: false } => Ok(Added::Different(principal)),
            Begun::Open(provisioning) => {
                provisioning.consumers().await?;
                provisioning.credential()?;
                let continued = provisioning.is_continued();
                provisioning.activate().await?;
                Ok(if continued { Added::Completed(principal) } else { Added::Created(principal) })
            }
        }
    }

    /// Decides what an agent is to be and records it; the steps that follow may crash.
    ///
    /// # Errors
    /// When the name is taken, the credential would be too large, another process provisions the
    /// same agent, or the broker fails.
    pub async fn begin<'a>(&'a self, agent: &'a NewAgent) -> Result<Begun<'a>, ManagerError> {
        self.gate().pass()?;
        let held = provisioning::reserve(self, agent.name.principal())?;
        if self.is_retiring(agent.name.principal()) {
            return Err(ManagerError::Retiring(agent.name.principal().clone()));
        }
        let rows = self.rows().await?;
        self.refuse_taken(agent, &rows)?;
        let principal = agent.name.principal();
        let live: Vec<_> = rows.live_of(principal).collect();
        match live[..] {
            [] => {
                let opened = Provisioning::open(self, agent, &rows, held).await?;
                Ok(Begun::Open(Box::new(opened)))
            }
            [(lifecycle, row)] => {
                let creds = self.creds_of(lifecycle)?;
                let creds = creds.ok_or_else(|| known_key::lost(self, lifecycle))?;
                provisioning::forget(self, principal)?;
                let same = self.is_same(agent, lifecycle, row, &creds);
                Ok(Begun::Existing { same })
            }
            _ => Err(ManagerError::Ambiguous { principal: principal.clone(), count: live.len() }),
        }
    }
}
