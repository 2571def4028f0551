//! The membership registry: durable joins and leaves, ordered by stream sequence.
//!
//! Invariant: only this writes member rows, by compare-and-set, and a join is reported durable only
//! when every post since its cursor has been copied (`docs/wire.md` §5, *Join*).

mod activation;
mod inventory;
mod rejoin;
mod row_locks;
mod rows;
mod unfinished_joins;

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Connection, NatsError, Writer};
use cotal_rules::directory::{Acl, Membership, Resolved};
use cotal_rules::membership::{
    self as rules, ActivateStep, AfterWrite, JoinStep, LeaveStep, Refusal,
};
use cotal_wire::control::{Code, JoinShortfall, Joined, Left, MembershipItem, Memberships, Reply};
use cotal_wire::names::member_key;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Lifecycle, LifecycleUid, Principal, Space};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::counters::Counters;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::pipeline::Pipeline;
use crate::pipeline::join_barrier::{JoinBarrier, JoinInProgress};
use crate::pipeline::progress::ReaderProgress;
use crate::state::view::{Feed, Seen, View};

use inventory::{Inventories, inventories};
use row_locks::{RowLock, RowLocks};

pub(crate) use unfinished_joins::{Joins, joins};

/// Rounds of compare-and-set before a caller is told that others are faster.
const ROUNDS: usize = 8;
/// How long the view may take to apply a row just written.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Joins, leaves and listings of one lane.
pub(crate) struct Registry {
    space: Space,
    connection: Connection,
    view: Arc<View>,
    gate: Gate,
    writer: Writer,
    counters: Arc<Counters>,
    reader: watch::Receiver<ReaderProgress>,
    writer_identity: String,
    turns: RowLocks,
    joins: JoinBarrier,
    inventories: Inventories,
}

/// Starts the registry: the reads of its inventories, and the joins that are half done.
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

/// A refusal, or a broker that did not let the operation be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error("{}", .0.reason)]
    Refused(Refusal),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl RegistryError {
    pub(crate) fn refused<T: Into<String>>(code: Code, reason: T) -> Self {
        Self::Refused(Refusal { code, reason: reason.into() })
    }

    fn is_conflict(&self) -> bool {
        matches!(self, Self::Nats(error) if error.is_conflict())
    }

    /// The reply that tells the caller.
    pub(crate) fn reply(&self) -> Reply {
        match self {
            Self::Refused(refusal) => Reply::refused(refusal.code, refusal.reason.clone()),
            Self::Nats(error) => Reply::refused(
                Code::Unavailable,
                format!("the daemon could not finish it: {error}; try again"),
            ),
        }
    }
}

impl Registry {
    /// Serves `durableJoin`.
    pub(crate) async fn join(
        &self,
        caller: &Principal,
        channel: &Channel,
        uid: Option<LifecycleUid>,
    ) -> Result<Joined, RegistryError> {
        self.view.fresh(&[Feed::Acl, Feed::Channels]).await?;
        let member = self.lifecycle(caller, uid)?;
        if self.view.directory().class(channel) == DeliveryClass::Live {
            let why = format!("{channel} is a live channel: it has no durable backstop to join");
            return Err(RegistryError::refused(Code::Invalid, why));
        }
        let key = member_key(channel, &member);
        let _turn = self.turn(&key, &member).await?;
        for _ in 0..ROUNDS {
            match self.join_once(&key, channel, &member).await {
                Err(error) if error.is_conflict() => {}
                other => return other,
            }
        }
        Err(RegistryError::refused(Code::Conflict, "the row keeps changing; try again"))
    }

