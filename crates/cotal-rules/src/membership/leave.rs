//! A leave: read the row and the cursor, write the closed row, and make sure that it is stored.
//!
//! Invariant (RDR-10): the reader releases nothing past a cursor that this leave may still write.
//! So after an unanswered write the same write is made again with the same cursor, until the broker
//! shows this row or another one; only then may a later cursor be read.

use cotal_wire::rows::MemberRow;

use super::step::{Answer, Ask, MAX_CONFLICTS, MAX_UNANSWERED, RowWrite, Step, Stored, Target};
use super::{LeaveStep, Refusal, leave};
use crate::directory::Membership;

/// How a leave ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveEnd {
    /// The row is closed, by this leave, at this revision.
    Left {
        /// The revision of the closed row.
        revision: u64,
    },
    /// Nothing was open.
    AlreadyLeft,
    /// Nothing was written.
    Refused(Refusal),
    /// The row kept changing.
    Busy,
    /// The lane stopped serving, so the daemon that serves now decides.
    NotServing,
    /// The broker refused or did not answer; the shell knows what it said.
    Failed,
}

/// A leave in progress.
#[derive(Debug, Clone)]
pub struct Leave {
    target: Target,
    generation: u64,
    phase: Phase,
    conflicts: u8,
}

#[derive(Debug, Clone)]
enum Phase {
    Reading,
    ReadingCursor(Stored),
    Writing(Attempt),
    Asking(Attempt),
    Ended(LeaveEnd),
}

#[derive(Debug, Clone)]
struct Attempt {
    row: MemberRow,
    over: u64,
    unanswered: u8,
}

impl Leave {
    /// A leave of `generation`.
    #[must_use]
    pub fn new(target: Target, generation: u64) -> Self {
        Self { target, generation, phase: Phase::Reading, conflicts: 0 }
    }

    /// The next step.
    #[must_use]
    pub fn next(&self) -> Step<LeaveEnd> {
        Step::Ask(match &self.phase {
            Phase::Reading | Phase::Asking(_) => Ask::Row,
            Phase::ReadingCursor(_) => Ask::Cursor,
            Phase::Writing(attempt) => Ask::Write(RowWrite {
                row: Some(attempt.row.clone()),
                over: attempt.over,
                is_undo: false,
            }),
            Phase::Ended(end) => return Step::End(end.clone()),
        })
    }

    /// The cursor that this leave is about to write, or may have written.
    #[must_use]
    pub fn cursor(&self) -> Option<u64> {
        match &self.phase {
            Phase::Writing(attempt) | Phase::Asking(attempt) => attempt.row.leave_cursor,
            _ => None,
        }
    }

    /// Applies the answer to the last step.
    pub fn answer(&mut self, answer: Answer, now_ms: i64) {
        let phase = std::mem::replace(&mut self.phase, Phase::Reading);
        self.phase = match phase {
            Phase::Reading => match answer {
                Answer::Row(stored) => self.read(stored, now_ms),
                other => stopped(&other),
            },
            Phase::ReadingCursor(stored) => match answer {
                Answer::Cursor(cursor) => self.decide(&stored, cursor, now_ms),
                other => stopped(&other),
            },
            Phase::Writing(attempt) => self.wrote(attempt, &answer),
            Phase::Asking(attempt) => self.found(attempt, answer),
            ended @ Phase::Ended(_) => ended,
        };
    }

    /// Handles the read of the row. A leave that writes nothing needs no cursor.
    fn read(&self, stored: Stored, now_ms: i64) -> Phase {
        match self.decide(&stored, 0, now_ms) {
            Phase::Writing(_) => Phase::ReadingCursor(stored),
            ended => ended,
        }
    }

    fn decide(&self, stored: &Stored, cursor: u64, now_ms: i64) -> Phase {
        let change = self.target.change(cursor, now_ms);
        match leave(stored.membership.as_ref(), self.generation, change) {
            LeaveStep::Refused(refusal) => Phase::Ended(LeaveEnd::Refused(refusal)),
            LeaveStep::AlreadyLeft => Phase::Ended(LeaveEnd::AlreadyLeft),
            LeaveStep::Write(write) => {
                Phase::Writing(Attempt { row: write.row, over: stored.revision, unanswered: 0 })
            }
        }
    }

    fn wrote(&mut self, mut attempt: Attempt, answer: &Answer) -> Phase {
        match answer {
            Answer::Written(revision) => Phase::Ended(LeaveEnd::Left { revision: *revision }),
            Answer::Conflict if attempt.unanswered == 0 => self.again(),
            Answer::Conflict => Phase::Asking(attempt),
            Answer::NoAnswer => {
                attempt.unanswered += 1;
                Phase::Asking(attempt)
            }
            other => stopped(other),
        }
    }

    fn found(&mut self, mut attempt: Attempt, answer: Answer) -> Phase {
        let Answer::Row(stored) = answer else {
            attempt.unanswered += 1;
            let goes_on = attempt.unanswered < MAX_UNANSWERED;
            return if goes_on { Phase::Asking(attempt) } else { stopped(&answer) };
        };
        if stored.revision == attempt.over {
            let goes_on = attempt.unanswered < MAX_UNANSWERED;
            return if goes_on { Phase::Writing(attempt) } else { stopped(&Answer::NoAnswer) };
        }
        let own = |row: &Membership| {
            row.generation == attempt.row.generation && row.leave_cursor == attempt.row.leave_cursor
        };
        match stored.membership {
            Some(row) if own(&row) => Phase::Ended(LeaveEnd::Left { revision: row.revision }),
            _ => self.again(),
        }
    }

    fn again(&mut self) -> Phase {
        self.conflicts += 1;
        if self.conflicts < MAX_CONFLICTS { Phase::Reading } else { Phase::Ended(LeaveEnd::Busy) }
    }
}

fn stopped(answer: &Answer) -> Phase {
    Phase::Ended(match answer {
        Answer::NotServing => LeaveEnd::NotServing,
        _ => LeaveEnd::Failed,
    })
}
