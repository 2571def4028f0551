//! The `ctl.anycast-take` service: a holder requests a take before it shows a request (ANY-1,
//! ANY-2).

use std::sync::Arc;

use cotal_rules::anycast::{self as rules, Take, TakeStep};
use cotal_wire::Principal;
use cotal_wire::anycast::{NotTaken, TakeArgs, TakeRefusal, Taken};
use cotal_wire::control::{Code, Reply, Request, op};
use cotal_wire::names::ANYCAST_TAKE;
use tracing::{debug, info};

use super::caller_roles::HeldRole;
use super::{RequestKeeper, WRITE_ATTEMPTS, too_busy};
use crate::control::rail::{Rail, Service, args, done, unknown};
use crate::registry::RegistryError;

/// What the service needs.
pub(super) struct Takes {
    pub(super) rail: Rail,
    pub(super) keeper: Arc<RequestKeeper>,
}

impl Service for Takes {
    const NAME: &'static str = ANYCAST_TAKE;

    fn rail(&self) -> &Rail {
        &self.rail
    }

    async fn perform(&self, caller: &Principal, request: Request) -> Reply {
        match request.op.as_str() {
            op::TAKE => {}
            op::RESULT => return self.result(caller, request).await,
            other => return unknown(other, ANYCAST_TAKE),
        }
        let take = match args::<TakeArgs>(request.args) {
            Ok(take) => take,
            Err(refusal) => return refusal,
        };
        match self.keeper.take(caller, &take).await {
            Ok(None) => done(&Taken { taken: true }),
            Ok(Some(reason)) => {
                debug!(space = %self.rail.space, seq = take.seq, %caller, ?reason, "a take was refused");
                refused(take.seq, reason)
            }
            Err(error) => error.reply(),
        }
    }
}

pub(super) fn refused(seq: u64, reason: TakeRefusal) -> Reply {
    let (code, why) = match reason {
        TakeRefusal::Cancelled => (Code::Conflict, "its sender cancelled it"),
        TakeRefusal::Held => (Code::Conflict, "another holder or a later delivery has it"),
        TakeRefusal::Recreated => (Code::Superseded, "the task stream was re-created"),
        TakeRefusal::Gone => (Code::Conflict, "it has left the queue"),
        TakeRefusal::NotYours => (Code::Denied, "it is for another role"),
    };
    let data = serde_json::to_value(NotTaken { reason }).unwrap_or_default();
    Reply::refused(code, format!("you may not work on request {seq}: {why}")).with_data(data)
}

fn unseen(holder: &Principal) -> RegistryError {
    let why = format!("the broker shows no connection of {holder} with a role; try again");
    RegistryError::refused(Code::Unavailable, why)
}

impl RequestKeeper {
    /// Records a take, or returns why it is refused.
    pub(super) async fn take(
        &self,
        holder: &Principal,
        args: &TakeArgs,
    ) -> Result<Option<TakeRefusal>, RegistryError> {
        let TakeArgs { seq, stream_created, delivery } = args;
        let _turn = self.turn(*seq).await;
        for _ in 0..WRITE_ATTEMPTS {
            let looked = self.look(*seq).await?;
            let role = match &looked.request {
                Some(request) => match self.roles.of(holder, &request.role).await {
                    HeldRole::Role(role) => Some(role),
                    HeldRole::Untold => None,
                    HeldRole::Unseen => return Err(unseen(holder)),
                },
                None => None,
            };
            let take =
                Take { holder, role: role.as_ref(), created: stream_created, delivery: *delivery };
            let standing = looked.record();
            match rules::take(looked.seen(*seq), take) {
                TakeStep::Refused(why) => return Ok(Some(why)),
                TakeStep::Finished => {
                    self.delete(*seq, &looked).await?;
                    return Ok(Some(TakeRefusal::Gone));
                }
                TakeStep::Taken => {
                    if let Some(record) = standing.filter(|record| !record.row.notified) {
                        let settled = self.settle(record).await;
                        debug!(space = %self.space, seq, ?settled, "a recorded take was requested again");
                    }
                    return Ok(None);
                }
                TakeStep::Settle => {
                    if let Some(record) = standing {
                        self.settle(record).await?;
                    }
                }
                TakeStep::Write(write) => {
                    match self.records.write(&write, looked.found.garbage()).await {
                        Ok(record) => {
                            info!(space = %self.space, seq, %holder, delivery, "a request was taken");
                            let before = standing.map(|record| &record.row);
                            self.tell_or_leave(&record, before).await;
                            return Ok(None);
                        }
                        Err(error) if error.is_conflict() => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Err(too_busy(*seq))
    }
}
