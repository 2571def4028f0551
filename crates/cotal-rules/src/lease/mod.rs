//! The keeper of the lease of a space (LSE-1 to LSE-9).
//!
//! Decides, from what the bucket shows, whether this process serves its space. The shell performs
//! one bucket operation at a time, reports the answer of each exactly once, passes watch events on,
//! and asks [`LeaseKeeper::may_serve`] before each piece of work.
//!
//! Invariants, tested over every interleaving of two and three daemons in `tests/lease`:
//! - A daemon serves only while its own row cannot have expired: the broker counts the row's age
//!   from when it stored it, the keeper from before it sent it. So a process that was paused and
//!   wakes up late finds that it may not serve, whatever it believed before.
//! - A write names the revision of a row that is provably this run's own, so a successor's row is
//!   never touched. A garbled row is tampering, not another holder: it is written back only if this
//!   run's lease provably had not expired when the garbage was seen.
//! - Only a live row of another daemon keeps a wanted space unserved: after any failure the keeper
//!   asks again, or the process exits and says why.

mod learn;
#[cfg(test)]
mod tests;
mod types;

use cotal_wire::Principal;
use cotal_wire::rows::LeaseRow;

pub use types::{Effect, Exit, Failure, Found, Input, Reading};

/// How long the keeper waits before it repeats an operation that failed or was not answered, in
/// milliseconds.
const RETRY_MS: i64 = 1_000;
/// Renewals within the row's lifetime.
const RENEWALS: i64 = 3;
/// How long a stop waits for the answers that a release needs, in milliseconds: from the signal or,
/// during a redial, from the drop of the connection (LSE-7).
pub const RELEASE_WAIT_MS: i64 = 5_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Claiming { give_up_at: i64 },
    Running,
    Stopping { give_up_at: i64 },
    Ended,
}

/// What is known of the row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum View {
    /// The row must be read.
    Unknown,
    /// There is no row.
    Absent,
    /// The row is this run's own.
    Own { revision: u64, ready: bool },
    /// The row is another daemon's.
    Foreign { holder: Principal, since: i64 },
    /// It cannot be parsed; `ours` if it provably replaced this run's own row.
    Garbled { revision: u64, ours: bool },
}

/// An operation that was not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pending {
    op: Op,
    /// When it was sent.
    sent: i64,
    /// The newest revision seen when it was sent. The leader's answer cannot be older, unless the
    /// store lost data that it had confirmed.
    seen: u64,
    /// Since then the bucket was found to be another one, so the answer may be about either.
    stale: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Create,
    Update { ready: bool, expected: u64 },
    Delete { expected: u64 },
    Read,
}

/// The state machine. Times are milliseconds of a clock that never jumps and that runs on while the
/// process is paused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseKeeper {
    me: Principal,
    incarnation: String,
    since: i64,
    ttl_ms: i64,
    renew_ms: i64,
    phase: Phase,
    view: View,
    /// The creation time of the bucket that `seen` belongs to.
    created: String,
    /// The newest revision of the key seen in that bucket, whoever wrote it.
    seen: u64,
    /// The bucket was replaced by another one; this run now only removes its own row from that.
    replaced: bool,
    /// Until when this run's own row provably has not expired.
    valid_until: i64,
    /// The operation in flight.
    pending: Option<Pending>,
    /// How the last operation failed to get an answer: the reason given if a claim ends because of
    /// it.
    silence: Failure,
    /// When the oldest write with an unknown outcome was sent.
    unresolved: Option<i64>,
    /// Creates that were never answered. They may still be stored, once the key is free.
    strays: u8,
    /// When the first of them was sent.
    stray_sent: i64,
    /// No own row was seen since the last of them, so the next own row is from that create.
    stray_is_next: bool,
    serving: bool,
    bound: bool,
    connected: bool,
    dropped_at: i64,
    renew_at: i64,
    /// The earliest time for the next operation.
    next_op_at: i64,
}

