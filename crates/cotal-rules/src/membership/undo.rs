//! Takes back the row of a join that was not confirmed.
//!
//! Only the join's own revision is replaced. If somebody has changed the row since, the ACL is read
//! again, and the row is removed only if the ACL still refuses it, because a leave closes a row
//! without reading the ACL. A row that was activated in the meantime was confirmed by another
//! daemon, and stays.

use cotal_wire::rows::MemberRow;

use super::step::{Answer, Ask, JoinEnd, MAX_UNANSWERED, RowWrite, Step, Stored, Target};
use super::{AfterWrite, after_write};
use crate::directory::{Acl, Membership};

/// The removal of an unconfirmed row.
#[derive(Debug, Clone)]
pub(super) struct Undo {
    target: Target,
    generation: u64,
    join_cursor: u64,
    /// The row to restore; `None` is a deletion.
    restored: Option<MemberRow>,
    phase: Phase,
    failed: u8,
    end: JoinEnd,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Writing {
        over: u64,
    },
    Reading {
        over: u64,
    },
    ReadingAcl {
        over: u64,
    },
    Ended,
    /// The broker refused, or did not answer, too often.
    GaveUp,
}

impl Undo {
    /// Takes `joined` back by its revision; `previous` is the row from before it.
    pub(super) fn new(
        target: &Target,
        joined: &Membership,
        previous: Option<Membership>,
        end: JoinEnd,
    ) -> Self {
        let restored = match previous {
            Some(previous) => Some(target.row(&previous)),
            None if joined.generation == 1 => None,
            // The history no longer has the row from before. This one stays, to keep the
            // generation, with an interval that holds no post.
            None => Some(
                target
                    .row(&Membership { leave_cursor: Some(joined.join_cursor), ..joined.clone() }),
            ),
        };
        Self {
            target: target.clone(),
            generation: joined.generation,
            join_cursor: joined.join_cursor,
            restored,
            phase: Phase::Writing { over: joined.revision },
            failed: 0,
            end,
        }
    }

    pub(super) fn next(&self) -> Step<JoinEnd> {
        Step::Ask(match self.phase {
            Phase::Writing { over } => {
                Ask::Write(RowWrite { row: self.restored.clone(), over, is_undo: true })
            }
            Phase::Reading { .. } => Ask::Row,
            Phase::ReadingAcl { .. } => Ask::Acl,
            Phase::Ended | Phase::GaveUp => return Step::End(self.end.clone()),
        })
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        self.phase = match (self.phase, answer) {
            (Phase::Writing { .. }, Answer::Written(_)) => Phase::Ended,
            (Phase::Writing { over }, Answer::Conflict) => Phase::Reading { over },
            (Phase::Reading { over }, Answer::Row(stored)) => self.found(over, &stored),
            (Phase::ReadingAcl { over }, Answer::Acl(row)) => {
                match after_write(Acl::of(row.as_ref()), &self.target.channel) {
                    AfterWrite::Keep => Phase::Ended,
                    AfterWrite::Remove(_) => Phase::Writing { over },
                }
            }
            // An ACL that cannot be read confirms nothing.
            (Phase::ReadingAcl { over }, _) => self.again(Phase::Writing { over }),
            (Phase::Writing { over } | Phase::Reading { over }, _) => {
                self.again(Phase::Reading { over })
            }
            (ended @ (Phase::Ended | Phase::GaveUp), _) => ended,
        };
    }

    /// Whether the row may still be in the bucket.
    pub(super) fn gave_up(&self) -> bool {
        matches!(self.phase, Phase::GaveUp)
    }

    fn again(&mut self, next: Phase) -> Phase {
        self.failed += 1;
        if self.failed < MAX_UNANSWERED { next } else { Phase::GaveUp }
    }

    fn found(&self, over: u64, stored: &Stored) -> Phase {
        let own = stored.membership.as_ref().is_some_and(|row| {
            (row.generation, row.join_cursor) == (self.generation, self.join_cursor)
                && !row.activated
        });
        if stored.revision == over {
            return Phase::Writing { over };
        }
        if own { Phase::ReadingAcl { over: stored.revision } } else { Phase::Ended }
    }
}
