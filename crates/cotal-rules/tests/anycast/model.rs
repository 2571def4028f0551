//! TASK, one row, the notices, two holders, and the daemon's programs.

use std::collections::BTreeSet;

use cotal_rules::anycast::{
    Caller, CancelStep, Finish, FinishStep, Observed, Record, Request, SweepStep, Take, TakeStep,
    cancel, finish, marked, owed, sweep, take,
};
use cotal_rules::membership::Expect;
use cotal_wire::rows::{Outcome, RequestResult, RequestRow, RequestState};
use cotal_wire::{Principal, Role};

const CREATED: [&str; 3] = ["2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z", "2025-01-03T00:00:00Z"];

/// How many more of each event may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) takes: u8,
    pub(crate) deliveries: u8,
    pub(crate) cancels: u8,
    pub(crate) crashes: u8,
    pub(crate) recreations: u8,
    pub(crate) results: u8,
}

/// A row, small enough to hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Row {
    stream: usize,
    cancelled: bool,
    holder: usize,
    delivery: u64,
    notified: bool,
    gone: bool,
    finished: bool,
    revision: u64,
}

/// A copy that a holder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Copy_ {
    holder: usize,
    stream: usize,
    delivery: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Job {
    Take(Copy_),
    Finish(Copy_),
    Cancel,
    Sweep,
}

