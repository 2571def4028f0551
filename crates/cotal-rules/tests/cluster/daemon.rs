//! The daemon's side of the model: a shell without I/O around the rules.

use std::collections::{BTreeSet, HashSet};

use cotal_rules::membership::{
    Activation, ActivationEnd, Answer, Ask, Inventory, InventoryAnswer, InventoryAsk, Join,
    JoinEnd, Leave, LeaveEnd, RowWrite, Step, Target,
};
use cotal_rules::{Acl, Applied, DenyReason, Directory, Plan, Post, Verdict, plan, verdict};
use cotal_wire::envelope::Reason;
use cotal_wire::names::{member_key, parse_member_key};
use cotal_wire::{Channel, Lifecycle};

use crate::space::{Entry, Space};

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never arrives.
    LostRequest,
    /// It is performed, but the answer is lost.
    LostAnswer,
    /// It arrives late, after the sender has been told that there was no answer.
    Late,
}

/// Most faults during one change. With more it would give up, and leave a row to the next start.
const FAULTS: u8 = 4;

/// A change of a member row in progress: every read and every write is a step of its own, so
/// anything may happen between two of them.
pub(crate) struct Running {
    target: Target,
    machine: Machine,
    faults: u8,
}

enum Machine {
    Join(Join),
    Activation(Activation),
    Leave(Leave),
}

#[derive(Default)]
pub(crate) struct Daemon {
    dir: Directory,
    applied: usize,
    plans: Vec<(u64, Plan)>,
    planned: HashSet<u64>,
    judged: Vec<(usize, Verdict)>,
    taken: HashSet<usize>,
    running: Vec<Running>,
    /// Writes in flight that nobody waits for.
    late: Vec<(Target, RowWrite)>,
    /// Whether it has stopped serving: then it only takes back its own rows.
    closed: bool,
    /// What it released: channel, member, generation, sequence.
    released: Vec<(Channel, Lifecycle, u64, u64)>,
    /// Lifecycles that an inventory fenced on this process.
    fenced: HashSet<Lifecycle>,
    /// The fenced lifecycles whose inventory has been read.
    read: HashSet<Lifecycle>,
}

impl Daemon {
    /// A start reads the latest value of every key, and the history of the garbled ones.
    pub(crate) fn restart(&mut self, space: &Space) {
        *self = Self::default();
        self.dir.apply_channel("=defaults", Some(space.defaults), 1);
        let mut latest = BTreeSet::new();
        for change in space.log.iter().rev() {
            if latest.insert((change.is_acl, change.key.as_str())) {
                self.apply(
                    space,
                    change.is_acl,
                    &change.key,
                    change.value.as_deref(),
                    change.revision,
                );
            }
        }
        self.applied = space.log.len();
    }

    fn apply(&mut self, space: &Space, is_acl: bool, key: &str, value: Option<&[u8]>, rev: u64) {
        let dir = &mut self.dir;
        let applied =
            if is_acl { dir.apply_acl(key, value, rev) } else { dir.apply_member(key, value, rev) };
        if matches!(applied, Applied::Garbled(_)) {
            self.recover(space, is_acl, key);
        }
    }

    fn recover(&mut self, space: &Space, is_acl: bool, key: &str) {
        for old in space.history(is_acl, key) {
            let value = old.value.as_deref().unwrap();
            if is_acl {
                self.dir.recover_acl(key, value, old.revision);
            } else {
                self.dir.recover_member(key, value, old.revision);
            }
        }
    }

    /// Corrects rows that contradict their stream, before anything is served.
    pub(crate) fn correct(&mut self, space: &mut Space) {
        for (channel, member, row) in self.dir.rows_beyond(space.last_seq()) {
            let over = space.read_member(&channel, &member).revision;
            let row = Some(row.to_row(&channel, &member, "w"));
            let write = RowWrite { row, over, is_undo: false };
            space.write_member(&channel, &member, &write).unwrap();
        }
        self.barrier(space);
    }

    /// The freshness barrier: applies everything stored so far.
    pub(crate) fn barrier(&mut self, space: &Space) {
        while let Some(change) = space.log.get(self.applied) {
            self.applied += 1;
            self.apply(space, change.is_acl, &change.key, change.value.as_deref(), change.revision);
        }
    }

