//! `durableJoin`, and joins that an earlier daemon left half done.

use std::time::Duration;

use cotal_nats::NatsError;
use cotal_rules::membership::{Ask, Join, JoinEnd, Step, Target};
use cotal_rules::{Membership, membership::Stored};
use cotal_wire::control::{Code, Joined};
use cotal_wire::rows::{DeliveryClass, MemberRow};
use cotal_wire::{Channel, LifecycleUid, Principal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use super::leave::busy;
use super::steps::Steps;
use super::{Registry, RegistryError};
use crate::clock::now_ms;
use crate::pipeline::join_barrier::JoinInProgress;
use crate::state::view::{Feed, RowSeen};

/// How long the view may take to apply a row that was just written.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

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
            let why = format!("{channel} is a live channel: it has no durable delivery to join");
            return Err(RegistryError::refused(Code::Invalid, why));
        }
        let target = self.target(channel, &member);
        let steps = Steps::new(self, &target);
        let _turn = self.turn(&member).await?;
        self.run_join(&target, Join::new(target.clone()), steps).await
    }

    /// Finishes a join that an earlier daemon left half done.
    pub(crate) async fn resume(
        &self,
        channel: &Channel,
        member: &cotal_wire::Lifecycle,
        joining: JoinInProgress,
    ) -> Result<(), RegistryError> {
        let target = self.target(channel, member);
        let mut steps = Steps::new(self, &target);
        let _turn = self.turn(member).await?;
        let Stored { membership, .. } = self.read_row(&steps.key, channel, member).await?;
        let Some(row) = membership.filter(|row| row.is_open() && !row.activated) else {
            return Ok(());
        };
        self.view.fresh(&[Feed::Channels]).await?;
        if self.view.directory().class(channel) == DeliveryClass::Live {
            // A live channel makes no copies for members (FAN-7); the next join continues with the
            // row.
            return Ok(());
        }
        let previous = self.before(&target, &steps.key, &row).await?;
        steps.joining = Some(joining);
        let join = Join::resume(target.clone(), row, previous);
        self.run_join(&target, join, steps).await.map(drop)
    }

    /// The closed row before `row`, from the bucket's history.
    async fn before(
        &self,
        target: &Target,
        key: &str,
        row: &Membership,
    ) -> Result<Option<Membership>, NatsError> {
        if row.generation == 1 {
            return Ok(None);
        }
        let history = self.view.kv(Feed::Members).history(key).await?;
        let rows = history.iter().rev().filter_map(|entry| {
            let earlier = MemberRow::parse(entry.live()?, &target.channel, &target.member).ok()?;
            Some(Membership::of(&earlier, entry.revision))
        });
        let mut closed = rows.filter(|it| it.generation < row.generation && !it.is_open());
        Ok(closed.next())
    }

    async fn run_join(
        &self,
        target: &Target,
        mut join: Join,
        mut steps: Steps<'_>,
    ) -> Result<Joined, RegistryError> {
        let mut seen = None;
        let end = loop {
            let ask = match join.next() {
                Step::Ask(ask) => ask,
                Step::End(end) => break end,
            };
            match &ask {
                // Announced before the cursor is read, so that fan-out routes no later post without
                // the row.
                Ask::Cursor => steps.joining = Some(self.joins.begin()),
                Ask::Write(write) if !write.is_undo => {
                    seen.get_or_insert_with(|| self.view.expect_member(&steps.key));
                }
                _ => {}
            }
            join.answer(steps.perform(ask).await, now_ms());
        };
        if join.left_a_row() {
            warn!(
                space = %self.space, member = %target.member.principal, channel = %target.channel,
                "the row of a refused join could not be taken back; the next daemon takes it back at start"
            );
        }
        match end {
            JoinEnd::Open { membership, is_new: false } if membership.activated => {
                Ok(Joined { durable: true, generation: membership.generation, reason: None })
            }
            JoinEnd::Open { membership, .. } => {
                let seen = self.seen(seen, membership.revision).await?;
                let joining = steps.joining.take().unwrap_or_else(|| self.joins.begin());
                let membership = Membership { revision: seen.revision, ..membership };
                self.activate(target, membership, seen.routed, joining, steps).await
            }
            JoinEnd::Refused(refusal) => Err(RegistryError::Refused(refusal)),
            JoinEnd::Busy => Err(busy()),
            JoinEnd::NotServing => Err(RegistryError::NotServing),
            JoinEnd::Failed => Err(steps.error()),
        }
    }

    /// When planning began to see the row. A row that was there before this join may have been
    /// missing from any plan.
    async fn seen(
        &self,
        seen: Option<oneshot::Receiver<RowSeen>>,
        revision: u64,
    ) -> Result<RowSeen, RegistryError> {
        let late = || NatsError::Timeout {
            what: "the view to apply a member row".to_owned(),
            after: SEEN_WITHIN,
        };
        let unknown = RowSeen { revision, routed: u64::MAX };
        let Some(seen) = seen else { return Ok(unknown) };
        let seen = timeout(SEEN_WITHIN, seen).await.map_err(|_| late())?.map_err(|_| late())?;
        if seen.revision < revision {
            // The view reported an older change of the row first; the barrier waits for this one.
            self.view.fresh(&[Feed::Members]).await?;
            return Ok(unknown);
        }
        Ok(RowSeen { revision, ..seen })
    }
}
