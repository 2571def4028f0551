//! Requests of senders about their own role requests (ANY-4, ANY-5).

use cotal_nats::NatsError;
use cotal_rules::anycast::{self as rules, Caller, CancelStep, Status, SweepStep};
use cotal_wire::anycast::{Cancelled, HeldBy, StatusReply, Unrecorded};
use cotal_wire::control::{Code, Reply};
use cotal_wire::rows::RequestRow;
use cotal_wire::{Lifecycle, Principal};
use tracing::info;

use super::{RequestKeeper, RequestSeen, WRITE_ATTEMPTS, too_busy};
use crate::control::rail::done;
use crate::registry::RegistryError;

impl RequestKeeper {
    /// Serves `anycastStatus`.
    pub(crate) async fn status(
        &self,
        member: &Lifecycle,
        seq: u64,
    ) -> Result<StatusReply, RegistryError> {
        if !self.is_of(&member.principal, seq).await? {
            return Ok(StatusReply::Unrecorded { state: Unrecorded::Unknown });
        }
        let looked = self.look(seq).await?;
        let frontier = self.frontier(member, &looked.created);
        let caller = Caller { principal: &member.principal, frontier };
        Ok(match rules::status(looked.seen(seq), caller, self.is_left(&looked)) {
            Status::Recorded(row) => {
                let dated = self.dated(seq, &looked).await;
                StatusReply::Recorded(Box::new(dated.unwrap_or_else(|| row.clone())))
            }
            Status::Queued => StatusReply::Unrecorded { state: Unrecorded::Queued },
            Status::Unknown => StatusReply::Unrecorded { state: Unrecorded::Unknown },
        })
    }

    /// If the request has left the queue, records that at once, so that its sender need not wait
    /// for the sweep to see it.
    async fn dated(&self, seq: u64, looked: &RequestSeen) -> Option<RequestRow> {
        let SweepStep::Write(write) = rules::sweep(looked.record()?, looked.seen(seq)) else {
            return None;
        };
        Some(self.records.write(&write, None).await.ok()?.row)
    }

    /// Whether the recorded holder is retired, so that nobody will finish the request.
    fn is_left(&self, looked: &RequestSeen) -> bool {
        let holder = looked.record().and_then(|record| record.row.holder.as_ref());
        holder.is_some_and(|holder| self.is_gone(holder))
    }

    /// Whether the request or the record at `seq` is the principal's. If neither is, the answer is
    /// the same for every stream, and a flood of such questions costs little.
    async fn is_of(&self, principal: &Principal, seq: u64) -> Result<bool, NatsError> {
        let (request, found) = tokio::join!(self.request(seq), self.records.read(seq));
        let (request, found) = (request?, found?);
        let asked = request.as_ref().map(|request| &request.sender);
        let recorded = found.record.as_ref().map(|record| &record.row.sender);
        Ok(asked == Some(principal) || recorded == Some(principal))
    }

    /// Serves `anycastCancel`.
    pub(crate) async fn cancel(
        &self,
        member: &Lifecycle,
        seq: u64,
    ) -> Result<Reply, RegistryError> {
        if !self.is_of(&member.principal, seq).await? {
            return Ok(unknown(seq));
        }
        let _turn = self.turn(seq).await;
        for _ in 0..WRITE_ATTEMPTS {
            let looked = self.look(seq).await?;
            let frontier = self.frontier(member, &looked.created);
            let caller = Caller { principal: &member.principal, frontier };
            match rules::cancel(looked.seen(seq), caller, self.is_left(&looked)) {
                CancelStep::Write(write) => {
                    match self.records.write(&write, looked.found.garbage()).await {
                        Ok(_) => info!(space = %self.space, seq, "a request was cancelled"),
                        Err(error) if error.is_conflict() => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                CancelStep::Settle => {
                    if let Some(record) = looked.record() {
                        self.settle(record).await?;
                    }
                }
                CancelStep::Delete => self.delete(seq, &looked).await?,
                CancelStep::Cancelled => return Ok(done(&Cancelled { cancelled: true })),
                CancelStep::Conflict { holder } => {
                    let why = format!("{holder} has already taken request {seq}");
                    let data = serde_json::to_value(HeldBy { holder }).unwrap_or_default();
                    return Ok(Reply::refused(Code::Conflict, why).with_data(data));
                }
                CancelStep::Unknown => return Ok(unknown(seq)),
            }
        }
        Err(too_busy(seq))
    }
}

/// The same reply for another sender's request as for one that never existed.
fn unknown(seq: u64) -> Reply {
    let data = StatusReply::Unrecorded { state: Unrecorded::Unknown };
    let data = serde_json::to_value(data).unwrap_or_default();
    Reply::refused(Code::Invalid, format!("you have no request {seq}")).with_data(data)
}
