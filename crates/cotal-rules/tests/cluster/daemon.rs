//! The daemon's side of the model: a shell without I/O around the rules.

use std::collections::{BTreeSet, HashSet};

use cotal_rules::membership::{
    ActivateStep, AfterWrite, Change, JoinStep, LeaveStep, activate, after_write, join, leave,
};
use cotal_rules::{Applied, DenyReason, Directory, Plan, Post, Verdict, plan, verdict};
use cotal_wire::envelope::Reason;
use cotal_wire::names::member_key;
use cotal_wire::{Channel, Lifecycle};

use crate::space::{Entry, Space};

/// A join that is under way.
pub(crate) enum Joining {
    /// The row is written; the ACL is to be read once more.
    Written { channel: Channel, member: Lifecycle, generation: u64, revision: u64 },
    /// The row stands; catch-up and activation are to do.
    Standing { channel: Channel, member: Lifecycle, generation: u64 },
}

#[derive(Default)]
pub(crate) struct Daemon {
    dir: Directory,
    applied: usize,
    plans: Vec<(u64, Plan)>,
    planned: HashSet<u64>,
    judged: Vec<(usize, Verdict)>,
    taken: HashSet<usize>,
    joins: Vec<Joining>,
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
        if decided == Verdict::Release {
            let entry = space.inbox[at].clone();
            space.store_dlv(&entry);
        }
        if decided == Verdict::NoAclRow || lose_ack {
            self.taken.remove(&at);
        } else {
            space.read.insert(at);
        }
        true
    }

    pub(crate) fn start_join(&mut self, space: &mut Space, channel: &Channel, member: &Lifecycle) {
        let current = space.read_member(channel, member);
        let cursor = space.last_seq();
        let change = Change { channel, member, cursor, now_ms: 0, writer: "w" };
        let (channel, member) = (channel.clone(), member.clone());
        match join(current.as_ref(), space.acl(&member), change) {
            JoinStep::Write(write) => {
                if space.write_member(&write) {
                    let generation = write.row.generation;
                    let revision = space.log.len() as u64;
                    self.joins.push(Joining::Written { channel, member, generation, revision });
                }
            }
            JoinStep::AlreadyJoined { membership } if !membership.activated => {
                let generation = membership.generation;
                self.joins.push(Joining::Standing { channel, member, generation });
            }
            JoinStep::AlreadyJoined { .. } | JoinStep::Refused(_) => {}
        }
    }

    pub(crate) fn continue_join(&mut self, space: &mut Space) -> bool {
        if self.joins.is_empty() {
            return false;
        }
        match self.joins.remove(0) {
            Joining::Written { channel, member, generation, revision } => {
                match after_write(space.acl(&member), &channel) {
                    AfterWrite::Keep => {
                        self.joins.push(Joining::Standing { channel, member, generation });
                    }
                    AfterWrite::Remove(_) => space.remove_member(&channel, &member, revision),
                }
            }
            Joining::Standing { channel, member, generation } => {
                self.catch_up(space, &channel, &member, generation);
            }
        }
        true
    }

    /// Copies (join, fence] and activates. The fence is read after the watch applied the row.
    fn catch_up(&mut self, space: &mut Space, channel: &Channel, member: &Lifecycle, gen_: u64) {
        self.barrier(space);
        let fence = space.last_seq();
        let Some(row) = self.dir.membership(channel, member).cloned() else {
            return;
        };
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
        if let ActivateStep::Write(write) = activate(current.as_ref(), gen_, change) {
            space.write_member(&write);
        }
    }

    pub(crate) fn leave(&mut self, space: &mut Space, channel: &Channel, member: &Lifecycle) {
        let current = space.read_member(channel, member);
        let generation = current.as_ref().map_or(1, |row| row.generation);
        let cursor = space.last_seq();
        let change = Change { channel, member, cursor, now_ms: 0, writer: "w" };
        if let LeaveStep::Write(write) = leave(current.as_ref(), generation, change) {
            assert!(space.write_member(&write), "nothing ran in between");
        }
    }
}
