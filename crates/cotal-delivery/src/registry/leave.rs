//! `durableLeave`.

use cotal_rules::membership::{Ask, Leave, LeaveEnd, Step};
use cotal_wire::control::{Code, Left};
use cotal_wire::{Channel, LifecycleUid, Principal};
use tracing::info;

use super::steps::Steps;
use super::{Registry, RegistryError};
use crate::clock::now_ms;
use crate::state::view::{Feed, LeaveInProgress};

impl Registry {
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
        let target = self.target(channel, &member);
        let mut steps = Steps::new(self, &target);
        let _turn = self.turn(&member).await?;
        let mut leave = Leave::new(target.clone(), generation);
        let mut hold: Option<LeaveInProgress> = None;
        let end = loop {
            let ask = match leave.next() {
                Step::Ask(ask) => ask,
                Step::End(end) => break end,
            };
            match (&ask, &hold) {
                // Announced before the cursor is read, so that no later post is released without
                // it.
                (Ask::Cursor, _) => hold = Some(self.view.begin_leave(channel, &member)),
                (Ask::Write(_), Some(hold)) => {
                    leave.cursor().into_iter().for_each(|cursor| hold.set_cursor(cursor));
                }
                _ => {}
            }
            leave.answer(steps.perform(ask).await, now_ms());
        };
        if let (LeaveEnd::Left { revision }, Some(hold)) = (&end, &mut hold) {
            hold.written(*revision);
        }
        let already_left = match end {
            LeaveEnd::Left { .. } => {
                info!(space = %self.space, %member.principal, %channel, generation, "durable leave");
                None
            }
            LeaveEnd::AlreadyLeft => Some(true),
            LeaveEnd::Refused(refusal) => return Err(RegistryError::Refused(refusal)),
            LeaveEnd::Busy => return Err(busy()),
            LeaveEnd::NotServing => return Err(RegistryError::NotServing),
            LeaveEnd::Failed => return Err(steps.error()),
        };
        Ok(Left { channel: channel.clone(), already_left })
    }
}

/// The refusal of a change that lost too many conflicts.
pub(super) fn busy() -> RegistryError {
    RegistryError::refused(Code::Conflict, "the row keeps changing; try again")
}
