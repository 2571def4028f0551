//! The membership registry: durable joins and leaves, ordered by stream sequence.
//!
//! Invariant: only the registry writes joins and leaves to member rows, by compare-and-set. A join
//! is reported as durable only after every post since its cursor was copied (`docs/wire.md` §5,
//! *Join*).

mod activation;
mod inventory;
mod inventory_reads;
mod join;
mod leave;
mod rejoin;
mod row_locks;
mod rows;
mod steps;
mod unfinished_joins;

use std::sync::Arc;

use cotal_nats::{Connection, NatsError, Writer};
use cotal_rules::directory::{Acl, Resolved};
use cotal_rules::membership::{Refusal, Target};
use cotal_wire::control::{Code, MembershipItem, Memberships, Reply};
use cotal_wire::{Channel, Lifecycle, LifecycleUid, Principal, Space};

use crate::counters::Counters;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::pipeline::Pipeline;
use crate::pipeline::join_barrier::JoinBarrier;
use crate::pipeline::progress::ReaderProgress;
use crate::state::view::{Feed, View};

use inventory_reads::{Inventories, inventories};
use row_locks::{RowLock, RowLocks};

pub(crate) use unfinished_joins::{Joins, joins};

/// Joins, leaves and listings of one lane.
pub(crate) struct Registry {
    space: Space,
    connection: Connection,
    view: Arc<View>,
    gate: Gate,
    writer: Writer,
    counters: Arc<Counters>,
    reader: ReaderProgress,
    writer_identity: String,
    turns: RowLocks,
    joins: JoinBarrier,
    inventories: Inventories,
}

/// Starts the registry: the task that reads inventories, and the task that finishes half-done
/// joins.
pub(crate) fn spawn(context: &LaneContext, pipeline: &Pipeline, joins: Joins) -> Arc<Registry> {
    let (inventories, reader) = inventories(&context.view);
    context.spawn("the inventories", reader.run(context.stop.clone()));
    let Joins { barrier, unfinished } = joins;
    let registry = Arc::new(Registry {
        space: context.space.clone(),
        connection: context.connection.clone(),
        view: Arc::clone(&context.view),
        gate: context.gate.clone(),
        writer: pipeline.inbox.clone(),
        counters: Arc::clone(&context.counters),
        reader: pipeline.progress.clone(),
        writer_identity: context.incarnation.clone(),
        turns: RowLocks::default(),
        joins: barrier,
        inventories,
    });
    let finishing = Arc::clone(&registry).finish(unfinished, context.stop.clone());
    context.spawn("the unfinished joins", finishing);
    registry
}

/// A refusal, or an error of the broker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error("{}", .0.reason)]
    Refused(Refusal),
    /// A process that was paused in the middle of a change leaves it to the daemon that serves now.
    #[error("the daemon stopped serving in the meantime; try again")]
    NotServing,
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl RegistryError {
    pub(crate) fn refused<T: Into<String>>(code: Code, reason: T) -> Self {
        Self::Refused(Refusal { code, reason: reason.into() })
    }

    /// The reply for the caller.
    pub(crate) fn reply(&self) -> Reply {
        match self {
            Self::Refused(refusal) => Reply::refused(refusal.code, refusal.reason.clone()),
            Self::NotServing => Reply::refused(Code::NotReady, self.to_string()),
            Self::Nats(error) => Reply::refused(
                Code::Unavailable,
                format!("the daemon could not complete the request: {error}; try again"),
            ),
        }
    }
}

impl Registry {
    /// Serves `listMemberships`: the open memberships of the caller's live lifecycle, without
    /// channels that its ACL no longer covers, because nothing is released from those.
    pub(crate) async fn list(&self, caller: &Principal) -> Result<Memberships, RegistryError> {
        self.view.fresh(&[Feed::Acl, Feed::Members]).await?;
        let member = self.lifecycle(caller, None)?;
        let directory = self.view.directory();
        let acl = directory.acl(&member);
        let mut memberships: Vec<_> = directory
            .memberships_of(&member)
            .into_iter()
            .filter(|(channel, m)| m.is_open() && acl.allows(channel))
            .map(|(channel, m)| MembershipItem {
                channel,
                generation: m.generation,
                activated: m.activated,
            })
            .collect();
        memberships.sort_by(|a, b| a.channel.cmp(&b.channel));
        Ok(Memberships { memberships })
    }

    /// Waits for the lock on a lifecycle's rows; refuses a lifecycle that is being retired.
    async fn turn(&self, member: &Lifecycle) -> Result<RowLock<'_>, RegistryError> {
        let turn = self.turns.take(member).await;
        turn.ok_or_else(|| RegistryError::refused(Code::Retired, "this lifecycle is being retired"))
    }

    fn target(&self, channel: &Channel, member: &Lifecycle) -> Target {
        Target {
            channel: channel.clone(),
            member: member.clone(),
            writer: self.writer_identity.clone(),
        }
    }

    /// The caller's one live lifecycle, as of now.
    pub(crate) async fn live_lifecycle(
        &self,
        caller: &Principal,
    ) -> Result<Lifecycle, RegistryError> {
        self.lifecycle_now(caller, None).await
    }

    /// The lifecycle of the caller that is meant, as of now.
    pub(crate) async fn lifecycle_now(
        &self,
        caller: &Principal,
        uid: Option<LifecycleUid>,
    ) -> Result<Lifecycle, RegistryError> {
        self.view.fresh(&[Feed::Acl]).await?;
        self.lifecycle(caller, uid)
    }

    /// The lifecycle of the caller that is meant.
    fn lifecycle(
        &self,
        caller: &Principal,
        uid: Option<LifecycleUid>,
    ) -> Result<Lifecycle, RegistryError> {
        let directory = self.view.directory();
        let refused = RegistryError::refused::<String>;
        if let Some(uid) = uid {
            let member = Lifecycle::new(caller.clone(), uid);
            return match directory.acl(&member) {
                Acl::Row(_) => Ok(member),
                Acl::Retired => Err(refused(Code::Retired, "this lifecycle is retired".to_owned())),
                Acl::Absent => Err(refused(
                    Code::NotProvisioned,
                    format!("{caller} has no such lifecycle here; provision it first"),
                )),
            };
        }
        match directory.live_lifecycle(caller) {
            Resolved::One(member) => Ok(member),
            Resolved::None => Err(refused(
                Code::NotProvisioned,
                format!("{caller} has no read-ACL row here; provision it first"),
            )),
            Resolved::Several => Err(refused(
                Code::Ambiguous,
                format!("{caller} has several live lifecycles; name one with lifecycleUid"),
            )),
        }
    }
}
