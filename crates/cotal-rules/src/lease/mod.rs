//! The keeper of the single-flight lease (LSE-1 to LSE-9).
//!
//! Purpose: decide, from what the bucket says, whether this process serves its space. The shell
//! performs one bucket operation at a time, answers each exactly once, passes watch events on, and
//! asks [`LeaseKeeper::may_serve`] before each piece of work.
//!
//! Invariants, checked over every interleaving of two and three daemons in `tests/lease`:
//! - A daemon serves only while its own row cannot have expired: the broker counts the row's age
//!   from when it stored it, the keeper from before it sent it. A process that was paused and wakes
//!   up late therefore finds that it may not serve, whatever it believed.
//! - A write names the revision of a row that is provably this run's own, so a successor's row is
//!   never touched. A garbled row is tampering, not another holder: it is written back only when
//!   the own lease provably still ran when the garbage was seen.
//! - Nothing but a live row keeps a wanted space unserved: whatever fails is asked again, or the
//!   process exits and says why.

mod learn;
#[cfg(test)]
mod tests;
mod types;

use cotal_wire::Principal;
use cotal_wire::rows::LeaseRow;

pub use types::{Effect, Exit, Failure, Found, Input, Reading};

/// How long a question that was not answered waits before it is asked again, in milliseconds.
const RETRY_MS: i64 = 1_000;
/// Renewals that fit into the row's lifetime.
const RENEWALS: i64 = 3;
/// How long a stop waits for the answers that a release needs, counted from the signal or, during
/// a redial, from the drop; in milliseconds (LSE-7).
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
    /// It must be read.
    Unknown,
    /// There is none.
    Absent,
    /// It is this run's own.
    Own { revision: u64, ready: bool },
    /// It is another's.
    Foreign { holder: Principal, since: i64 },
    /// It is no lease; `ours` when it provably replaced the own row.
    Garbled { revision: u64, ours: bool },
}

/// An operation that was not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pending {
    op: Op,
    /// When it was sent.
    sent: i64,
    /// The newest revision that was seen then: the leader's answer cannot be older, unless the
    /// store has lost what it had confirmed.
    seen: u64,
    /// The bucket was found to be another one meanwhile, so the answer may be about either.
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
    /// When the bucket was created whose revisions `seen` counts.
    created: String,
    /// The newest revision of the key that was seen there, whoever wrote it.
    seen: u64,
    /// The bucket is another one by now; this run only takes its own row out of it.
    replaced: bool,
    /// Until when the own row provably has not expired.
    valid_until: i64,
    /// The operation in flight.
    pending: Option<Pending>,
    /// How the last operation stayed without an answer, for a claim that ends so.
    silence: Failure,
    /// When the oldest write was sent whose outcome is not known.
    unresolved: Option<i64>,
    /// Creates that were never answered and may still be stored, over a key that is free by then.
    strays: u8,
    /// When the first of them was sent.
    stray_sent: i64,
    /// No own row was seen since the last of them, so the next one is that create's.
    stray_is_next: bool,
    serving: bool,
    bound: bool,
    connected: bool,
    dropped_at: i64,
    renew_at: i64,
    /// When the next operation may go out at the earliest.
    next_op_at: i64,
}

impl LeaseKeeper {
    /// A keeper for this process run, whose row will say `since` (Unix milliseconds) and stand in
    /// the bucket that was `created` then. It renews three times in the row's `ttl_ms`, so that two
    /// renewals may fail before the row is lost.
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

    /// Whether work may be done now. Asked before each batch, because time passes between inputs.
    #[must_use]
    pub fn may_serve(&self, now_ms: i64) -> bool {
        self.serving && now_ms < self.valid_until
    }

    /// Until when work may be done, if at all.
    #[must_use]
    pub fn serving_until(&self) -> Option<i64> {
        self.serving.then_some(self.valid_until)
    }

    /// Whether it was told to release and end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. } | Phase::Ended)
    }

    /// Whether the row is known to say `ready`, and rightly so (LSE-8).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.serving && self.bound && matches!(self.view, View::Own { ready: true, .. })
    }

    /// Whether the row in the bucket may say `ready`, as far as it is known.
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

    /// When [`Input::Tick`] is due, if nothing else happens before.
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

    /// Takes an input and says what to do, in this order.
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

    /// Concludes from what is known, then sends the next operation that is due.
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

    /// No row of this run is left, unless a create that was never answered is still on its way.
    fn released(&self) -> Exit {
        self.stopped(self.strays == 0)
    }

    fn stopped(&self, released: bool) -> Exit {
        if self.replaced { Exit::Replaced { released } } else { Exit::Stopped { released } }
    }

    /// Ends over a bucket that is another one now: serving stops, and an own row that was written
    /// into it meanwhile is taken out, so that the next run need not wait for its expiry.
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
