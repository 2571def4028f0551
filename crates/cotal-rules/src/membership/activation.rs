//! An activation: copy the posts of the window, prove that none was missing, and mark the row.
//!
//! Invariant (MEM-7): a row is marked as activated only after every post of its window was copied,
//! and no post of the window was gone before or after. If one was, the row is closed.

use super::step::{Answer, Ask, MAX_UNANSWERED, RowWrite, Step, Stored, Target};
use super::{ActivateStep, CloseStep, activate, close_evicted};
use crate::directory::Membership;

/// How an activation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationEnd {
    /// Every post since the join cursor is copied, and the row says so.
    Durable,
    /// CHAT may have discarded a post of the window: the row is closed.
    Evicted,
    /// A leave, a newer join or a removal came between.
    Superseded,
    /// The lane stopped serving, so the daemon that serves next resumes the join.
    NotServing,
    /// The broker refused or did not answer; the shell knows what it said.
    Failed,
}

/// An activation in progress.
#[derive(Debug, Clone)]
pub struct Activation {
    target: Target,
    membership: Membership,
    /// The last post that fan-out planned without the row.
    routed: u64,
    phase: Phase,
    repeated: u8,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    ReadingWindow,
    CatchingUp { until: u64 },
    ReadingWindowAgain,
    Writing(Mark),
    Asking(Mark),
    Ended(ActivationEnd),
}

/// What the row must say.
#[derive(Debug, Clone, Copy)]
enum Mark {
    Activated,
    Closed,
}

impl Activation {
    /// The activation of an open row. Fan-out itself copies every post after `routed`.
    #[must_use]
    pub fn new(target: Target, membership: Membership, routed: u64) -> Self {
        Self { target, membership, routed, phase: Phase::ReadingWindow, repeated: 0 }
    }

    /// The next step.
    #[must_use]
    pub fn next(&self, now_ms: i64) -> Step<ActivationEnd> {
        let after = self.membership.join_cursor;
        Step::Ask(match self.phase {
            Phase::ReadingWindow | Phase::ReadingWindowAgain => Ask::Window { after },
            Phase::CatchingUp { until } => Ask::CatchUp { after, until },
            Phase::Writing(mark) => match self.write(mark, now_ms) {
                Some(write) => Ask::Write(write),
                None => return Step::End(ActivationEnd::Superseded),
            },
            Phase::Asking(_) => Ask::Row,
            Phase::Ended(end) => return Step::End(end),
        })
    }

    fn write(&self, mark: Mark, now_ms: i64) -> Option<RowWrite> {
        let row = &self.membership;
        let change = self.target.change(row.join_cursor, now_ms);
        let write = match mark {
            Mark::Activated => match activate(Some(row), row.generation, change) {
                ActivateStep::Write(write) => write,
                ActivateStep::AlreadyActive | ActivateStep::Superseded => return None,
            },
            Mark::Closed => match close_evicted(Some(row), row.generation, change) {
                CloseStep::Write(write) => write,
                CloseStep::Superseded => return None,
            },
        };
        Some(RowWrite { row: Some(write.row), over: row.revision, is_undo: false })
    }

    /// Applies the answer to the last step.
    pub fn answer(&mut self, answer: &Answer) {
        self.phase = match (self.phase, answer) {
            // A closed row holds no post, so nothing may be copied for it: the window is checked
            // before the catch-up, too.
            (Phase::ReadingWindow, Answer::Window { end, whole: true }) => {
                Phase::CatchingUp { until: self.routed.min(*end) }
            }
            (Phase::CatchingUp { .. }, Answer::CaughtUp) => Phase::ReadingWindowAgain,
            // Posts that came during catch-up may have pushed out some that it had not read.
            (Phase::ReadingWindowAgain, Answer::Window { whole: true, .. }) => {
                Phase::Writing(Mark::Activated)
            }
            (Phase::ReadingWindow | Phase::ReadingWindowAgain, Answer::Window { .. }) => {
                Phase::Writing(Mark::Closed)
            }
            (Phase::Writing(Mark::Activated), Answer::Written(_)) => {
                Phase::Ended(ActivationEnd::Durable)
            }
            (Phase::Writing(Mark::Closed), Answer::Written(_)) => {
                Phase::Ended(ActivationEnd::Evicted)
            }
            (Phase::Writing(mark), Answer::Conflict) => Phase::Asking(mark),
            (Phase::Writing(mark) | Phase::Asking(mark), Answer::NoAnswer) => {
                self.again(Phase::Asking(mark))
            }
            (Phase::Asking(mark), Answer::Row(stored)) => self.found(mark, stored),
            (ended @ Phase::Ended(_), _) => ended,
            (_, Answer::NotServing) => Phase::Ended(ActivationEnd::NotServing),
            _ => Phase::Ended(ActivationEnd::Failed),
        };
    }

    fn again(&mut self, next: Phase) -> Phase {
        self.repeated += 1;
        let goes_on = self.repeated < MAX_UNANSWERED;
        if goes_on { next } else { Phase::Ended(ActivationEnd::Failed) }
    }

    /// Handles the read after a conflict or an unanswered write.
    fn found(&mut self, mark: Mark, stored: &Stored) -> Phase {
        let generation = self.membership.generation;
        let row = stored.membership.as_ref().filter(|row| row.generation == generation);
        let Some(row) = row else {
            return Phase::Ended(ActivationEnd::Superseded);
        };
        match (mark, row.is_open(), row.activated) {
            (_, true, true) => Phase::Ended(ActivationEnd::Durable),
            (_, true, false) => {
                // Unchanged, or written back by somebody over garbage.
                self.membership = row.clone();
                self.again(Phase::Writing(mark))
            }
            (Mark::Closed, false, _) => Phase::Ended(ActivationEnd::Evicted),
            (Mark::Activated, false, _) => Phase::Ended(ActivationEnd::Superseded),
        }
    }
}