    async fn join_once(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<Joined, RegistryError> {
        let (current, tombstone) = self.read_row(key, channel, member).await?;
        if current.as_ref().is_some_and(|row| !row.is_open()) {
            self.make_room(key, channel, member).await?;
        }
        // Before the cursor is read, so that fan-out routes no later post without the row.
        let joining = self.joins.begin();
        let cursor = self.connection.last_seq(&self.space.chat_stream()).await?;
        let acl = self.read_acl(member).await?;
        match rules::join(
            current.as_ref(),
            Acl::of(acl.as_ref()),
            self.change(channel, member, cursor),
        ) {
            JoinStep::Refused(refusal) => Err(RegistryError::Refused(refusal)),
            JoinStep::AlreadyJoined { membership } if membership.activated => {
                Ok(Joined { durable: true, generation: membership.generation, reason: None })
            }
            JoinStep::AlreadyJoined { membership } => {
                let routed = u64::MAX;
                let seen = Seen { revision: membership.revision, routed };
                self.activate(key, channel, member, membership, seen, joining).await
            }
            JoinStep::Write(write) => {
                let seen = self.view.expect_member(key);
                let revision = self.write(key, &write, tombstone).await?;
                self.confirm(key, channel, member, write.row.generation, revision).await?;
                let seen = self.seen(seen, revision).await?;
                let membership = Membership::of(&write.row, revision);
                self.activate(key, channel, member, membership, seen, joining).await
            }
        }
    }

    /// Reads the ACL once more after the write; a row that it no longer covers goes again (MEM-3).
    async fn confirm(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
        revision: u64,
    ) -> Result<(), RegistryError> {
        let acl = self.read_acl(member).await;
        let verdict = acl.map(|acl| rules::after_write(Acl::of(acl.as_ref()), channel));
        match verdict {
            Ok(AfterWrite::Keep) => Ok(()),
            Ok(AfterWrite::Remove(refusal)) => {
                self.remove(key, channel, member, generation, revision).await;
                Err(RegistryError::Refused(refusal))
            }
            Err(error) => {
                self.remove(key, channel, member, generation, revision).await;
                Err(error)
            }
        }
    }

    /// Takes a refused join's row back, also when a leave has closed it meanwhile. A rejoin discard_scan at
    /// the ACL itself.
    async fn remove(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
        mut revision: u64,
    ) {
        for _ in 0..ROUNDS {
            // Another daemon that serves by now decides about the row itself.
            if self.serves().is_err() {
                return;
            }
            match self.view.kv(Feed::Members).delete(key, Some(revision)).await {
                Ok(_) => return,
                Err(error) if error.is_conflict() => {
                    match self.read_row(key, channel, member).await {
                        Ok((Some(row), _)) if row.generation == generation => {
                            revision = row.revision;
                        }
                        _ => return,
                    }
                }
                Err(error) => {
                    warn!(space = %self.space, %error, "a refused join's row stays until it is read");
                    return;
                }
            }
        }
    }

    async fn seen(
        &self,
        seen: oneshot::Receiver<Seen>,
        revision: u64,
    ) -> Result<Seen, RegistryError> {
        let late = || NatsError::Timeout {
            what: "the view to apply a member row".to_owned(),
            after: SEEN_WITHIN,
        };
        let seen = timeout(SEEN_WITHIN, seen).await.map_err(|_| late())?.map_err(|_| late())?;
        if seen.revision < revision {
            // An older change of the row was told first; the barrier brings ours in.
            self.view.fresh(&[Feed::Members]).await?;
            return Ok(Seen { revision, routed: u64::MAX });
        }
        Ok(seen)
    }

    /// Copies what was posted between the join and the moment fan-out began to see the row, then
    /// marks the row as activated. Fan-out waits for the first of it when it is told of the join.
    async fn activate(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        membership: Membership,
        seen: Seen,
        joining: JoinInProgress,
    ) -> Result<Joined, RegistryError> {
        let generation = membership.generation;
        let join = membership.join_cursor;
        // A closed row claims no post, so nothing may be copied to it: it is judged before, too.
        let Some(fence) = self.whole_window(channel, join).await? else {
            return self.close_evicted(key, channel, member, &membership).await;
        };
        let until = fence.min(seen.routed);
        self.catch_up(channel, member, generation, join..until, joining).await?;
        // Posts that came during catch-up may have displaced some that it had not read.
        if self.whole_window(channel, join).await?.is_none() {
            return self.close_evicted(key, channel, member, &membership).await;
        }
        let change = self.change(channel, member, fence);
        match rules::activate(Some(&membership), generation, change) {
            ActivateStep::AlreadyActive => {}
            ActivateStep::Superseded => return Ok(superseded(generation)),
            ActivateStep::Write(write) => match self.write(key, &write, None).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() => {
                    return self.after_conflict(key, channel, member, generation).await;
                }
                Err(error) => return Err(error),
            },
        }
        info!(space = %self.space, %member.principal, %channel, generation, "durable join");
        Ok(Joined { durable: true, generation, reason: None })
    }

