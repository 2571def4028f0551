//! The result of a role request, as its holder reports it (`result`).

use cotal_rules::anycast::{self as rules, Finish, FinishStep};
use cotal_wire::Principal;
use cotal_wire::anycast::{Recorded, ResultArgs, TakeRefusal};
use cotal_wire::control::{Code, Reply, Request};
use cotal_wire::limits::MAX_RESULT;
use tracing::info;

use super::take::{Takes, refused};
use super::{RequestKeeper, WRITE_ATTEMPTS, too_busy};
use crate::control::rail::{args, done};
use crate::registry::RegistryError;

impl Takes {
    /// Serves `result`.
    pub(super) async fn result(&self, caller: &Principal, request: Request) -> Reply {
        let result = match args::<ResultArgs>(request.args) {
            Ok(result) => result,
            Err(refusal) => return refusal,
        };
        let size = serde_json::to_vec(&result.parts).map_or(usize::MAX, |parts| parts.len());
        if size > MAX_RESULT {
            let why = format!(
                "the result has {size} bytes, but at most {MAX_RESULT} are kept; send the rest as a direct message"
            );
            return Reply::refused(Code::TooLarge, why);
        }
        match self.keeper.finish(caller, &result).await {
            Ok(None) => done(&Recorded { recorded: true }),
            Ok(Some(reason)) => refused(result.seq, reason),
            Err(error) => error.reply(),
        }
    }
}

impl RequestKeeper {
    /// Records a result, or returns why it is refused.
    async fn finish(
        &self,
        holder: &Principal,
        args: &ResultArgs,
    ) -> Result<Option<TakeRefusal>, RegistryError> {
        let ResultArgs { seq, stream_created, delivery, outcome, parts } = args;
        let _turn = self.turn(*seq).await;
        for _ in 0..WRITE_ATTEMPTS {
            let looked = self.look(*seq).await?;
            let finish = Finish {
                holder,
                created: stream_created,
                delivery: *delivery,
                outcome: *outcome,
                parts,
            };
            match rules::finish(looked.seen(*seq), finish) {
                FinishStep::Refused(why) => return Ok(Some(why)),
                FinishStep::Recorded => return Ok(None),
                FinishStep::Settle => {
                    if let Some(record) = looked.record() {
                        self.settle(record).await?;
                    }
                }
                FinishStep::Write(write) => {
                    match self.records.write(&write, looked.found.garbage()).await {
                        Ok(_) => {
                            info!(space = %self.space, seq, %holder, ?outcome, "a request's result was recorded");
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
