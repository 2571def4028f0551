//! The record of a role request: who has taken it, or that its sender cancelled it (ANY-1 to
//! ANY-6).
//!
//! Every change of a row in the anycast bucket is decided here, from what was just read: the row,
//! the request on TASK, and TASK's creation time. Invariants, tested over every interleaving in
//! `tests/anycast`: the row's revision is the only arbiter, so of a take and a cancel exactly one
//! wins; a row of another incarnation of TASK does not count; the sender learns of each change of
//! holder exactly once, because a notice is recorded before it is sent and marked afterwards, is
//! sent again under the same id while the mark is missing, and no row without its mark is replaced.

use cotal_wire::anycast::{Created, NoticeKind, TakeRefusal, notice_id};
use cotal_wire::envelope::Part;
use cotal_wire::rows::{AclRow, Outcome, RequestResult, RequestRow, RequestState};
use cotal_wire::{Principal, Role};

use crate::membership::Expect;

/// How long a record is kept after its request has left the queue, in milliseconds (ANY-6).
pub const KEEP_MS: i64 = 24 * 3_600 * 1_000;

/// A request that is stored on TASK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The role it asks, taken from the subject.
    pub role: Role,
    /// Who asks, taken from the subject, which the broker enforces.
    pub sender: Principal,
}

/// A record, with the revision that a change of it must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The row.
    pub row: RequestRow,
    /// Its revision.
    pub revision: u64,
}

/// What was read from the leaders for one decision. The creation time is read before and after the
/// request; if the two differ, everything is read again, so that a request of one incarnation is
/// never mistaken for one of another.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The request's sequence.
    pub seq: u64,
    /// TASK's creation time, RFC 3339.
    pub created: &'a str,
    /// The request, while it is stored on TASK.
    pub request: Option<&'a Request>,
    /// The record, whatever incarnation of TASK it belongs to.
    pub record: Option<&'a Record>,
    /// Unix milliseconds.
    pub now_ms: i64,
}

impl<'a> Observed<'a> {
    /// The record, if it belongs to this incarnation of TASK.
    fn current(&self) -> Option<&'a RequestRow> {
        let record = self.record?;
        same(&record.row.stream_created, self.created).then_some(&record.row)
    }

    /// Whether the record that a write would replace has a notice that is not marked yet, even one
    /// of an earlier incarnation.
    fn owes(&self) -> bool {
        self.record.is_some_and(|record| owed(&record.row, None).is_some())
    }

    fn expect(&self) -> Expect {
        self.record.map_or(Expect::Absent, |record| Expect::Revision(record.revision))
    }

    fn row(&self, request: &Request, state: RequestState) -> RequestRow {
        RequestRow {
            seq: self.seq,
            stream_created: self.created.to_owned(),
            role: request.role.clone(),
            sender: request.sender.clone(),
            state,
            holder: None,
            delivery: None,
            at: self.now_ms,
            notified: state == RequestState::Cancelled,
            gone: 0,
            result: None,
        }
    }
}

fn same(one: &str, other: &str) -> bool {
    Created::parse(one).is_some_and(|created| Created::parse(other) == Some(created))
}

/// A compare-and-set of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordWrite {
    /// The row to write.
    pub row: RequestRow,
    /// What it replaces.
    pub expect: Expect,
}

/// A message to the sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its message id, by which the broker discards repeats.
    pub id: String,
    /// Whether this is the first holder, or another one.
    pub kind: NoticeKind,
    /// The sender of the request.
    pub to: Principal,
    /// The sequence of the request.
    pub seq: u64,
    /// The role that was asked.
    pub role: Role,
    /// Who has it.
    pub holder: Principal,
}

/// The notice that a row still needs, if any. `before` is the row that it replaced, from the
/// bucket's history. It is the row just before, because no row is replaced before its own notice is
/// marked.
#[must_use]
pub fn owed(row: &RequestRow, before: Option<&RequestRow>) -> Option<Notice> {
    if row.notified || row.state != RequestState::Taken {
        return None;
    }
    let moved = before.is_some_and(|before| {
        same(&before.stream_created, &row.stream_created)
            && before.holder.is_some()
            && before.holder != row.holder
    });
    let kind = if moved { NoticeKind::Moved } else { NoticeKind::Taken };
    Some(Notice {
        id: notice_id(Created::parse(&row.stream_created)?, row.seq, row.delivery?),
        kind,
        to: row.sender.clone(),
        seq: row.seq,
        role: row.role.clone(),
        holder: row.holder.clone()?,
    })
}

/// The write that marks a notice as confirmed.
#[must_use]
pub fn marked(record: &Record) -> RecordWrite {
    let row = RequestRow { notified: true, ..record.row.clone() };
    RecordWrite { row, expect: Expect::Revision(record.revision) }
}

/// Who takes which delivery.
#[derive(Debug, Clone, Copy)]
pub struct Take<'a> {
    /// The authenticated caller.
    pub holder: &'a Principal,
    /// The caller's role, if it is known.
    pub role: Option<&'a Role>,
    /// TASK's creation time as the caller read it, RFC 3339.
    pub created: &'a str,
    /// The number of the delivery that the caller holds, from 1.
    pub delivery: u64,
}

