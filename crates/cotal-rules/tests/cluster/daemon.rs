//! The daemon's side of the model: a shell without I/O around the rules.

use std::collections::{BTreeSet, HashSet};

use cotal_rules::membership::{
    ActivateStep, AfterWrite, Change, JoinStep, LeaveStep, Write, activate, after_write, join,
    leave, needs_fence,
};
use cotal_rules::{
    Acl, Applied, DenyReason, Directory, Membership, Plan, Post, Verdict, plan, verdict,
};
use cotal_wire::envelope::Reason;
use cotal_wire::names::{member_key, parse_member_key};
use cotal_wire::{Channel, Lifecycle};

use crate::space::{Entry, Space};

/// A change of a member row that is under way: every read and every write is a step of its own, so
/// anything may happen between two of them.
pub(crate) enum Running {
    /// Row and cursor are read.
    Joining { channel: Channel, member: Lifecycle, current: Option<Membership>, cursor: u64 },
    /// The ACL allows it; the row is to be written.
    Allowed { write: Write },
    /// The row is written; the ACL is to be read once more.
    Written { channel: Channel, member: Lifecycle, generation: u64 },
    /// The ACL does not cover it any more; the row is to be removed.
    Condemned { channel: Channel, member: Lifecycle, generation: u64 },
    /// The row stands; catch-up is to do.
    Standing { channel: Channel, member: Lifecycle, generation: u64 },
    /// Caught up; the row is to be activated.
    Activating { write: Write },
    /// Row and cursor are read; the row is to be closed.
    Leaving { write: Write },
}

impl Running {
    pub(crate) fn member(&self) -> Lifecycle {
        match self {
            Self::Joining { member, .. }
            | Self::Written { member, .. }
            | Self::Condemned { member, .. }
            | Self::Standing { member, .. } => member.clone(),
            Self::Allowed { write } | Self::Activating { write } | Self::Leaving { write } => {
                write.row.member()
            }
        }
    }
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
    /// Lifecycles that an inventory fenced on this process.
    fenced: HashSet<Lifecycle>,
    /// Those of them whose inventory has been read.
    read: HashSet<Lifecycle>,
}

impl Daemon {
    /// A start reads the latest value of every key, and the history of what is garbled.
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

    /// The freshness barrier: everything stored so far is applied.
    pub(crate) fn barrier(&mut self, space: &Space) {
        while let Some(change) = space.log.get(self.applied) {
            self.applied += 1;
            self.apply(space, change.is_acl, &change.key, change.value.as_deref(), change.revision);
        }
    }

    /// Pulls a post and decides its copies; `truth` is told at this very moment. A redelivered post
    /// is decided again.
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

    /// Writes the copies of the oldest plan, all or only some of them; acks once all are confirmed.
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

