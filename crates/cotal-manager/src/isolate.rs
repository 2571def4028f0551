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
    /// Agents whose credential is not on this root, or is damaged there: they must be given one by
    /// the root that has it, or retired.
    pub elsewhere: Vec<Principal>,
}

/// How far a move has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moved {
    /// Nothing is changed.
    Nothing,
    /// The root has keys of three accounts and knows that it moves.
    Recorded,
    /// The broker knows the accounts.
    Told,
    /// The accounts hold what they must.
    Provisioned,
    /// Every agent's credential is signed by the agents' account.
    Reissued,
    /// Everything that was issued before is refused.
    Revoked,
    /// The root knows that the move is over.
    Finished,
}

/// A move under way. Dropping it between two steps, or within one, is a crash there: the next one
/// begins with the first step again, and what is done already stays as it is.
#[derive(Debug)]
pub struct Move {
    root: Root,
    space: Space,
    broker: BrokerAddress,
    done: Moved,
    isolation: Isolation,
}

impl Move {
    /// Begins or continues the move of a space; `None` when it has three accounts already.
    ///
    /// # Errors
    /// When the trust material of the space cannot be read.
    pub fn begin(
        root: &Root,
        space: &Space,
        broker: &BrokerAddress,
    ) -> Result<Option<Self>, ManagerError> {
        let before = Authority::open(root, space)?;
        if before.account().topology() == Topology::Three && !before.account().is_moving() {
            return Ok(None);
        }
        Ok(Some(Self {
            root: root.clone(),
            space: space.clone(),
            broker: broker.clone(),
            done: Moved::Nothing,
            isolation: Isolation::default(),
        }))
    }

    /// Does the next step; every step may be repeated.
    ///
    /// # Errors
    /// When it cannot be done; a move that begins anew continues.
    pub async fn step(&mut self) -> Result<Moved, ManagerError> {
        let authority = Authority::open(&self.root, &self.space)?;
        self.done = match self.done {
            Moved::Nothing => {
                authority.trust().isolate(&self.space, unix_seconds())?;
                Moved::Recorded
            }
            Moved::Recorded => {
                authority.push_account(&self.broker).await?;
                Moved::Told
            }
            Moved::Told => {
                self.isolation.provisioned = provision(&authority, &self.broker).await?;
                Moved::Provisioned
            }
            Moved::Provisioned => {
                self.reissue().await?;
                Moved::Reissued
            }
            Moved::Reissued => {
                self.revoke(&authority).await?;
                Moved::Revoked
            }
            Moved::Revoked => {
                // An agent that was added while this ran may have been signed by the old account
                // after the first pass; what is refused by now must be signed anew as well.
                self.reissue().await?;
                authority.trust().finish_isolation(&self.space)?;
                Moved::Finished
            }
            Moved::Finished => Moved::Finished,
        };
        Ok(self.done)
    }

    async fn reissue(&mut self) -> Result<(), ManagerError> {
        let agents = Agents::connect(&self.root, &self.space, &self.broker).await?;
        let reissued = agents.reissue_all().await;
        agents.close().await;
        let (reissued, elsewhere) = reissued?;
        self.isolation.reissued.extend(reissued);
        self.isolation.elsewhere = elsewhere;
        Ok(())
    }

    async fn revoke(&self, authority: &Authority) -> Result<(), ManagerError> {
        let at = unix_seconds();
        authority.revoke_everybody(&self.broker, Account::Durable, at).await?;
        // What is issued within the second of a revocation is refused too.
        while unix_seconds() <= at {
            tokio::time::sleep(CLOCK_TICK).await;
        }
        Ok(())
    }
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
    let Some(mut moving) = Move::begin(root, space, broker)? else {
        return Ok(None);
    };
    while moving.step().await? != Moved::Finished {}
    Ok(Some(moving.isolation))
}
