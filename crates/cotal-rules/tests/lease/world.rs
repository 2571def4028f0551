//! A broker with one key and several daemons, small enough to explore every state.
//!
//! Time passes in whole units of [`UNIT`] while nobody has anything to do; within a unit every
//! order is tried. The broker may expire a row any time after its end, an operation may be lost
//! before or after it was performed, a process may be paused for any time, and operations of a
//! process that stopped waiting, was paused or was killed may still arrive any time later.

use std::collections::VecDeque;

use cotal_rules::lease::{Effect, Exit, Failure, Found, Input, LeaseKeeper, Reading};
use cotal_wire::Principal;
use cotal_wire::rows::LeaseRow;

pub(crate) const UNIT: i64 = 1_000;
/// Renewals are due at a third of it.
pub(crate) const TTL: i64 = 2 * UNIT;

/// A process run; a restart is another.
pub(crate) type Run = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Row {
        run: Run,
        ready: bool,
    },
    /// Garbage, over the row of `run` if there was one.
    Garbage {
        over: Option<Run>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    pub(crate) value: Value,
    revision: u8,
    at: i64,
}

/// An operation in flight to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Create { run: Run },
    Update { run: Run, ready: bool, revision: u8 },
    Delete { run: Run, revision: u8 },
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Written(Result<u8, ()>),
    Unanswered { read: bool },
    Read(Option<(Value, u8)>, u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Daemon {
    pub(crate) run: Run,
    pub(crate) keeper: LeaseKeeper,
    pub(crate) started: bool,
    pub(crate) ended: Option<Exit>,
    pub(crate) killed: bool,
    pub(crate) told_to_stop: bool,
    pub(crate) paused: bool,
    pub(crate) to_bind: bool,
    pub(crate) op: Option<Op>,
    pub(crate) answer: Option<Answer>,
    watch: VecDeque<Watched>,
}

/// What a watch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Watched {
    Value(Option<Value>, u8),
    /// The bucket was replaced.
    Recreated,
}

/// Faults that one exploration may still inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) left: u8,
    pub(crate) pause: bool,
    pub(crate) lose: bool,
    pub(crate) garble: bool,
    pub(crate) stop: bool,
    pub(crate) kill: bool,
    /// The bucket is deleted and created again. In the model, a write that names a revision of the
    /// old bucket never matches one of the new bucket. A real broker could not tell equal numbers
    /// apart, so here the model is kinder than the broker.
    pub(crate) recreate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) row: Option<Stored>,
    revision: u8,
    bucket: u8,
    pub(crate) daemons: Vec<Daemon>,
    /// Operations that their sender no longer waits for.
    pub(crate) late: Vec<Op>,
    pub(crate) faults: Faults,
    next_run: Run,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Advance,
    Expire,
    Start(usize),
    Arrive(usize),
    LoseRequest(usize),
    LoseAnswer(usize),
    Answer(usize),
    Watch(usize),
    Bind(usize),
    Tick(usize),
    Pause(usize),
    Resume(usize),
    Stop(usize),
    Kill(usize),
    Late(usize),
    Garble,
    Recreate,
}

fn principal(run: Run) -> Principal {
    Principal::new("local", &format!("d{run}")).unwrap()
}

fn row_of(run: Run, ready: bool) -> LeaseRow {
    LeaseRow { holder: principal(run), incarnation: run.to_string(), since: 0, ready }
}

fn found(value: Option<Value>, revision: u8) -> Found {
    let revision = u64::from(revision);
    match value {
        None => Found::Absent { revision },
        Some(Value::Row { run, ready }) => Found::Row { row: row_of(run, ready), revision },
        Some(Value::Garbage { .. }) => Found::Garbled { revision },
    }
}

fn small(revision: u64) -> u8 {
    u8::try_from(revision).unwrap()
}

fn keeper(run: Run, bucket: u8) -> LeaseKeeper {
    LeaseKeeper::new(principal(run), run.to_string(), 0, TTL, bucket.to_string())
}

impl Daemon {
    fn new(run: Run) -> Self {
        Self {
            run,
            keeper: keeper(run, 0),
            started: false,
            ended: None,
            killed: false,
            told_to_stop: false,
            paused: false,
            to_bind: false,
            op: None,
            answer: None,
            watch: VecDeque::new(),
        }
    }

    /// Whether it has not been told yet that its bucket is gone; until then it cannot know.
    pub(crate) fn is_deceived(&self) -> bool {
        self.watch.contains(&Watched::Recreated)
    }

    /// Whether an operation names a revision of the bucket that is gone.
    fn is_missing(&self, op: Op) -> bool {
        self.is_deceived() && matches!(op, Op::Update { .. } | Op::Delete { .. })
    }

    pub(crate) fn lives(&self) -> bool {
        self.started && self.ended.is_none() && !self.killed
    }

    /// Whether nothing is waiting for this process, so that time may pass. What takes longer than a
    /// unit is a fault: a lost answer, or a paused process.
    fn rests(&self, now: i64) -> bool {
        let due = self.keeper.deadline().is_some_and(|due| due <= now);
        let waits = self.op.is_some() || self.answer.is_some() || !self.watch.is_empty();
        !self.lives() || self.paused || !(due || waits || self.to_bind)
    }
}