    /// Pulls an entry and judges it; `truth` is told what was decided at this very moment.
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
        self.taken.insert(at);
        self.judged.push((at, decided));
        truth(at, decided);
        true
    }

    /// Carries the oldest verdict out; the ack may be lost.
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

    /// Whose turn it is: one change of a row at a time, and none of a fenced lifecycle.
    fn has_turn(&self, member: &Lifecycle) -> bool {
        !self.fenced.contains(member) && !self.is_busy_with(member)
    }

    /// Whose rows a crash now leaves without their second look at the ACL.
    pub(crate) fn unseen(&self) -> impl Iterator<Item = Lifecycle> {
        let unseen =
            |r: &&Running| matches!(r, Running::Written { .. } | Running::Condemned { .. });
        self.running.iter().filter(unseen).map(Running::member)
    }

    pub(crate) fn is_busy_with(&self, member: &Lifecycle) -> bool {
        self.running.iter().any(|running| running.member() == *member)
    }

    pub(crate) fn start_join(&mut self, space: &Space, channel: &Channel, member: &Lifecycle) {
        if self.has_turn(member) {
            let current = space.read_member(channel, member);
            let (channel, member, cursor) = (channel.clone(), member.clone(), space.last_seq());
            self.running.push(Running::Joining { channel, member, current, cursor });
        }
    }

    pub(crate) fn start_leave(&mut self, space: &Space, channel: &Channel, member: &Lifecycle) {
        // A retired lifecycle is refused before anything is read.
        if !self.has_turn(member) || matches!(space.acl(member), Acl::Retired) {
            return;
        }
        let current = space.read_member(channel, member);
        let generation = current.as_ref().map_or(1, |row| row.generation);
        let change = Change { channel, member, cursor: space.last_seq(), now_ms: 0, writer: "w" };
        if let LeaveStep::Write(write) = leave(current.as_ref(), generation, change) {
            self.running.push(Running::Leaving { write });
        }
    }

    /// A join that a daemon before this one left half done goes on at its second look at the ACL.
    pub(crate) fn resume(&mut self, space: &Space, channel: &Channel, member: &Lifecycle) {
        let half = space.read_member(channel, member).filter(|r| r.is_open() && !r.activated);
        if let Some(row) = half {
            let (channel, member) = (channel.clone(), member.clone());
            let generation = row.generation;
            self.running.push(Running::Written { channel, member, generation });
        }
    }

    /// Takes the next step of one of the changes under way.
    pub(crate) fn go_on(&mut self, space: &mut Space, nth: usize) -> bool {
        if self.running.is_empty() {
            return false;
        }
        let running = self.running.remove(nth % self.running.len());
        let next = self.step(space, running);
        self.running.extend(next);
        true
    }

    fn step(&mut self, space: &mut Space, running: Running) -> Option<Running> {
        match running {
            Running::Joining { channel, member, current, cursor } => {
                let (channel, member) = (&channel, &member);
                let change = Change { channel, member, cursor, now_ms: 0, writer: "w" };
                match join(current.as_ref(), space.acl(member), change) {
                    JoinStep::Write(write) => Some(Running::Allowed { write }),
                    JoinStep::AlreadyJoined { membership } if !membership.activated => {
                        let (channel, member) = (channel.clone(), member.clone());
                        let generation = membership.generation;
                        Some(Running::Standing { channel, member, generation })
                    }
                    JoinStep::AlreadyJoined { .. } | JoinStep::Refused(_) => None,
                }
            }
            Running::Allowed { write } => {
                self.write(space, &write).then_some(())?;
                let (channel, member) = (write.row.channel.clone(), write.row.member());
                let generation = write.row.generation;
                Some(Running::Written { channel, member, generation })
            }
            Running::Written { channel, member, generation } => {
                Some(match after_write(space.acl(&member), &channel) {
                    AfterWrite::Keep => Running::Standing { channel, member, generation },
                    AfterWrite::Remove(_) => Running::Condemned { channel, member, generation },
                })
            }
            Running::Condemned { channel, member, generation } => {
                // By the revision of whatever a leave made of it meanwhile.
                let row = space.read_member(&channel, &member);
                if let Some(row) = row.filter(|row| row.generation == generation) {
                    space.remove_member(&channel, &member, row.revision);
                }
                None
            }
            Running::Standing { channel, member, generation } => {
                self.catch_up(space, &channel, &member, generation)
            }
            Running::Activating { write } | Running::Leaving { write } => {
                self.write(space, &write);
                None
            }
        }
    }

    /// By revision; a conflict ends the change, and whoever asked for it begins again.
    fn write(&self, space: &mut Space, write: &Write) -> bool {
        let member = write.row.member();
        assert!(!self.read.contains(&member), "{member:?} is written after its inventory");
        space.write_member(write)
    }

    /// Copies (join, fence]. The fence is read after the watch applied the row.
    fn catch_up(
        &mut self,
        space: &mut Space,
        channel: &Channel,
        member: &Lifecycle,
        gen_: u64,
    ) -> Option<Running> {
        self.barrier(space);
        let fence = space.last_seq();
        let row = self.dir.membership(channel, member).cloned()?;
        for seq in row.join_cursor + 1..=fence {
            let post = space.post_at(seq);
            if post.channel == *channel && post.sender != member.principal && row.generation == gen_
            {
                let (member, channel) = (member.clone(), channel.clone());
                let reason = Reason::DurableChannel;
                space.store_inbox(Entry { member, channel, seq, reason, generation: gen_ });
            }
        }
        let current = space.read_member(channel, member);
        let change = Change { channel, member, cursor: fence, now_ms: 0, writer: "w" };
        match activate(current.as_ref(), gen_, change) {
            ActivateStep::Write(write) => Some(Running::Activating { write }),
            ActivateStep::AlreadyActive | ActivateStep::Superseded => None,
        }
    }

    /// An inventory arrives.
    pub(crate) fn ask_inventory(&mut self, space: &Space, member: &Lifecycle) {
        if needs_fence(space.acl(member)) {
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
