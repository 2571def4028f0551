//! The life of a lane: claim → watch → bind → serve → withdraw → drain → release.
//!
//! Purpose: decide, from how everything stands, what is to run now. The shell looks whenever
//! something may have changed, and does what the orders say; both sides are levels, so a look that
//! comes late, or twice, decides the same.
//!
//! Invariants, checked over every order of events in the tests:
//! - nothing is watched before the lease is held, nothing bound before everything was scanned, and
//!   `ready` not wanted before everything is bound;
//! - a lane that ends says so in its row before its responders go, finishes what it took in, and
//!   only then releases the lease;
//! - the first cause of an end is the one that is told, and every end comes in bounded time.

use crate::watchdog::{Link, Verdict, Watchdog, Windows};

/// How long the row may take to lose its `ready` before the responders go all the same, in
/// milliseconds; a broker that stores answers within a few.
pub const WITHDRAW_MS: i64 = 1_000;
/// How long what was taken in may take to finish, in milliseconds.
pub const FINISH_MS: i64 = 5_000;

/// How the lease stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Lease {
    /// The claim is not decided.
    #[default]
    Claiming,
    /// The row stands.
    Held,
    /// Serving has stopped until the row is proven.
    Doubtful,
    /// The keeper has ended: the row is released, lost or was never had.
    Ended,
}

/// How everything stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Levels {
    /// The lane was told to stop.
    pub is_told_to_stop: bool,
    /// The resident connection and its credential.
    pub link: Link,
    /// The lease.
    pub lease: Lease,
    /// The broker has confirmed the row that says `ready`.
    pub is_ready: bool,
    /// The row may say `ready`, whether it should or not.
    pub may_say_ready: bool,
    /// Everything that is followed was scanned once.
    pub is_scanned: bool,
    /// Every component runs, and the rails are bound.
    pub is_bound: bool,
    /// A step or a component has failed.
    pub has_failed: bool,
    /// No component runs any more.
    pub is_drained: bool,
}

/// What is to run now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Orders {
    /// Follow the buckets.
    pub follow: bool,
    /// Start the components, in their order.
    pub bind: bool,
    /// The row is to say `ready`.
    pub want_ready: bool,
    /// Every component finishes what it took in, and ends.
    pub finish: bool,
    /// The lease is to be released.
    pub release: bool,
    /// The credential has expired and no renewal was proved: to be said at once.
    pub say_expired: bool,
}

/// Why a lane ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was told to.
    Stopped,
    /// The keeper of the lease ended, and says why.
    Lease,
    /// A step or a component failed, and says why.
    Failed,
    /// The broker or the credential was given up.
    Link(Verdict),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Claiming,
    Scanning,
    Binding,
    Serving,
    Withdrawing { until: i64 },
    Draining { until: i64 },
    Releasing,
    Over,
}

/// The state machine. Times are milliseconds of a clock that never jumps and that runs on while the
/// process is paused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lifecycle {
    phase: Phase,
    watchdog: Watchdog,
    cause: Option<Cause>,
    has_claimed: bool,
    has_served: bool,
}

impl Lifecycle {
    /// A lane whose connection was made just now, and that has claimed nothing.
    #[must_use]
    pub fn new(windows: Windows, now: i64) -> Self {
        let watchdog = Watchdog::new(windows, now);
        Self {
            phase: Phase::Claiming,
            watchdog,
            cause: None,
            has_claimed: false,
            has_served: false,
        }
    }

    /// How often [`Self::look`] is due at least, in milliseconds.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        self.watchdog.tick_ms()
    }

    /// Whether start-up was finished once: the broker had confirmed that the lane is ready (CRD-3).
    #[must_use]
    pub fn has_served(&self) -> bool {
        self.has_served
    }

    /// Why it ended, once nothing is left to do.
    #[must_use]
    pub fn ended(&self) -> Option<Cause> {
        self.cause.filter(|_| self.phase == Phase::Over)
    }

    /// Looks at how everything stands, and says what is to run.
    pub fn look(&mut self, levels: &Levels, now: i64) -> Orders {
        let verdict = self.watchdog.look(levels.link, now);
        if self.cause.is_none()
            && let Some(cause) = cause(levels, verdict)
        {
            self.cause = Some(cause);
            self.phase = self.leave(cause, now);
        }
        while let Some(next) = self.next(levels, now) {
            self.has_claimed |= next == Phase::Scanning;
            self.phase = next;
        }
        self.has_served |= self.phase == Phase::Serving && levels.is_ready;
        self.orders(levels, verdict)
    }

    /// Where the end begins. Without the lease nothing may be finished, and without a broker
    /// nothing can be.
    fn leave(&self, cause: Cause, now: i64) -> Phase {
        match (cause, self.phase) {
            (Cause::Lease, _) => Phase::Over,
            (Cause::Link(_), _) | (_, Phase::Claiming | Phase::Scanning) => Phase::Releasing,
            _ => Phase::Withdrawing { until: now + WITHDRAW_MS },
        }
    }

    fn next(&self, levels: &Levels, now: i64) -> Option<Phase> {
        let drain = Phase::Draining { until: now + FINISH_MS };
        match self.phase {
            Phase::Claiming => (levels.lease == Lease::Held).then_some(Phase::Scanning),
            Phase::Scanning => levels.is_scanned.then_some(Phase::Binding),
            Phase::Binding => levels.is_bound.then_some(Phase::Serving),
            Phase::Serving | Phase::Over => None,
            _ if levels.lease == Lease::Ended => Some(Phase::Over),
            // Without a connection the row stays as it is.
            Phase::Withdrawing { until } => {
                let stays = !levels.link.connected || now >= until;
                (!levels.may_say_ready || stays).then_some(drain)
            }
            Phase::Draining { until } => {
                (levels.is_drained || now >= until).then_some(Phase::Releasing)
            }
            Phase::Releasing => None,
        }
    }

    fn orders(&self, levels: &Levels, verdict: Option<Verdict>) -> Orders {
        let runs = matches!(
            self.phase,
            Phase::Binding | Phase::Serving | Phase::Withdrawing { .. } | Phase::Draining { .. }
        );
        Orders {
            // What is finished still asks what the view knows.
            follow: self.has_claimed && self.phase != Phase::Over,
            bind: runs,
            want_ready: self.phase == Phase::Serving && levels.is_bound,
            finish: matches!(self.phase, Phase::Draining { .. } | Phase::Releasing | Phase::Over),
            release: self.phase == Phase::Releasing,
            say_expired: verdict == Some(Verdict::AwaitRenewal),
        }
    }
}

/// What ends a lane, the gravest first: without the lease it may do nothing any more.
fn cause(levels: &Levels, verdict: Option<Verdict>) -> Option<Cause> {
    let gone = verdict.filter(|verdict| *verdict != Verdict::AwaitRenewal);
    if levels.lease == Lease::Ended {
        Some(Cause::Lease)
    } else if let Some(verdict) = gone {
        Some(Cause::Link(verdict))
    } else if levels.has_failed {
        Some(Cause::Failed)
    } else {
        levels.is_told_to_stop.then_some(Cause::Stopped)
    }
}

#[cfg(test)]
mod tests;