/// What to do next for a take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeStep {
    /// Write the row; then send the notice that it needs, mark it, and answer. After a conflict
    /// start again.
    Write(RecordWrite),
    /// Send the notice that the stored row needs, mark it, then start again.
    Settle,
    /// It is recorded already; give the same answer as the first time.
    Taken,
    /// Its holder has finished it, and crashed before it left the queue. Read TASK's creation time
    /// once more; if it is unchanged, delete the request; then refuse.
    Finished,
    /// Refuse.
    Refused(TakeRefusal),
}

/// Decides a take.
#[must_use]
pub fn take(seen: Observed<'_>, take: Take<'_>) -> TakeStep {
    if !same(take.created, seen.created) {
        return TakeStep::Refused(TakeRefusal::Recreated);
    }
    let current = seen.current();
    if current.is_some_and(|row| row.state == RequestState::Cancelled) {
        return TakeStep::Refused(TakeRefusal::Cancelled);
    }
    let Some(request) = seen.request.filter(|_| take.delivery > 0) else {
        return TakeStep::Refused(TakeRefusal::Gone);
    };
    if current.is_some_and(RequestRow::is_finished) {
        return TakeStep::Finished;
    }
    if take.role.is_some_and(|role| *role != request.role) || !request.sender.has_real_owner() {
        return TakeStep::Refused(TakeRefusal::NotYours);
    }
    let by_me = |row: &RequestRow| row.holder.as_ref() == Some(take.holder);
    if let Some(row) = current {
        let newest = row.delivery.unwrap_or_default();
        if take.delivery == newest && by_me(row) {
            return TakeStep::Taken;
        }
        if take.delivery <= newest {
            return TakeStep::Refused(TakeRefusal::Held);
        }
    }
    if seen.owes() {
        return TakeStep::Settle;
    }
    // Redelivered to the same holder: only the delivery changes, and the sender is not told.
    let notified = current.is_some_and(by_me);
    let row = RequestRow {
        holder: Some(take.holder.clone()),
        delivery: Some(take.delivery),
        notified,
        ..seen.row(request, RequestState::Taken)
    };
    TakeStep::Write(RecordWrite { row, expect: seen.expect() })
}

/// What a holder reports about a request.
#[derive(Debug, Clone, Copy)]
pub struct Finish<'a> {
    /// The authenticated caller.
    pub holder: &'a Principal,
    /// TASK's creation time when it was taken, RFC 3339.
    pub created: &'a str,
    /// The number of the delivery that was taken.
    pub delivery: u64,
    /// The outcome.
    pub outcome: Outcome,
    /// What its sender will read.
    pub parts: &'a [Part],
}

/// What to do next for a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishStep {
    /// Write the row, then answer. After a conflict start again.
    Write(RecordWrite),
    /// Send the notice that the stored row needs, mark it, then start again.
    Settle,
    /// It is recorded already; give the same answer as the first time.
    Recorded,
    /// Refuse.
    Refused(TakeRefusal),
}

/// Decides a result. Only the holder of the newest take may report one, and a final result is not
/// replaced.
#[must_use]
pub fn finish(seen: Observed<'_>, finish: Finish<'_>) -> FinishStep {
    if !same(finish.created, seen.created) {
        return FinishStep::Refused(TakeRefusal::Recreated);
    }
    let Some(row) = seen.current() else {
        return FinishStep::Refused(TakeRefusal::Gone);
    };
    if row.state == RequestState::Cancelled {
        return FinishStep::Refused(TakeRefusal::Cancelled);
    }
    if row.holder.as_ref() != Some(finish.holder) || row.delivery != Some(finish.delivery) {
        return FinishStep::Refused(TakeRefusal::Held);
    }
    if let Some(result) = row.result.as_ref().filter(|result| result.outcome.is_final()) {
        let same = result.outcome == finish.outcome && result.parts == finish.parts;
        let held = FinishStep::Refused(TakeRefusal::Gone);
        return if same { FinishStep::Recorded } else { held };
    }
    if seen.owes() {
        return FinishStep::Settle;
    }
    let result =
        RequestResult { outcome: finish.outcome, parts: finish.parts.to_vec(), at: seen.now_ms };
    let row = RequestRow { result: Some(result), ..row.clone() };
    FinishStep::Write(RecordWrite { row, expect: seen.expect() })
}

/// Who asks about a request.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The authenticated caller.
    pub principal: &'a Principal,
    /// The last sequence on TASK before the caller's lifecycle: older requests are a predecessor's.
    pub frontier: u64,
}

impl Caller<'_> {
    fn owns(&self, seq: u64, sender: &Principal) -> bool {
        seq > self.frontier && sender == self.principal
    }
}

/// The last sequence on TASK before the lifecycle of an ACL row. If the row was last written before
/// TASK was created, its frontier is a sequence of an earlier TASK and counts nothing.
#[must_use]
pub fn frontier(acl: &AclRow, created: &str) -> u64 {
    let earlier = Created::parse(created).is_some_and(|created| acl.updated_at < created.millis());
    acl.activated.filter(|_| !earlier).map_or(0, |frontier| frontier.task)
}

