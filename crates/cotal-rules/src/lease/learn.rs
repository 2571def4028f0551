//! What the keeper learns from answers and watch events.

use cotal_wire::rows::LeaseRow;

use super::{
    Effect, Exit, Failure, Found, LeaseKeeper, Op, Pending, Phase, RETRY_MS, Reading, View,
};

impl LeaseKeeper {
    pub(super) fn written(
        &mut self,
        result: Result<u64, Failure>,
        now_ms: i64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(Pending { op, sent, seen, stale }) = self.pending.take_if(|p| p.op != Op::Read)
        else {
            return;
        };
        match (result, op) {
            (Ok(_) | Err(Failure::Conflict), _) if stale => self.view = View::Unknown,
            (Ok(revision), Op::Create | Op::Update { .. }) if revision < seen => {
                self.replaced(now_ms, effects);
            }
            (Ok(revision), Op::Delete { .. }) => {
                // An unanswered create may have been stored since; then there is one more row to
                // delete.
                if revision >= self.seen {
                    self.seen = revision;
                    self.view = View::Absent;
                }
            }
            (Ok(revision), _) => {
                let ready = matches!(op, Op::Update { ready: true, .. });
                self.confirmed(revision, ready, sent);
            }
            (Err(failure @ (Failure::Unanswered | Failure::NoResponders(_))), _) => {
                self.silence = failure;
                self.unresolved = Some(self.unresolved.map_or(sent, |first| first.min(sent)));
                if op == Op::Create {
                    self.strays = self.strays.saturating_add(1);
                    self.stray_sent = self.stray_sent.min(sent);
                    self.stray_is_next = true;
                }
                self.view = View::Unknown;
                self.next_op_at = now_ms + RETRY_MS;
            }
            (Err(Failure::Conflict), _) => self.contradicted(op, effects),
            (Err(failure), Op::Create) => self.not_created(failure, effects),
            (Err(_), Op::Delete { .. }) => self.end(self.stopped(false), effects),
            (Err(_), Op::Update { .. } | Op::Read) => {
                // After a failed renewal the row must be read; the lease itself has not expired
                // yet.
                self.view = View::Unknown;
                self.next_op_at = now_ms + RETRY_MS;
            }
        }
    }

    fn confirmed(&mut self, revision: u64, ready: bool, sent: i64) {
        self.unresolved = None;
        self.stray_is_next = false;
        if revision >= self.seen {
            self.seen = revision;
            self.view = View::Own { revision, ready };
            self.valid_until = sent + self.ttl_ms;
            self.renew_at = sent + self.renew_ms;
        }
    }

    /// The key is not what the write expected. Unless the watch has already shown why, serving
    /// stops and the row is read.
    fn contradicted(&mut self, op: Op, effects: &mut Vec<Effect>) {
        let expected = match op {
            Op::Update { expected, .. } | Op::Delete { expected } => expected,
            Op::Create | Op::Read => self.seen,
        };
        if self.seen <= expected {
            self.quiet(effects);
            self.view = View::Unknown;
        }
    }

