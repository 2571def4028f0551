//! A join until its row is stored and confirmed: read, write, read the ACL again, or take the row
//! back.
//!
//! Invariants (MEM-3, INV-3): a row is confirmed only by an ACL read that was made after the row
//! was provably stored. After an unanswered write the row is read, and the same write is made
//! again, until the broker shows this row or another one. A row that is not confirmed is taken back
//! by compare-and-set on its own revision, whether the lane still serves or not, and the row from
//! before a rejoin is restored (MEM-6).

use cotal_wire::rows::MemberRow;

use super::step::{
    Answer, Ask, JoinEnd, MAX_CONFLICTS, MAX_UNANSWERED, RowWrite, Step, Stored, Target,
};
use super::undo::Undo;
use super::{AfterWrite, JoinStep, after_write, join};
use crate::directory::{Acl, Membership};

/// A join in progress.
#[derive(Debug, Clone)]
pub struct Join {
    target: Target,
    phase: Phase,
    conflicts: u8,
}

#[derive(Debug, Clone)]
enum Phase {
    Reading,
    WaitingForRoom(Stored),
    ReadingCursor(Stored),
    ReadingAcl { stored: Stored, cursor: Option<u64> },
    Writing(Attempt),
    Asking(Attempt),
    Confirming { membership: Membership, previous: Option<Membership> },
    Undoing(Undo),
    Ended(JoinEnd),
}

/// A write of the row.
#[derive(Debug, Clone)]
struct Attempt {
    row: MemberRow,
    over: u64,
    previous: Option<Membership>,
    unanswered: u8,
}

impl Attempt {
    /// Whether `membership` is what this attempt wrote, possibly changed by somebody since.
    fn is_of(&self, membership: &Membership) -> bool {
        (membership.generation, membership.join_cursor)
            == (self.row.generation, self.row.join_cursor)
    }
}