    /// Somebody changed the row during catch-up: it is still this join's, or it is superseded.
    async fn after_conflict(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
    ) -> Result<Joined, RegistryError> {
        let (row, _) = self.read_row(key, channel, member).await?;
        match row.filter(|row| row.generation == generation && row.is_open()) {
            Some(row) if row.activated => Ok(Joined { durable: true, generation, reason: None }),
            _ => Ok(superseded(generation)),
        }
    }

    /// Serves `durableLeave`.
    pub(crate) async fn leave(
        &self,
        caller: &Principal,
        channel: &Channel,
        generation: u64,
        uid: Option<LifecycleUid>,
    ) -> Result<Left, RegistryError> {
        self.view.fresh(&[Feed::Acl]).await?;
        let member = self.lifecycle(caller, uid)?;
        let key = member_key(channel, &member);
        let _turn = self.turn(&key, &member).await?;
        for _ in 0..ROUNDS {
            let (current, _) = self.read_row(&key, channel, &member).await?;
            let cursor = self.connection.last_seq(&self.space.chat_stream()).await?;
            let change = self.change(channel, &member, cursor);
            let write = match rules::leave(current.as_ref(), generation, change) {
                LeaveStep::Refused(refusal) => return Err(RegistryError::Refused(refusal)),
                LeaveStep::AlreadyLeft => {
                    return Ok(Left { channel: channel.clone(), already_left: Some(true) });
                }
                LeaveStep::Write(write) => write,
            };
            match self.write(&key, &write, None).await {
                Ok(_) => {
                    info!(space = %self.space, %member.principal, %channel, generation, "durable leave");
                    return Ok(Left { channel: channel.clone(), already_left: None });
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Err(RegistryError::refused(Code::Conflict, "the row keeps changing; try again"))
    }

    /// Serves `listMemberships`: the open memberships of the caller's live lifecycles.
    pub(crate) async fn list(&self, caller: &Principal) -> Result<Memberships, RegistryError> {
        self.view.fresh(&[Feed::Acl, Feed::Members]).await?;
        let member = self.lifecycle(caller, None)?;
        let directory = self.view.directory();
        let mut memberships: Vec<_> = directory
            .memberships_of(&member)
            .into_iter()
            .filter(|(_, m)| m.is_open())
            .map(|(channel, m)| MembershipItem {
                channel,
                generation: m.generation,
                activated: m.activated,
            })
            .collect();
        memberships.sort_by(|a, b| a.channel.cmp(&b.channel));
        Ok(Memberships { memberships })
    }

    /// Finishes a join that a daemon before this one left half done, from the second look at the ACL
    /// on: nobody knows whether that daemon came to it (MEM-3).
    pub(crate) async fn resume(
        &self,
        channel: &Channel,
        member: &Lifecycle,
        joining: JoinInProgress,
    ) -> Result<(), RegistryError> {
        let key = member_key(channel, member);
        let _turn = self.turn(&key, member).await?;
        let (row, _) = self.read_row(&key, channel, member).await?;
        let Some(row) = row.filter(|row| row.is_open() && !row.activated) else {
            return Ok(());
        };
        self.view.fresh(&[Feed::Channels]).await?;
        if self.view.directory().class(channel) == DeliveryClass::Live {
            // Nothing is copied by membership there (FAN-7); the next join goes on with the row.
            return Ok(());
        }
        let acl = self.read_acl(member).await?;
        if let AfterWrite::Remove(refusal) = rules::after_write(Acl::of(acl.as_ref()), channel) {
            self.remove(&key, channel, member, row.generation, row.revision).await;
            return Err(RegistryError::Refused(refusal));
        }
        let seen = Seen { revision: row.revision, routed: u64::MAX };
        self.activate(&key, channel, member, row, seen, joining).await.map(drop)
    }

    /// Waits for a turn at a row; a lifecycle that is being retired gets none.
    async fn turn(&self, key: &str, member: &Lifecycle) -> Result<RowLock<'_>, RegistryError> {
        let turn = self.turns.take(key, member).await;
        turn.ok_or_else(|| RegistryError::refused(Code::Retired, "this lifecycle is being retired"))
    }

    /// The caller's one live lifecycle, as of now.
    pub(crate) async fn live_lifecycle(
        &self,
        caller: &Principal,
    ) -> Result<Lifecycle, RegistryError> {
        self.view.fresh(&[Feed::Acl]).await?;
        self.lifecycle(caller, None)
    }

    /// Which lifecycle of the caller is meant.
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

fn superseded(generation: u64) -> Joined {
    Joined { durable: false, generation, reason: Some(JoinShortfall::Superseded) }
}
