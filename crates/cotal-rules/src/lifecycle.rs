//! The life of a lane: claim → watch → bind → serve → withdraw → drain → release.
//!
//! Decides, from the current state of everything, what is to run now. The shell calls
//! [`Lifecycle::look`] whenever something may have changed, and does what the orders say. Input and
//! output are levels, so a call that comes late, or twice, decides the same.
//!
//! Invariants, tested over every order of events:
//! - nothing is watched before the lease is held, nothing is bound before every watch has made its
//!   first scan, and `ready` is not wanted before everything is bound;
//! - a lane that ends withdraws `ready` from its row before its responders go, finishes what it has
//!   pulled or accepted, and only then releases the lease;
//! - the first cause of an end is the one reported, and every end takes a bounded time.

use crate::watchdog::{Link, Watchdog, WatchdogVerdict, Windows};

/// How long the lane waits for the broker to store the row without `ready`, in milliseconds; then
/// the responders go all the same. A working broker answers within a few.
pub const WITHDRAW_MS: i64 = 1_000;
/// How long the components may take to finish what they have pulled or accepted, in milliseconds.
pub const FINISH_MS: i64 = 5_000;

/// The state of the lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Lease {
    /// The claim is not decided yet.
    #[default]
    Claiming,
    /// The row is ours.
    Held,
    /// Serving has stopped until the row is proven to be ours.
    Doubtful,
    /// The keeper has ended: the row was released, was lost, or was never ours.
    Ended,
}

/// The current state of everything.
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
    /// Every watch has made its first scan.
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
    /// Watch the buckets.
    pub follow: bool,
    /// Start the components, in order.
    pub bind: bool,
    /// The row must say `ready`.
    pub want_ready: bool,
    /// Every component must finish what it has pulled or accepted, and end.
    pub finish: bool,
    /// The lease must be released.
    pub release: bool,
    /// The credential has expired and no renewal is proved: report it at once.
    pub say_expired: bool,
}

/// Why a lane ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was told to stop.
    Stopped,
    /// The keeper of the lease ended, and says why.
    Lease,
    /// A step or a component failed, and says why.
    Failed,
    /// The broker or the credential was given up.
    Link(WatchdogVerdict),
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
    /// A lane that has just connected, and has claimed nothing.
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

    /// The longest allowed time between two calls of [`Self::look`], in milliseconds.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        self.watchdog.tick_ms()
    }

    /// Whether start-up was completed once: the broker confirmed that the lane is ready (CRD-3).
    #[must_use]
    pub fn has_served(&self) -> bool {
        self.has_served
    }

    /// Why it ended, once nothing is left to do.
    #[must_use]
    pub fn ended(&self) -> Option<Cause> {
        self.cause.filter(|_| self.phase == Phase::Over)
    }

    /// Takes the current state, and says what is to run.
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

    /// Where the shutdown begins. Without the lease the lane may finish nothing, and without a
    /// broker it can finish nothing.
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
            // Without a connection the row cannot be changed.
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

    fn orders(&self, levels: &Levels, verdict: Option<WatchdogVerdict>) -> Orders {
        let runs = matches!(
            self.phase,
            Phase::Binding | Phase::Serving | Phase::Withdrawing { .. } | Phase::Draining { .. }
        );
        Orders {
            // Components that finish their work still need the view.
            follow: self.has_claimed && self.phase != Phase::Over,
            bind: runs,
            want_ready: self.phase == Phase::Serving && levels.is_bound,
            finish: matches!(self.phase, Phase::Draining { .. } | Phase::Releasing | Phase::Over),
            release: self.phase == Phase::Releasing,
            say_expired: verdict == Some(WatchdogVerdict::AwaitRenewal),
        }
    }
}

/// What ends a lane, the gravest first: without the lease it may do nothing any more.
fn cause(levels: &Levels, verdict: Option<WatchdogVerdict>) -> Option<Cause> {
    let gone = verdict.filter(|verdict| *verdict != WatchdogVerdict::AwaitRenewal);
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