impl World {
    pub(crate) fn new(daemons: u8, faults: Faults) -> Self {
        Self {
            now: 0,
            row: None,
            revision: 0,
            bucket: 0,
            daemons: (0..daemons).map(Daemon::new).collect(),
            late: Vec::new(),
            faults,
            next_run: daemons,
        }
    }

    /// Gives a keeper an input and performs its effects.
    fn give(&mut self, at: usize, input: Input) {
        let daemon = &mut self.daemons[at];
        for effect in daemon.keeper.on(input, self.now) {
            let run = daemon.run;
            let op = match effect {
                Effect::Create(row) => {
                    assert_eq!(row, row_of(run, false), "a new row is not ready");
                    Op::Create { run }
                }
                Effect::Update { row, revision } => {
                    let serves = daemon.keeper.may_serve(self.now) && !daemon.to_bind;
                    assert!(!row.ready || serves, "ready before the responders are bound");
                    Op::Update { run, ready: row.ready, revision: small(revision) }
                }
                Effect::Delete { revision } => Op::Delete { run, revision: small(revision) },
                Effect::Read => Op::Read,
                Effect::Serve => {
                    daemon.to_bind = true;
                    continue;
                }
                Effect::StopServing => {
                    daemon.to_bind = false;
                    continue;
                }
                Effect::Exit(exit) => {
                    daemon.ended = Some(exit);
                    continue;
                }
            };
            assert!(daemon.op.is_none() && daemon.answer.is_none(), "one operation at a time");
            daemon.op = Some(op);
        }
        if !self.daemons[at].lives() {
            self.bury(at);
        }
    }

    /// Operations that a dead process had sent may still arrive.
    fn bury(&mut self, at: usize) {
        let daemon = &mut self.daemons[at];
        let op = daemon.op.take().filter(|op| *op != Op::Read);
        self.late.extend(op);
        daemon.answer = None;
        daemon.watch.clear();
        daemon.to_bind = false;
        daemon.paused = false;
    }

    fn store(&mut self, value: Option<Value>) -> u8 {
        self.revision += 1;
        let (revision, at) = (self.revision, self.now);
        self.row = value.map(|value| Stored { value, revision, at });
        for daemon in self.daemons.iter_mut().filter(|daemon| daemon.lives()) {
            daemon.watch.push_back(Watched::Value(value, revision));
        }
        revision
    }

    /// The broker performs an operation. A write may only replace its writer's own row.
    fn perform(&mut self, op: Op) -> Answer {
        let current = self.row.map(|row| row.revision);
        let own = |run: Run, value: Value| match value {
            Value::Row { run: holder, .. } => holder == run,
            Value::Garbage { over } => over == Some(run),
        };
        match op {
            Op::Read => Answer::Read(self.row.map(|row| (row.value, row.revision)), self.bucket),
            Op::Create { run } if current.is_none() => {
                Answer::Written(Ok(self.store(Some(Value::Row { run, ready: false }))))
            }
            Op::Update { run, ready, revision } if current == Some(revision) => {
                let replaced = self.row.unwrap().value;
                assert!(own(run, replaced), "run {run} overwrote {replaced:?}");
                Answer::Written(Ok(self.store(Some(Value::Row { run, ready }))))
            }
            Op::Delete { run, revision } if current == Some(revision) => {
                let gone = self.row.unwrap().value;
                assert!(matches!(gone, Value::Row { run: holder, .. } if holder == run));
                Answer::Written(Ok(self.store(None)))
            }
            Op::Create { .. } | Op::Update { .. } | Op::Delete { .. } => Answer::Written(Err(())),
        }
    }

    /// Every action that may happen now.
    pub(crate) fn actions(&self, horizon: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        let faults = self.faults;
        if self.now < horizon && self.daemons.iter().all(|daemon| daemon.rests(self.now)) {
            actions.push(Action::Advance);
        }
        if self.expirable() {
            actions.push(Action::Expire);
        }
        for (at, daemon) in self.daemons.iter().enumerate() {
            if !daemon.started {
                actions.push(Action::Start(at));
            }
            if !daemon.lives() {
                continue;
            }
            if daemon.op.is_some() {
                actions.push(Action::Arrive(at));
                if faults.left > 0 && faults.lose {
                    actions.extend([Action::LoseRequest(at), Action::LoseAnswer(at)]);
                }
            }
            if faults.left > 0 {
                if faults.kill {
                    actions.push(Action::Kill(at));
                }
                if faults.stop && !daemon.told_to_stop && !daemon.paused {
                    actions.push(Action::Stop(at));
                }
                if faults.pause && !daemon.paused {
                    actions.push(Action::Pause(at));
                }
            }
            if daemon.paused {
                actions.push(Action::Resume(at));
                continue;
            }
            if daemon.answer.is_some() {
                actions.push(Action::Answer(at));
            }
            if !daemon.watch.is_empty() {
                actions.push(Action::Watch(at));
            }
            if daemon.to_bind {
                actions.push(Action::Bind(at));
            }
            if daemon.keeper.deadline().is_some_and(|due| due <= self.now) {
                actions.push(Action::Tick(at));
            }
        }
        actions.extend((0..self.late.len()).map(Action::Late));
        if faults.left > 0 && faults.garble && self.row.is_some() {
            actions.push(Action::Garble);
        }
        if faults.left > 0 && faults.recreate {
            actions.push(Action::Recreate);
        }
        actions
    }