    /// Pulls a post and decides its copies; `truth` is called at that moment. A redelivered post is
    /// decided again.
    pub(crate) fn plan_post(
        &mut self,
        space: &Space,
        again: bool,
        truth: &mut dyn FnMut(u64, &Plan),
    ) -> bool {
        let mut waiting = (1..=space.last_seq()).filter(|seq| !space.routed.contains(seq));
        let Some(seq) = waiting.find(|seq| again || !self.planned.contains(seq)) else {
            return false;
        };
        self.barrier(space);
        let post = space.post_at(seq);
        let (sender, channel, mentions) = (&post.sender, &post.channel, &post.mentions);
        let post = Post { seq, sender, channel, mentions };
        let mut decided = plan(post, &self.dir, 0);
        for member in std::mem::take(&mut decided.unsure) {
            self.recover(space, false, &member_key(channel, &member));
            self.dir.history_read(channel, &member);
            decided = plan(post, &self.dir, 0);
        }
        assert!(decided.unsure.is_empty(), "history was read once and is not asked for again");
        truth(seq, &decided);
        self.planned.insert(seq);
        self.plans.push((seq, decided));
        true
    }

    /// Writes the copies of the oldest plan, all or some of them; acks once all are confirmed.
    pub(crate) fn write_plan(&mut self, space: &mut Space, some: Option<usize>) -> bool {
        if self.plans.is_empty() {
            return false;
        }
        let (seq, plan) = self.plans.remove(0);
        let count = some.map_or(plan.copies.len(), |some| some.min(plan.copies.len()));
        for copy in &plan.copies[..count] {
            let channel = space.post_at(seq).channel.clone();
            let (member, reason, generation) = (copy.member.clone(), copy.reason, copy.generation);
            space.store_inbox(Entry { member, channel, seq, reason, generation });
        }
        if count == plan.copies.len() {
            space.routed.insert(seq);
        } else {
            self.planned.remove(&seq);
        }
        true
    }

    /// Pulls an entry and judges it; `truth` is told the verdict at that moment.
    pub(crate) fn judge(
        &mut self,
        space: &Space,
        again: bool,
        truth: &mut dyn FnMut(usize, Verdict),
    ) -> bool {
        let mut waiting = (0..space.inbox.len()).filter(|at| !space.read.contains(at));
        let Some(at) = waiting.find(|at| again || !self.taken.contains(at)) else {
            return false;
        };
        self.barrier(space);
        let entry = &space.inbox[at];
        let ask = |dir: &Directory| {
            let (seq, generation) = (entry.seq, entry.generation);
            verdict(&entry.member, &entry.channel, seq, entry.reason, generation, dir)
        };
        let mut decided = ask(&self.dir);
        if decided == Verdict::Deny(DenyReason::EarlierGeneration) {
            self.recover(space, false, &member_key(&entry.channel, &entry.member));
            decided = ask(&self.dir);
        }
        if decided == Verdict::Leaving {
            return true;
        }
        if decided == Verdict::Release && entry.reason == Reason::DurableChannel {
            let (channel, member) = (entry.channel.clone(), entry.member.clone());
            self.released.push((channel, member, entry.generation, entry.seq));
        }
        self.taken.insert(at);
        self.judged.push((at, decided));
        truth(at, decided);
        true
    }

    /// Carries out the oldest verdict; the ack may be lost.
    pub(crate) fn perform(&mut self, space: &mut Space, lose_ack: bool) -> bool {
        if self.judged.is_empty() {
            return false;
        }
        let (at, decided) = self.judged.remove(0);
        let entry = space.inbox[at].clone();
        if decided == Verdict::Release {
            space.store_dlv(&entry);
        }
        if decided == Verdict::Retired && entry.reason == Reason::DurableChannel {
            space.drop_member(&entry.channel, &entry.member);
        }
        if decided == Verdict::NoAclRow || lose_ack {
            self.taken.remove(&at);
        } else {
            space.read.insert(at);
        }
        true
    }

    /// Whether a change may begin: one change of a row at a time, and none of a fenced lifecycle.
    fn has_turn(&self, member: &Lifecycle) -> bool {
        !self.fenced.contains(member) && !self.is_busy_with(member)
    }

    /// The lifecycles of which a crash now would leave a row without its second ACL read.
    pub(crate) fn unseen(&self) -> impl Iterator<Item = Lifecycle> {
        let unseen = |it: &&Running| match &it.machine {
            Machine::Join(join) => join.may_leave_a_row(),
            Machine::Activation(_) | Machine::Leave(_) => false,
        };
        self.running.iter().filter(unseen).map(|it| it.target.member.clone())
    }

