//! The keeper of role requests: who took each one, and which were cancelled by their senders (ANY-1
//! to ANY-6).
//!
//! Every change is decided by `cotal_rules::anycast`, from what the leaders have at that moment,
//! and is a compare-and-set of one row. Invariant: a row whose notice is not marked yet is never
//! replaced before the notice is confirmed and marked.

mod caller_roles;
mod lists;
mod notices;
mod record_watch;
mod records;
mod results;
pub(crate) mod start;
mod status_and_cancel;
mod sweep;
mod take;

use std::sync::Arc;

use cotal_nats::js::Deleted;
use cotal_nats::{Connection, Get, NatsError};
use cotal_rules::anycast::{Observed, Record, Request};
use cotal_rules::directory::{Acl, Resolved};
use cotal_wire::anycast::Created;
use cotal_wire::control::Code;
use cotal_wire::{Lifecycle, Principal, Space};
use tokio::sync::MutexGuard;

use crate::census::Scanner;
use crate::clock::now_ms;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::registry::RegistryError;
use crate::state::view::View;
use crate::striped_locks::StripedLocks;
use caller_roles::Roles;
use records::{Records, StoredRecord, may_write};

/// Attempts at compare-and-set before a caller is told that the record keeps changing.
const WRITE_ATTEMPTS: usize = 16;

/// The records of one lane, and the operations on them.
pub(crate) struct RequestKeeper {
    space: Space,
    connection: Connection,
    own: Principal,
    view: Arc<View>,
    gate: Gate,
    records: Records,
    roles: Roles,
    turns: StripedLocks,
}

/// What was read for one decision. TASK's creation time was the same before and after.
struct RequestSeen {
    created: String,
    request: Option<Request>,
    found: StoredRecord,
}

impl RequestSeen {
    fn record(&self) -> Option<&Record> {
        self.found.record.as_ref()
    }

    fn seen(&self, seq: u64) -> Observed<'_> {
        Observed {
            seq,
            created: &self.created,
            request: self.request.as_ref(),
            record: self.record(),
            now_ms: now_ms(),
        }
    }
}

impl RequestKeeper {
    fn new(context: &LaneContext, scanner: &Scanner) -> Self {
        let LaneContext { space, connection, principal, view, gate, .. } = context;
        Self {
            space: space.clone(),
            connection: connection.clone(),
            own: principal.clone(),
            view: Arc::clone(view),
            gate: gate.clone(),
            records: Records::new(space, connection, gate),
            roles: Roles::new(scanner.clone()),
            turns: StripedLocks::default(),
        }
    }

    /// How many values were seen that cannot be parsed.
    pub(crate) fn garbled(&self) -> u64 {
        self.records.garbled()
    }

    /// Waits for the lock on one request: one decision about it at a time.
    async fn turn(&self, seq: u64) -> MutexGuard<'_, ()> {
        self.turns.lock(&seq).await
    }

    async fn created(&self) -> Result<String, NatsError> {
        Ok(self.connection.stream_info(&self.space.task_stream()).await?.created)
    }

    /// Reads everything that a decision about `seq` needs.
    async fn look(&self, seq: u64) -> Result<RequestSeen, RegistryError> {
        for _ in 0..WRITE_ATTEMPTS {
            let before = self.created().await?;
            let (request, found) = tokio::join!(self.request(seq), self.records.read(seq));
            let created = self.created().await?;
            if is_same(&before, &created) {
                return Ok(RequestSeen { created, request: request?, found: found? });
            }
        }
        Err(RegistryError::refused(
            Code::Unavailable,
            "the task stream keeps being re-created; try again",
        ))
    }

    /// The request at `seq`, if it is stored on TASK.
    async fn request(&self, seq: u64) -> Result<Option<Request>, NatsError> {
        if seq == 0 {
            return Ok(None);
        }
        let stored = self.connection.get_message(&self.space.task_stream(), Get::Seq(seq)).await?;
        let parsed = stored.and_then(|stored| self.space.parse_svc(&stored.subject));
        Ok(parsed.map(|(role, sender)| Request { role, sender }))
    }

    /// Deletes a cancelled request, unless TASK was created again since `looked`.
    async fn delete(&self, seq: u64, looked: &RequestSeen) -> Result<(), NatsError> {
        if !is_same(&self.created().await?, &looked.created) {
            return Ok(());
        }
        may_write(&self.gate, || format!("the removal of request {seq}"))?;
        match self.connection.delete_message(&self.space.task_stream(), seq).await? {
            Deleted::Deleted | Deleted::AlreadyGone => Ok(()),
        }
    }

    /// The last sequence on TASK before the lifecycle.
    fn frontier(&self, member: &Lifecycle, created: &str) -> u64 {
        match self.view.directory().acl(member) {
            Acl::Row(row) => cotal_rules::anycast::frontier(row, created),
            // Such a lifecycle has no requests that anybody could still ask about.
            Acl::Retired | Acl::Absent => u64::MAX,
        }
    }

    /// Whether the principal has no live lifecycle.
    fn is_gone(&self, holder: &Principal) -> bool {
        matches!(self.view.directory().live_lifecycle(holder), Resolved::None)
    }

    /// Whether a later lifecycle has the sender's name by now, so that the request at `seq` is not
    /// its own.
    fn is_succeeded(&self, sender: &Principal, seq: u64, created: &str) -> bool {
        let live = self.view.directory().live_lifecycle(sender);
        matches!(live, Resolved::One(member) if seq <= self.frontier(&member, created))
    }
}

fn is_same(one: &str, other: &str) -> bool {
    Created::parse(one).is_some_and(|created| Created::parse(other) == Some(created))
}

fn too_busy(seq: u64) -> RegistryError {
    let why = format!("the record of request {seq} keeps changing; try again");
    RegistryError::refused(Code::Conflict, why)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::BootInstant;

    #[test]
    fn any_2_a_lane_that_does_not_serve_changes_no_record() {
        let (keeper, gate) = crate::lease::gate::gate();
        let write = || may_write(&gate, || "a record".to_owned());
        assert!(matches!(write(), Err(NatsError::Withheld { .. })));
        keeper.set(Some(BootInstant::now() + Duration::from_secs(60)));
        assert!(write().is_ok());
        keeper.set(Some(BootInstant::now()));
        assert!(matches!(write(), Err(NatsError::Withheld { .. })));
    }
}