    fn not_created(&mut self, failure: Failure, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Running => self.end(Exit::Lost(failure), effects),
            Phase::Stopping { .. } => self.view = View::Absent,
            Phase::Idle | Phase::Claiming { .. } | Phase::Ended => {
                self.end(Exit::Claim(failure), effects);
            }
        }
    }

    pub(super) fn read(
        &mut self,
        result: Result<Reading, Failure>,
        now_ms: i64,
        effects: &mut Vec<Effect>,
    ) {
        let Some(asked) = self.pending.take_if(|p| p.op == Op::Read) else {
            return;
        };
        match result {
            Ok(_) if asked.stale => {}
            Ok(Reading { found, created }) => {
                let stands = !matches!(found, Found::Absent { .. });
                if created != self.created || (stands && found.revision() < asked.seen) {
                    self.created = created;
                    self.replaced(now_ms, effects);
                }
                self.answered(&found, now_ms);
            }
            Err(failure @ (Failure::Unanswered | Failure::NoResponders(_))) => {
                self.silence = failure;
                self.next_op_at = now_ms + RETRY_MS;
            }
            Err(Failure::Conflict) => self.next_op_at = now_ms + RETRY_MS,
            Err(failure) => match self.phase {
                Phase::Claiming { .. } => self.end(Exit::Claim(failure), effects),
                Phase::Running if !self.serving => self.end(Exit::Lost(failure), effects),
                _ => self.next_op_at = now_ms + RETRY_MS,
            },
        }
    }

    /// Applies the answer to a read, unless the watch was faster and has shown something newer.
    fn answered(&mut self, found: &Found, now_ms: i64) {
        let question = matches!(self.view, View::Unknown | View::Garbled { ours: false, .. });
        let revision = found.revision();
        match found {
            _ if !question => {}
            Found::Absent { .. } => {
                self.seen = self.seen.max(revision);
                self.view = View::Absent;
                self.valid_until = i64::MIN;
            }
            _ if revision < self.seen => {}
            Found::Row { row, .. } if self.is_own(row) => self.adopt(revision, row.ready),
            Found::Row { row, .. } => {
                self.seen = revision;
                self.view = View::Foreign { holder: row.holder.clone(), since: row.since };
            }
            Found::Garbled { .. } => {
                let ours = self.garbage_is_ours(now_ms);
                self.seen = revision;
                self.view = View::Garbled { revision, ours };
                if !ours {
                    self.next_op_at = now_ms + RETRY_MS;
                }
            }
        }
    }

    pub(super) fn watched(&mut self, found: &Found, now_ms: i64, effects: &mut Vec<Effect>) {
        let revision = found.revision();
        if revision <= self.seen {
            return;
        }
        self.next_op_at = self.next_op_at.min(now_ms);
        match found {
            Found::Row { row, .. } if self.is_own(row) => self.adopt(revision, row.ready),
            Found::Garbled { .. } if self.garbage_is_ours(now_ms) => {
                self.seen = revision;
                self.view = View::Garbled { revision, ours: true };
            }
            Found::Row { .. } | Found::Garbled { .. } | Found::Absent { .. } => {
                // Serving stops first; then the row is read (LSE-6).
                self.seen = revision;
                self.quiet(effects);
                self.view = View::Unknown;
                self.valid_until = i64::MIN;
            }
        }
    }

    fn is_own(&self, row: &LeaseRow) -> bool {
        row.holder == self.me && row.incarnation == self.incarnation
    }

    /// Whether garbage seen now must have replaced this run's own row: that had not expired, so
    /// nobody else can have created one.
    fn garbage_is_ours(&self, now_ms: i64) -> bool {
        self.phase == Phase::Running && now_ms < self.valid_until
    }

    /// An own row that no answer confirmed. If its revision is new, a write without an answer has
    /// been stored, no earlier than the oldest such write was sent. That settles the unanswered
    /// updates, because the revision they expect is gone, but never a create, which may be stored
    /// whenever the key is free. If the revision is known, all those writes may still be in flight.
    fn adopt(&mut self, revision: u64, ready: bool) {
        if revision > self.seen {
            let flying = self.pending.filter(|p| p.op != Op::Read);
            let stray = (self.strays > 0).then_some(self.stray_sent);
            let sent = [self.unresolved, stray, flying.map(|p| p.sent)];
            if let Some(sent) = sent.into_iter().flatten().min() {
                self.valid_until = self.valid_until.max(sent + self.ttl_ms);
                self.renew_at = sent + self.renew_ms;
            }
            if flying.is_none() {
                self.unresolved = None;
                let stray = std::mem::take(&mut self.stray_is_next);
                self.strays = self.strays.saturating_sub(u8::from(stray));
                if self.strays == 0 {
                    self.stray_sent = i64::MAX;
                }
            }
            self.seen = revision;
        }
        self.view = View::Own { revision, ready };
    }
}