impl Join {
    /// A new join.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self { target, phase: Phase::Reading, conflicts: 0 }
    }

    /// Resumes a join that an earlier daemon left half done. It continues with the second read of
    /// the ACL, because nobody knows whether that daemon made it. `previous` is the closed row from
    /// before the join, if the history still has it.
    #[must_use]
    pub fn resume(target: Target, membership: Membership, previous: Option<Membership>) -> Self {
        Self { target, phase: Phase::Confirming { membership, previous }, conflicts: 0 }
    }

    /// The next step.
    #[must_use]
    pub fn next(&self) -> Step<JoinEnd> {
        Step::Ask(match &self.phase {
            Phase::Reading | Phase::Asking(_) => Ask::Row,
            Phase::WaitingForRoom(_) => Ask::Room,
            Phase::ReadingCursor(_) => Ask::Cursor,
            Phase::ReadingAcl { .. } | Phase::Confirming { .. } => Ask::Acl,
            Phase::Writing(attempt) => Ask::Write(RowWrite {
                row: Some(attempt.row.clone()),
                over: attempt.over,
                is_undo: false,
            }),
            Phase::Undoing(undo) => return undo.next(),
            Phase::Ended(end) => return Step::End(end.clone()),
        })
    }

    /// Whether the bucket may hold a row of this join that no ACL read has confirmed.
    #[must_use]
    pub fn may_leave_a_row(&self) -> bool {
        match &self.phase {
            Phase::Asking(_) | Phase::Confirming { .. } | Phase::Undoing(_) => true,
            Phase::Writing(attempt) => attempt.unanswered > 0,
            _ => false,
        }
    }

    /// Whether the row of a failed join may still be in the bucket, because it could not be taken
    /// back.
    #[must_use]
    pub fn left_a_row(&self) -> bool {
        matches!(&self.phase, Phase::Undoing(undo) if undo.gave_up())
    }

    /// Applies the answer to the last step.
    pub fn answer(&mut self, answer: Answer, now_ms: i64) {
        let phase = std::mem::replace(&mut self.phase, Phase::Reading);
        self.phase = match phase {
            Phase::Reading => self.read(answer),
            Phase::WaitingForRoom(stored) => match answer {
                Answer::Room => Phase::ReadingCursor(stored),
                other => stopped(&other),
            },
            Phase::ReadingCursor(stored) => match answer {
                Answer::Cursor(cursor) => Phase::ReadingAcl { stored, cursor: Some(cursor) },
                other => stopped(&other),
            },
            Phase::ReadingAcl { stored, cursor } => match answer {
                Answer::Acl(row) => self.decide(stored, cursor, Acl::of(row.as_ref()), now_ms),
                other => stopped(&other),
            },
            Phase::Writing(attempt) => self.wrote(attempt, &answer),
            Phase::Asking(attempt) => self.found(attempt, answer),
            Phase::Confirming { membership, previous } => {
                self.looked_again(membership, previous, &answer)
            }
            Phase::Undoing(mut undo) => {
                undo.answer(answer);
                Phase::Undoing(undo)
            }
            ended @ Phase::Ended(_) => ended,
        };
    }

    fn read(&self, answer: Answer) -> Phase {
        let Answer::Row(stored) = answer else {
            return stopped(&answer);
        };
        match &stored.membership {
            Some(row) if row.is_open() => Phase::ReadingAcl { stored, cursor: None },
            Some(_) => Phase::WaitingForRoom(stored),
            None => Phase::ReadingCursor(stored),
        }
    }

    fn decide(&self, stored: Stored, cursor: Option<u64>, acl: Acl<'_>, now_ms: i64) -> Phase {
        // Without a cursor the row is open, and then the join writes nothing.
        let change = self.target.change(cursor.unwrap_or_default(), now_ms);
        match join(stored.membership.as_ref(), acl, change) {
            JoinStep::Refused(refusal) => Phase::Ended(JoinEnd::Refused(refusal)),
            JoinStep::AlreadyJoined { membership } => {
                Phase::Ended(JoinEnd::Open { membership, is_new: false })
            }
            JoinStep::Write(write) => Phase::Writing(Attempt {
                row: write.row,
                over: stored.revision,
                previous: stored.membership,
                unanswered: 0,
            }),
        }
    }

    fn wrote(&mut self, mut attempt: Attempt, answer: &Answer) -> Phase {
        match answer {
            Answer::Written(revision) => Phase::Confirming {
                membership: Membership::of(&attempt.row, *revision),
                previous: attempt.previous,
            },
            Answer::Conflict if attempt.unanswered > 0 => Phase::Asking(attempt),
            Answer::Conflict => self.again(),
            Answer::NoAnswer => {
                attempt.unanswered += 1;
                Phase::Asking(attempt)
            }
            // No write of this join was ever sent.
            other if attempt.unanswered == 0 => stopped(other),
            Answer::NotServing => self.take_back(attempt, JoinEnd::NotServing),
            _ => {
                attempt.unanswered += 1;
                Phase::Asking(attempt)
            }
        }
    }

    /// Handles the read after an unanswered write.
    fn found(&mut self, mut attempt: Attempt, answer: Answer) -> Phase {
        let Answer::Row(stored) = answer else {
            attempt.unanswered += 1;
            return if attempt.unanswered < MAX_UNANSWERED {
                Phase::Asking(attempt)
            } else {
                self.take_back(attempt, JoinEnd::Failed)
            };
        };
        match stored.membership {
            Some(row) if attempt.is_of(&row) => {
                Phase::Confirming { membership: row, previous: attempt.previous }
            }
            // The write may still be in flight. The same write is made again, so that one of the
            // two is stored.
            _ if stored.revision == attempt.over && attempt.unanswered < MAX_UNANSWERED => {
                Phase::Writing(attempt)
            }
            _ if stored.revision == attempt.over => self.take_back(attempt, JoinEnd::Failed),
            _ => self.again(),
        }
    }

    fn again(&mut self) -> Phase {
        self.conflicts += 1;
        if self.conflicts < MAX_CONFLICTS { Phase::Reading } else { Phase::Ended(JoinEnd::Busy) }
    }

    /// Writes the row from before once more over the same revision, so that either the write in
    /// flight fails on it, or this write finds what that one stored.
    fn take_back(&self, attempt: Attempt, end: JoinEnd) -> Phase {
        let Attempt { row, over, previous, .. } = attempt;
        let joined = Membership::of(&row, over);
        Phase::Undoing(Undo::new(&self.target, &joined, previous, end))
    }

    fn looked_again(
        &self,
        membership: Membership,
        previous: Option<Membership>,
        answer: &Answer,
    ) -> Phase {
        let end = match answer {
            Answer::Acl(row) => match after_write(Acl::of(row.as_ref()), &self.target.channel) {
                AfterWrite::Keep => {
                    return Phase::Ended(JoinEnd::Open { membership, is_new: true });
                }
                AfterWrite::Remove(refusal) => JoinEnd::Refused(refusal),
            },
            _ => JoinEnd::Failed,
        };
        Phase::Undoing(Undo::new(&self.target, &membership, previous, end))
    }
}

fn stopped(answer: &Answer) -> Phase {
    Phase::Ended(match answer {
        Answer::NotServing => JoinEnd::NotServing,
        _ => JoinEnd::Failed,
    })
}