    pub(crate) fn is_busy_with(&self, member: &Lifecycle) -> bool {
        self.running.iter().any(|running| running.target.member == *member)
    }

    fn start(
        &mut self,
        channel: &Channel,
        member: &Lifecycle,
        machine: impl FnOnce(Target) -> Machine,
    ) {
        let (channel, member) = (channel.clone(), member.clone());
        let target = Target { channel, member, writer: "w".to_owned() };
        let machine = machine(target.clone());
        self.running.push(Running { target, machine, faults: 0 });
    }

    pub(crate) fn start_join(&mut self, channel: &Channel, member: &Lifecycle) {
        if self.has_turn(member) && !self.closed {
            self.start(channel, member, |target| Machine::Join(Join::new(target)));
        }
    }

    pub(crate) fn start_leave(&mut self, space: &Space, channel: &Channel, member: &Lifecycle) {
        // A retired lifecycle is refused before anything is read.
        if self.has_turn(member) && !self.closed && !matches!(space.acl(member), Acl::Retired) {
            let row = space.read_member(channel, member).membership;
            let generation = row.map_or(1, |row| row.generation);
            self.start(channel, member, |target| Machine::Leave(Leave::new(target, generation)));
        }
    }

    /// Resumes a join that an earlier daemon left half done, with its second ACL read.
    pub(crate) fn resume(&mut self, space: &Space, channel: &Channel, member: &Lifecycle) {
        let row = space.read_member(channel, member).membership;
        if let Some(row) = row.filter(|row| row.is_open() && !row.activated) {
            let history = space.history(false, &member_key(channel, member));
            let rows = history.iter().rev().filter_map(|change| {
                let row = serde_json::from_slice(change.value.as_deref()?).ok()?;
                Some(cotal_rules::Membership::of(&row, change.revision))
            });
            let mut closed = rows.filter(|it| it.generation < row.generation && !it.is_open());
            let previous = closed.next();
            self.start(channel, member, |target| {
                Machine::Join(Join::resume(target, row, previous))
            });
        }
    }