impl LeaseKeeper {
    /// A keeper for this process run. Its row will say `since` (Unix milliseconds), in the bucket
    /// created at `created`. It renews three times within the row's `ttl_ms`, so two renewals may
    /// fail before the row expires.
    #[must_use]
    pub fn new(
        me: Principal,
        incarnation: String,
        since: i64,
        ttl_ms: i64,
        created: String,
    ) -> Self {
        Self {
            me,
            incarnation,
            since,
            ttl_ms,
            renew_ms: ttl_ms / RENEWALS,
            phase: Phase::Idle,
            view: View::Absent,
            created,
            seen: 0,
            replaced: false,
            valid_until: i64::MIN,
            pending: None,
            silence: Failure::Unanswered,
            unresolved: None,
            strays: 0,
            stray_sent: i64::MAX,
            stray_is_next: false,
            serving: false,
            bound: false,
            connected: true,
            dropped_at: 0,
            renew_at: 0,
            next_op_at: i64::MIN,
        }
    }

    /// Whether work may be done now. Ask before each batch, because time passes between inputs.
    #[must_use]
    pub fn may_serve(&self, now_ms: i64) -> bool {
        self.serving && now_ms < self.valid_until
    }

    /// Until when work may be done, if at all.
    #[must_use]
    pub fn serving_until(&self) -> Option<i64> {
        self.serving.then_some(self.valid_until)
    }