/// The next step of one of the daemon's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    /// It reads next.
    Read,
    /// It has read the stream's incarnation, the request if it is stored, and the row.
    Decided {
        stream: usize,
        stands: bool,
        row: Option<Row>,
    },
    /// It sends the row's notice next, then marks it.
    Send {
        row: Row,
        before: Option<Row>,
    },
    Mark {
        row: Row,
    },
    /// It deletes the request next, if the stream is still this one.
    Delete {
        stream: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Program {
    job: Job,
    at: At,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    budget: Budget,
    stream: usize,
    stands: bool,
    deliveries: u64,
    row: Option<Row>,
    history: Vec<Row>,
    revision: u64,
    /// Notices in effect, by id, with their kind.
    notices: BTreeSet<(String, String)>,
    programs: Vec<Program>,
    /// Copies that a holder has pulled and has not taken yet.
    buffered: Vec<Copy_>,
    /// Copies whose take was granted; their holder reads the creation time again next.
    granted: Vec<Copy_>,
    shown: BTreeSet<(usize, u64, usize)>,
    cancelled: BTreeSet<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Deliver { holder: usize },
    Ask(usize),
    Finish(usize),
    Cancel,
    Step(usize),
    Crash(usize),
    Show(usize),
    Recreate,
}

fn who(n: usize) -> Principal {
    Principal::new("local", &format!("h{n}")).unwrap()
}

fn alice() -> Principal {
    Principal::new("local", "alice").unwrap()
}

fn request() -> Request {
    Request { role: Role::parse("r").unwrap(), sender: alice() }
}

impl Row {
    fn wire(&self) -> RequestRow {
        let taken = !self.cancelled;
        RequestRow {
            seq: 1,
            stream_created: CREATED[self.stream].into(),
            role: request().role,
            sender: alice(),
            state: if taken { RequestState::Taken } else { RequestState::Cancelled },
            holder: taken.then(|| who(self.holder)),
            delivery: taken.then_some(self.delivery),
            at: 1,
            notified: self.notified,
            gone: i64::from(self.gone),
            result: self.finished.then(|| RequestResult {
                outcome: Outcome::Done,
                parts: Vec::new(),
                at: 1,
            }),
        }
    }

    fn of(row: &RequestRow) -> Self {
        let holder = row.holder.as_ref().map_or("0", |holder| &holder.actor()[1..]);
        Self {
            stream: CREATED.iter().position(|created| *created == row.stream_created).unwrap(),
            cancelled: row.state == RequestState::Cancelled,
            holder: holder.parse().unwrap(),
            delivery: row.delivery.unwrap_or_default(),
            notified: row.notified,
            gone: row.gone > 0,
            finished: row.is_finished(),
            revision: 0,
        }
    }

    fn record(&self) -> Record {
        Record { row: self.wire(), revision: self.revision }
    }
}

impl Model {
    pub(crate) fn new(budget: Budget) -> Self {
        Self {
            budget,
            stream: 0,
            stands: true,
            deliveries: 0,
            row: None,
            history: Vec::new(),
            revision: 0,
            notices: BTreeSet::new(),
            programs: Vec::new(),
            buffered: Vec::new(),
            granted: Vec::new(),
            shown: BTreeSet::new(),
            cancelled: BTreeSet::new(),
        }
    }

    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.stands && self.budget.deliveries > 0 {
            actions.extend([0, 1].map(|holder| Action::Deliver { holder }));
        }
        if self.budget.takes > 0 {
            actions.extend((0..self.buffered.len()).map(Action::Ask));
        }
        if self.budget.results > 0 {
            actions.extend((0..self.buffered.len()).map(Action::Finish));
        }
        if self.budget.cancels > 0 {
            actions.push(Action::Cancel);
        }
        if self.budget.recreations > 0 {
            actions.push(Action::Recreate);
        }
        for at in 0..self.programs.len() {
            actions.push(Action::Step(at));
            if self.budget.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        actions.extend((0..self.granted.len()).map(Action::Show));
        actions
    }

    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Deliver { holder } => {
                self.budget.deliveries -= 1;
                self.deliveries += 1;
                let (stream, delivery) = (self.stream, self.deliveries);
                self.buffered.push(Copy_ { holder, stream, delivery });
            }
            Action::Ask(at) => {
                self.budget.takes -= 1;
                // The holder keeps the copy, so a take may be replayed.
                let job = Job::Take(self.buffered[at]);
                self.programs.push(Program { job, at: At::Read });
            }
            Action::Finish(at) => {
                self.budget.results -= 1;
                let job = Job::Finish(self.buffered[at]);
                self.programs.push(Program { job, at: At::Read });
            }
            Action::Cancel => {
                self.budget.cancels -= 1;
                self.programs.push(Program { job: Job::Cancel, at: At::Read });
            }
            Action::Step(at) => self.step(at),
            Action::Crash(at) => {
                self.budget.crashes -= 1;
                self.programs.remove(at);
            }
            Action::Show(at) => {
                let copy = self.granted.remove(at);
                if copy.stream == self.stream {
                    self.shown.insert((copy.stream, copy.delivery, copy.holder));
                }
            }
            Action::Recreate => {
                self.budget.recreations -= 1;
                self.stream += 1;
                self.stands = true;
                self.deliveries = 0;
            }
        }
    }

    fn step(&mut self, index: usize) {
        let program = self.programs[index];
        let next = match program.at {
            At::Read => {
                let (stream, stands, row) = (self.stream, self.stands, self.row);
                Some(At::Decided { stream, stands, row })
            }
            At::Decided { stream, stands, row } => self.decide(program.job, stream, stands, row),
            At::Send { row, before } => {
                if let Some(notice) = owed(&row.wire(), before.map(|row| row.wire()).as_ref()) {
                    self.notices.insert((notice.id, format!("{:?}", notice.kind)));
                }
                Some(At::Mark { row })
            }
            At::Mark { row } => {
                let write = marked(&row.record());
                self.write(&write.row, write.expect);
                self.after_mark(program.job, row)
            }
            At::Delete { stream } => {
                // ANY-7: the stream is not created again between the second read and the delete.
                if stream == self.stream {
                    self.stands = false;
                }
                Some(At::Read)
            }
        };
        match next {
            Some(at) => self.programs[index].at = at,
            None => {
                self.programs.remove(index);
            }
        }
    }

    /// A take that wrote its row is granted once the row is marked; a program that settled another
    /// row starts again.
    fn after_mark(&mut self, job: Job, row: Row) -> Option<At> {
        match job {
            Job::Take(copy)
                if (row.holder, row.delivery, row.stream)
                    == (copy.holder, copy.delivery, copy.stream) =>
            {
                self.granted.push(copy);
                None
            }
            _ => Some(At::Read),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of job")]
    fn decide(&mut self, job: Job, stream: usize, stands: bool, row: Option<Row>) -> Option<At> {
        let (request, record) = (request(), row.map(|row| row.record()));
        let seen = Observed {
            seq: 1,
            created: CREATED[stream],
            request: stands.then_some(&request),
            record: record.as_ref(),
            now_ms: 1,
        };
        let settle = row.map(|row| At::Send { row, before: self.before(row) });
        let alice = alice();
        match job {
            Job::Take(copy) => {
                let holder = who(copy.holder);
                let created = CREATED[copy.stream];
                let ask = Take { holder: &holder, role: None, created, delivery: copy.delivery };
                match take(seen, ask) {
                    TakeStep::Write(write) => {
                        let Some(new) = self.write(&write.row, write.expect) else {
                            return Some(At::Read);
                        };
                        if new.notified {
                            self.granted.push(copy);
                            return None;
                        }
                        Some(At::Send { row: new, before: row })
                    }
                    TakeStep::Settle => settle,
                    TakeStep::Finished => Some(At::Delete { stream }),
                    TakeStep::Taken => {
                        self.granted.push(copy);
                        None
                    }
                    TakeStep::Refused(_) => None,
                }
            }
            Job::Finish(copy) => {
                let holder = who(copy.holder);
                let (created, delivery) = (CREATED[copy.stream], copy.delivery);
                let outcome = Outcome::Done;
                let said = Finish { holder: &holder, created, delivery, outcome, parts: &[] };
                match finish(seen, said) {
                    FinishStep::Write(write) => {
                        self.write(&write.row, write.expect);
                        Some(At::Read)
                    }
                    FinishStep::Settle => settle,
                    FinishStep::Recorded | FinishStep::Refused(_) => None,
                }
            }
            Job::Cancel => match cancel(seen, Caller { principal: &alice, frontier: 0 }, false) {
                CancelStep::Write(write) => {
                    self.write(&write.row, write.expect);
                    Some(At::Read)
                }
                CancelStep::Settle => settle,
                CancelStep::Delete => Some(At::Delete { stream }),
                CancelStep::Cancelled => {
                    self.cancelled.insert(stream);
                    None
                }
                CancelStep::Conflict { .. } | CancelStep::Unknown => None,
            },
            Job::Sweep => match sweep(record.as_ref()?, seen) {
                SweepStep::Notify => settle,
                SweepStep::Delete => Some(At::Delete { stream }),
                SweepStep::Write(write) => {
                    self.write(&write.row, write.expect);
                    Some(At::Read)
                }
                SweepStep::Remove { .. } | SweepStep::Keep => None,
            },
        }
    }

    fn before(&self, row: Row) -> Option<Row> {
        self.history.iter().rev().find(|old| old.revision < row.revision).copied()
    }

    fn write(&mut self, row: &RequestRow, expect: Expect) -> Option<Row> {
        let current = self.row.map(|row| row.revision);
        let matches = match expect {
            Expect::Absent => current.is_none(),
            Expect::Revision(revision) => current == Some(revision),
        };
        matches.then(|| {
            self.revision += 1;
            let row = Row { revision: self.revision, ..Row::of(row) };
            let before = self.row.filter(|before| before.stream == row.stream);
            let unsaid = before.is_some_and(|before| before.finished && !row.finished);
            assert!(!unsaid, "a final result was replaced: {self:#?}");
            self.history.push(row);
            self.row = Some(row);
            row
        })
    }

    /// What must hold in every state.
    pub(crate) fn check(&self) {
        for stream in &self.cancelled {
            let shown = self.shown.iter().any(|(of, ..)| of == stream);
            assert!(!shown, "cancelled and shown: {self:#?}");
        }
        for (stream, delivery, holder) in &self.shown {
            let other =
                self.shown.iter().any(|(s, d, h)| (s, d) == (stream, delivery) && h != holder);
            assert!(!other, "one delivery, two holders: {self:#?}");
        }
    }

    /// Every program ends, a daemon starts and sweeps, and nothing fails any more.
    pub(crate) fn settle(mut self) -> Self {
        self.budget.crashes = 0;
        for _ in 0..2 {
            while !self.programs.is_empty() {
                self.step(0);
            }
            self.programs.push(Program { job: Job::Sweep, at: At::Read });
        }
        while !self.programs.is_empty() {
            self.step(0);
        }
        while !self.granted.is_empty() {
            self.act(Action::Show(0));
        }
        self.check();
        self
    }

    /// Each recorded change of holder was told once, with the right kind, and nothing else was
    /// told.
    pub(crate) fn check_end(&self) {
        let mut want = BTreeSet::new();
        let mut last: Option<Row> = None;
        for row in self.history.iter().filter(|row| !row.cancelled && !row.gone) {
            let known = last.filter(|last| last.stream == row.stream);
            if known.is_none_or(|known| known.holder != row.holder) {
                let kind = if known.is_some() { "Moved" } else { "Taken" };
                let day = row.stream as i64 * 86_400_000 + 1_735_689_600_000;
                want.insert((format!("anycast-{day}-1-{}", row.delivery), kind.to_owned()));
            }
            last = Some(*row);
        }
        assert_eq!(self.notices, want, "{self:#?}");
        let over = |row: &Row| row.stream == self.stream && (row.cancelled || row.finished);
        let over = self.row.is_some_and(|row| over(&row));
        assert!(!over || !self.stands, "cancelled or finished, and still queued: {self:#?}");
    }
}
