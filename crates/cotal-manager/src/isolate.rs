//! The move of a space from one account to three.
//!
//! Invariant: each step may be repeated, and the order lets a run that died anywhere be continued
//! by the next. The account that the space has becomes the durable one, so nothing that is stored
//! is moved; the agents move, each under its own lifecycle and key. Only when every agent's file is
//! another is what was issued before refused, all of it: then nobody but the daemon's and the
//! manager's side can be in the durable account. Daemon and manager of the space must be stopped.

use std::time::Duration;

use cotal_wire::accounts::{Account, Topology};
use cotal_wire::{Principal, Space};
use cotal_workspace::Root;

use crate::agents::Agents;
use crate::authority::{Authority, BrokerAddress};
use crate::clock::unix_seconds;
use crate::error::ManagerError;
use crate::provision::{Provisioned, provision};

/// How often the clock is looked at while it must pass a second.
const CLOCK_TICK: Duration = Duration::from_millis(50);

/// What a move did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Isolation {
    /// What was made in the accounts.
    pub provisioned: Provisioned,
    /// Agents whose credential was signed anew.
    pub reissued: Vec<Principal>,
    /// Agents whose credential is not on this root: they must be given one by the root that has it,
    /// or retired.
    pub elsewhere: Vec<Principal>,
}

/// Moves a space to three accounts, or continues a move; `None` when it has three already.
///
/// # Errors
/// When a step fails; running it again continues.
pub async fn isolate(
    root: &Root,
    space: &Space,
    broker: &BrokerAddress,
) -> Result<Option<Isolation>, ManagerError> {
    let before = Authority::open(root, space)?;
    if before.account().topology() == Topology::Three && !before.account().is_moving() {
        return Ok(None);
    }
    before.trust().isolate(space, unix_seconds())?;
    let authority = Authority::open(root, space)?;
    authority.push_account(broker).await?;
    let provisioned = provision(&authority, broker).await?;
    let agents = Agents::connect(root, space, broker).await?;
    let (reissued, elsewhere) = agents.reissue_all().await?;
    agents.close().await;
    let at = unix_seconds();
    authority.revoke_everybody(broker, Account::Durable, at).await?;
    // What is issued within the second of a revocation is refused too.
    while unix_seconds() <= at {
        tokio::time::sleep(CLOCK_TICK).await;
    }
    authority.trust().finish_isolation(space)?;
    Ok(Some(Isolation { provisioned, reissued, elsewhere }))
}