    /// Whether it was told to release the lease and end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. } | Phase::Ended)
    }

    /// Whether the row is known to say `ready`, and should (LSE-8).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.serving && self.bound && matches!(self.view, View::Own { ready: true, .. })
    }

    /// Whether the row in the bucket may say `ready`, as far as is known.
    #[must_use]
    pub fn may_say_ready(&self) -> bool {
        match self.view {
            View::Own { ready, .. } => {
                let says = |p: Pending| matches!(p.op, Op::Update { ready: true, .. });
                ready || self.pending.is_some_and(says)
            }
            View::Unknown | View::Garbled { .. } => true,
            View::Absent | View::Foreign { .. } => false,
        }
    }

    /// When [`Input::Tick`] is due, if no other input comes first.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        let give_up = match self.phase {
            Phase::Idle | Phase::Ended => return None,
            Phase::Claiming { give_up_at } | Phase::Stopping { give_up_at } => Some(give_up_at),
            Phase::Running => None,
        };
        let stale = self.serving.then_some(self.valid_until);
        let idle = self.pending.is_none() && self.connected;
        let next = match self.view {
            View::Own { .. } if self.phase == Phase::Running => self.renew_at,
            _ => i64::MIN,
        };
        let next = idle.then_some(next.max(self.next_op_at));
        [give_up, stale, next].into_iter().flatten().min()
    }

    /// Takes an input; returns what to do, in this order.
    pub fn on(&mut self, input: Input, now_ms: i64) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.phase == Phase::Ended {
            return effects;
        }
        if self.serving && now_ms >= self.valid_until {
            self.quiet(&mut effects);
            self.view = View::Unknown;
        }
        match input {
            Input::Start => self.start(now_ms),
            Input::Written(result) => self.written(result, now_ms, &mut effects),
            Input::Read(result) => self.read(result, now_ms, &mut effects),
            Input::Watch(found) => self.watched(&found, now_ms, &mut effects),
            Input::Bound => self.bound = self.serving,
            Input::Quieted => self.bound = false,
            Input::Doubt => self.view = View::Unknown,
            Input::Recreated => self.replaced(now_ms, &mut effects),
            Input::Stop => self.stop(now_ms, &mut effects),
            Input::Disconnected => {
                self.connected = false;
                self.dropped_at = now_ms;
            }
            Input::Connected => self.connected = true,
            Input::Tick => {}
        }
        self.advance(now_ms, &mut effects);
        effects
    }

    fn start(&mut self, now_ms: i64) {
        if self.phase == Phase::Idle {
            let give_up_at = now_ms + self.ttl_ms;
            self.phase = Phase::Claiming { give_up_at };
        }
    }

    fn stop(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        self.quiet(effects);
        match self.phase {
            Phase::Claiming { .. } | Phase::Running => {
                let from = if self.connected { now_ms } else { self.dropped_at };
                let give_up_at = from + RELEASE_WAIT_MS;
                self.phase = Phase::Stopping { give_up_at };
                self.next_op_at = now_ms;
            }
            Phase::Idle => self.end(self.stopped(true), effects),
            Phase::Stopping { .. } | Phase::Ended => {}
        }
    }

    fn quiet(&mut self, effects: &mut Vec<Effect>) {
        self.bound = false;
        if std::mem::take(&mut self.serving) {
            effects.push(Effect::StopServing);
        }
    }

    fn end(&mut self, exit: Exit, effects: &mut Vec<Effect>) {
        if self.phase != Phase::Ended {
            self.quiet(effects);
            self.phase = Phase::Ended;
            effects.push(Effect::Exit(exit));
        }
    }

    /// Ends if what is known says so; otherwise sends the next operation that is due.
    fn advance(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        if let Some(exit) = self.conclusion(now_ms) {
            self.end(exit, effects);
        }
        let own = matches!(self.view, View::Own { .. });
        if own && matches!(self.phase, Phase::Claiming { .. }) {
            self.phase = Phase::Running;
        }
        if self.phase == Phase::Running && own && !self.serving && now_ms < self.valid_until {
            self.serving = true;
            effects.push(Effect::Serve);
        }
        if self.pending.is_some() || !self.connected || now_ms < self.next_op_at {
            return;
        }
        if let Some(op) = self.next_op(now_ms) {
            self.pending = Some(Pending { op, sent: now_ms, seen: self.seen, stale: false });
            effects.push(self.effect(op));
        }
    }

    fn conclusion(&self, now_ms: i64) -> Option<Exit> {
        match (self.phase, &self.view) {
            (Phase::Claiming { .. }, View::Foreign { holder, since }) => {
                Some(Exit::Held { holder: holder.clone(), since: *since })
            }
            (Phase::Claiming { .. }, View::Garbled { .. }) => Some(Exit::Tampered),
            (Phase::Claiming { give_up_at }, _) if now_ms >= give_up_at => {
                Some(Exit::Claim(self.silence.clone()))
            }
            (Phase::Running, View::Foreign { holder, .. }) => {
                Some(Exit::Taken { holder: holder.clone() })
            }
            (Phase::Stopping { give_up_at }, _) if now_ms >= give_up_at => {
                Some(self.stopped(false))
            }
            (
                Phase::Stopping { .. },
                View::Absent | View::Foreign { .. } | View::Garbled { .. },
            ) if self.pending.is_none() => Some(self.released()),
            _ => None,
        }
    }

    /// No row of this run is left, unless an unanswered create may still be stored.
    fn released(&self) -> Exit {
        self.stopped(self.strays == 0)
    }

    fn stopped(&self, released: bool) -> Exit {
        if self.replaced { Exit::Replaced { released } } else { Exit::Stopped { released } }
    }

    /// Ends because the bucket was replaced by another one: serving stops, and a row of this run
    /// that was written into the new bucket is deleted, so that the next run need not wait for its
    /// expiry.
    fn replaced(&mut self, now_ms: i64, effects: &mut Vec<Effect>) {
        self.quiet(effects);
        self.replaced = true;
        if let Some(pending) = &mut self.pending {
            pending.stale = true;
        }
        self.seen = 0;
        self.view = View::Unknown;
        self.valid_until = i64::MIN;
        if matches!(self.phase, Phase::Claiming { .. } | Phase::Running) {
            self.phase = Phase::Stopping { give_up_at: now_ms + RELEASE_WAIT_MS };
            self.next_op_at = now_ms;
        }
    }

    fn next_op(&self, now_ms: i64) -> Option<Op> {
        let ready = self.serving && self.bound;
        match (self.phase, &self.view) {
            (Phase::Idle | Phase::Ended, _) => None,
            (_, View::Unknown) => Some(Op::Read),
            (Phase::Stopping { .. }, &View::Own { revision, .. }) => {
                Some(Op::Delete { expected: revision })
            }
            (Phase::Stopping { .. }, _) => None,
            (_, View::Absent) => Some(Op::Create),
            (_, &View::Own { revision, ready: says }) => {
                let due = now_ms >= self.renew_at || now_ms >= self.valid_until;
                let expected = revision;
                (due || says != ready).then_some(Op::Update { ready, expected })
            }
            (_, &View::Garbled { revision, ours: true }) => {
                let expected = revision;
                Some(Op::Update { ready, expected })
            }
            (_, View::Garbled { ours: false, .. } | View::Foreign { .. }) => Some(Op::Read),
        }
    }

    fn effect(&self, op: Op) -> Effect {
        let row = |ready| LeaseRow {
            holder: self.me.clone(),
            incarnation: self.incarnation.clone(),
            since: self.since,
            ready,
        };
        match op {
            Op::Create => Effect::Create(row(false)),
            Op::Update { ready, expected } => {
                Effect::Update { row: row(ready), revision: expected }
            }
            Op::Delete { expected } => Effect::Delete { revision: expected },
            Op::Read => Effect::Read,
        }
    }
}