/// What to do next for a cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelStep {
    /// Write the cancelled row, then start again, also after a conflict.
    Write(RecordWrite),
    /// Send the notice that the stored row needs, mark it, then start again.
    Settle,
    /// Read TASK's creation time once more; if it is unchanged, delete the request, then answer.
    Delete,
    /// It is cancelled and deleted: answer.
    Cancelled,
    /// A holder has taken it.
    Conflict {
        /// The holder.
        holder: Principal,
    },
    /// It is not the caller's: answer as for a request that never existed.
    Unknown,
}

/// Decides a cancel. If the holder has returned the request, or `is_gone` for good, the request may
/// be cancelled as if it was never taken. If another holder takes it at the same time, the revision
/// decides.
#[must_use]
pub fn cancel(seen: Observed<'_>, caller: Caller<'_>, is_gone: bool) -> CancelStep {
    match (seen.current(), seen.request) {
        (Some(row), _) if !caller.owns(seen.seq, &row.sender) => CancelStep::Unknown,
        (Some(row), Some(request)) if is_let_go(row, is_gone) => {
            if seen.owes() {
                return CancelStep::Settle;
            }
            let row = seen.row(request, RequestState::Cancelled);
            CancelStep::Write(RecordWrite { row, expect: seen.expect() })
        }
        (Some(row), request) => match (&row.holder, row.state) {
            (_, RequestState::Cancelled) if request.is_some() => CancelStep::Delete,
            (_, RequestState::Cancelled) => CancelStep::Cancelled,
            (Some(holder), RequestState::Taken) => CancelStep::Conflict { holder: holder.clone() },
            (None, RequestState::Taken) => CancelStep::Unknown,
        },
        (None, Some(request)) if caller.owns(seen.seq, &request.sender) => {
            if seen.owes() {
                return CancelStep::Settle;
            }
            let row = seen.row(request, RequestState::Cancelled);
            CancelStep::Write(RecordWrite { row, expect: seen.expect() })
        }
        (None, _) => CancelStep::Unknown,
    }
}

/// Whether a taken request has no holder any more, because the holder returned it or is gone.
#[must_use]
pub fn is_let_go(row: &RequestRow, holder_is_gone: bool) -> bool {
    let returned = row.result.as_ref().is_some_and(|result| result.outcome == Outcome::Returned);
    row.state == RequestState::Taken && !row.is_finished() && (returned || holder_is_gone)
}

/// The status of a request, for its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status<'a> {
    /// As the record says.
    Recorded(&'a RequestRow),
    /// Nobody has taken it yet.
    Queued,
    /// It is not the caller's.
    Unknown,
}

/// Answers a question about the status. A request whose holder `is_gone` for good is queued for
/// another holder.
#[must_use]
pub fn status<'a>(seen: Observed<'a>, caller: Caller<'_>, is_gone: bool) -> Status<'a> {
    match (seen.current(), seen.request) {
        (Some(row), Some(_))
            if caller.owns(seen.seq, &row.sender)
                && row.result.is_none()
                && is_let_go(row, is_gone) =>
        {
            Status::Queued
        }
        (Some(row), _) if caller.owns(seen.seq, &row.sender) => Status::Recorded(row),
        (None, Some(request)) if caller.owns(seen.seq, &request.sender) => Status::Queued,
        _ => Status::Unknown,
    }
}

/// What the sweep does with one record; repeated until there is nothing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepStep {
    /// Send the notice that the row needs, then mark it.
    Notify,
    /// A crash prevented the deletion of a cancelled or finished request: read TASK's creation time
    /// once more; if it is unchanged, delete the request.
    Delete,
    /// Write the row, which records that the request has left the queue.
    Write(RecordWrite),
    /// Remove the row, by its revision.
    Remove {
        /// The revision.
        revision: u64,
    },
    /// Nothing.
    Keep,
}

/// Decides about one record (ANY-6). A record of an earlier incarnation of TASK has left the queue
/// together with that incarnation.
#[must_use]
pub fn sweep(record: &Record, seen: Observed<'_>) -> SweepStep {
    let row = &record.row;
    let stands = seen.request.is_some() && same(&row.stream_created, seen.created);
    if owed(row, None).is_some() {
        return SweepStep::Notify;
    }
    match (stands, row.state) {
        (true, RequestState::Cancelled) => SweepStep::Delete,
        // Its holder crashed between the result and the ack.
        (true, RequestState::Taken) if row.is_finished() => SweepStep::Delete,
        (false, _) if row.gone == 0 => {
            let row = RequestRow { gone: seen.now_ms.max(1), ..row.clone() };
            let expect = Expect::Revision(record.revision);
            SweepStep::Write(RecordWrite { row, expect })
        }
        (false, _) if seen.now_ms.saturating_sub(row.gone) >= KEEP_MS => {
            SweepStep::Remove { revision: record.revision }
        }
        (true, RequestState::Taken) | (false, _) => SweepStep::Keep,
    }
}

#[cfg(test)]
mod tests;