    pub(crate) fn expirable(&self) -> bool {
        self.row.is_some_and(|row| self.now >= row.at + TTL)
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each thing that can happen")]
    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Advance => self.now += UNIT,
            Action::Expire => {
                self.store(None);
            }
            Action::Start(at) => {
                let row = self.row.map(|row| Watched::Value(Some(row.value), row.revision));
                self.daemons[at].started = true;
                self.daemons[at].keeper = keeper(self.daemons[at].run, self.bucket);
                self.daemons[at].watch.extend(row);
                self.give(at, Input::Start);
            }
            Action::Arrive(at) => {
                let op = self.daemons[at].op.take().unwrap();
                let answer = self.daemons[at].is_missing(op).then_some(Answer::Written(Err(())));
                let answer = answer.unwrap_or_else(|| self.perform(op));
                self.daemons[at].answer = Some(answer);
            }
            Action::LoseRequest(at) => {
                self.faults.left -= 1;
                let op = self.daemons[at].op.take().unwrap();
                let arrives = op != Op::Read && !self.daemons[at].is_missing(op);
                self.late.extend(arrives.then_some(op));
                self.daemons[at].answer = Some(Answer::Unanswered { read: op == Op::Read });
            }
            Action::LoseAnswer(at) => {
                self.faults.left -= 1;
                let op = self.daemons[at].op.take().unwrap();
                if !self.daemons[at].is_missing(op) {
                    self.perform(op);
                }
                self.daemons[at].answer = Some(Answer::Unanswered { read: op == Op::Read });
            }
            Action::Answer(at) => {
                let answer = self.daemons[at].answer.take().unwrap();
                self.give(at, input(answer));
            }
            Action::Watch(at) => {
                let input = match self.daemons[at].watch.pop_front().unwrap() {
                    Watched::Value(value, revision) => Input::Watch(found(value, revision)),
                    Watched::Recreated => {
                        let daemon = &mut self.daemons[at];
                        if daemon
                            .op
                            .take_if(|op| !matches!(op, Op::Create { .. } | Op::Read))
                            .is_some()
                        {
                            daemon.answer = Some(Answer::Written(Err(())));
                        }
                        Input::Recreated
                    }
                };
                self.give(at, input);
            }
            Action::Bind(at) => {
                self.daemons[at].to_bind = false;
                self.give(at, Input::Bound);
            }
            Action::Tick(at) => self.give(at, Input::Tick),
            Action::Pause(at) => {
                self.faults.left -= 1;
                self.daemons[at].paused = true;
            }
            Action::Resume(at) => self.daemons[at].paused = false,
            Action::Stop(at) => {
                self.faults.left -= 1;
                self.daemons[at].told_to_stop = true;
                self.give(at, Input::Stop);
            }
            Action::Kill(at) => {
                self.faults.left -= 1;
                self.daemons[at].killed = true;
                self.bury(at);
            }
            Action::Late(index) => {
                let op = self.late.remove(index);
                self.perform(op);
            }
            Action::Garble => {
                self.faults.left -= 1;
                let over = match self.row.unwrap().value {
                    Value::Row { run, .. } => Some(run),
                    Value::Garbage { over } => over,
                };
                self.store(Some(Value::Garbage { over }));
            }
            Action::Recreate => self.recreate(),
        }
    }

    fn recreate(&mut self) {
        self.faults.left -= 1;
        (self.row, self.revision) = (None, 0);
        self.bucket += 1;
        self.late.clear();
        for daemon in self.daemons.iter_mut().filter(|daemon| daemon.lives()) {
            daemon.watch.clear();
            daemon.watch.push_back(Watched::Recreated);
            if let Some(op) = daemon.op.take() {
                daemon.answer = Some(Answer::Unanswered { read: op == Op::Read });
            }
        }
    }

    /// A host reopens a lane that closed without being asked to.
    pub(crate) fn reopen(&mut self, at: usize) {
        let run = self.next_run;
        self.next_run += 1;
        self.daemons[at] = Daemon::new(run);
    }
}

fn input(answer: Answer) -> Input {
    match answer {
        Answer::Written(Ok(revision)) => Input::Written(Ok(u64::from(revision))),
        Answer::Written(Err(())) => Input::Written(Err(Failure::Conflict)),
        Answer::Unanswered { read: false } => Input::Written(Err(Failure::Unanswered)),
        Answer::Unanswered { read: true } => Input::Read(Err(Failure::Unanswered)),
        // A marker is gone after a second, so an absence carries no revision.
        Answer::Read(row, bucket) => {
            let absent = Found::Absent { revision: 0 };
            let found = row.map_or(absent, |(value, revision)| found(Some(value), revision));
            Input::Read(Ok(Reading { found, created: bucket.to_string() }))
        }
    }
}