    /// Makes the lane stop serving, or serve again.
    pub(crate) fn set_closed(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Delivers a write that nobody waits for any more.
    pub(crate) fn arrive(&mut self, space: &mut Space) -> bool {
        let Some((target, write)) = self.late.pop() else { return false };
        space.write_member(&target.channel, &target.member, &write);
        true
    }

    /// Takes the next step of one of the changes in progress.
    pub(crate) fn go_on(&mut self, space: &mut Space, nth: usize, fault: Option<Fault>) -> bool {
        if self.running.is_empty() {
            return false;
        }
        let mut running = self.running.remove(nth % self.running.len());
        let fault = fault.filter(|_| running.faults < FAULTS);
        running.faults += u8::from(fault.is_some());
        let next = self.step(space, running, fault);
        self.running.extend(next);
        true
    }

    fn step(
        &mut self,
        space: &mut Space,
        running: Running,
        fault: Option<Fault>,
    ) -> Option<Running> {
        let Running { target, machine, faults } = running;
        let machine = match machine {
            Machine::Join(mut join) => match join.next() {
                Step::Ask(ask) => {
                    join.answer(self.perform_step(space, &target, ask, fault), 0);
                    Machine::Join(join)
                }
                Step::End(end) => self.joined(space, &target, &end)?,
            },
            Machine::Activation(mut activation) => match activation.next(0) {
                Step::Ask(ask) => {
                    activation.answer(&self.perform_step(space, &target, ask, fault));
                    Machine::Activation(activation)
                }
                Step::End(end) => {
                    assert_ne!(end, ActivationEnd::Evicted, "every window is whole");
                    return None;
                }
            },
            Machine::Leave(mut leave) => match leave.next() {
                Step::Ask(ask) => {
                    let (channel, member) = (&target.channel, &target.member);
                    if ask == Ask::Cursor {
                        self.dir.begin_leave(channel, member);
                    }
                    if let Some(cursor) = leave.cursor() {
                        self.dir.set_leave_cursor(channel, member, cursor);
                    }
                    leave.answer(self.perform_step(space, &target, ask, fault), 0);
                    Machine::Leave(leave)
                }
                Step::End(end) => {
                    self.left(space, &target, &end);
                    return None;
                }
            },
        };
        Some(Running { target, machine, faults })
    }

    /// A stored row is caught up once the watch has applied it.
    fn joined(&mut self, space: &Space, target: &Target, end: &JoinEnd) -> Option<Machine> {
        let JoinEnd::Open { membership, .. } = end else { return None };
        self.barrier(space);
        let activation = Activation::new(target.clone(), membership.clone(), u64::MAX);
        (!membership.activated).then_some(Machine::Activation(activation))
    }

    /// Checks that nothing past the cursor was released during the leave.
    fn left(&mut self, space: &Space, target: &Target, end: &LeaveEnd) {
        let Target { channel, member, .. } = target;
        let written = match end {
            LeaveEnd::Left { revision } => Some(*revision),
            _ => None,
        };
        if let Some(row) =
            space.read_member(channel, member).membership.filter(|_| written.is_some())
            && let Some(cursor) = row.leave_cursor
        {
            let late = self.released.iter().find(|(of, who, generation, seq)| {
                of == channel && who == member && *generation == row.generation && *seq > cursor
            });
            assert_eq!(late, None, "{member:?} left at {cursor}");
        }
        self.dir.end_leave(channel, member, written);
    }

    fn perform_step(
        &mut self,
        space: &mut Space,
        target: &Target,
        ask: Ask,
        fault: Option<Fault>,
    ) -> Answer {
        let Target { channel, member, .. } = target;
        match ask {
            Ask::Write(write) => self.write(space, target, write, fault),
            _ if fault.is_some() => Answer::NoAnswer,
            Ask::Row => Answer::Row(space.read_member(channel, member)),
            Ask::Room => Answer::Room,
            Ask::Cursor => Answer::Cursor(space.last_seq()),
            Ask::Acl => Answer::Acl(space.acls.get(member).cloned()),
            Ask::Window { .. } => Answer::Window { end: space.last_seq(), whole: true },
            Ask::CatchUp { .. } if self.closed => Answer::NotServing,
            Ask::CatchUp { after, until } => {
                self.catch_up(space, target, after, until);
                Answer::CaughtUp
            }
        }
    }

    /// Writes by revision; a conflict starts the change again.
    fn write(
        &mut self,
        space: &mut Space,
        target: &Target,
        write: RowWrite,
        fault: Option<Fault>,
    ) -> Answer {
        let Target { channel, member, .. } = target;
        assert!(!self.read.contains(member), "{member:?} is written after its inventory");
        if self.closed && !write.is_undo {
            return Answer::NotServing;
        }
        match fault {
            Some(Fault::LostRequest) => return Answer::NoAnswer,
            Some(Fault::Late) => {
                self.late.push((target.clone(), write));
                return Answer::NoAnswer;
            }
            Some(Fault::LostAnswer) | None => {}
        }
        let written = space.write_member(channel, member, &write);
        match (fault, written) {
            (Some(_), _) => Answer::NoAnswer,
            (None, Some(revision)) => Answer::Written(revision),
            (None, None) => Answer::Conflict,
        }
    }

    /// Copies the window for the current generation.
    fn catch_up(&mut self, space: &mut Space, target: &Target, after: u64, until: u64) {
        let Target { channel, member, .. } = target;
        let Some(row) = self.dir.membership(channel, member) else { return };
        let generation = row.generation;
        if row.join_cursor != after {
            return;
        }
        for seq in after + 1..=until {
            let post = space.post_at(seq);
            if post.channel == *channel && post.sender != member.principal {
                let (member, channel) = (member.clone(), channel.clone());
                let reason = Reason::DurableChannel;
                space.store_inbox(Entry { member, channel, seq, reason, generation });
            }
        }
    }

    /// An inventory is requested, and begins.
    pub(crate) fn ask_inventory(&mut self, space: &Space, member: &Lifecycle) {
        let asked = Inventory::default();
        assert_eq!(asked.next(), InventoryAsk::Acl);
        if asked.answer(InventoryAnswer::Acl(space.acls.get(member))).next() == InventoryAsk::Fence
        {
            self.fenced.insert(member.clone());
        }
    }

    /// The inventory's read: after the changes that had begun, and with everything applied.
    pub(crate) fn inventory(&mut self, space: &Space, member: &Lifecycle) -> Option<Vec<Channel>> {
        if self.is_busy_with(member) {
            return None;
        }
        if self.fenced.contains(member) {
            self.read.insert(member.clone());
        }
        self.barrier(space);
        let garbled = self.dir.garbled_members().filter_map(parse_member_key);
        let garbled = garbled.filter(|(_, of)| of == member);
        let rows = self.dir.memberships_of(member).into_iter().map(|(channel, _)| channel);
        Some(rows.chain(garbled.map(|(channel, _)| channel)).collect())
    }
}
