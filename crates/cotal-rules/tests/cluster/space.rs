//! The broker's side of the model: the log of posts, two watched buckets, both stores.

use std::collections::{BTreeMap, HashSet};

use cotal_rules::membership::{RowWrite, Stored};
use cotal_rules::{Acl, Membership};
use cotal_wire::envelope::{Reason, dedup_key, dedup_stem};
use cotal_wire::names::member_key;
use cotal_wire::rows::{AclRow, MemberRow};
use cotal_wire::{Channel, Lifecycle, Principal};

pub(crate) struct Post {
    pub(crate) sender: Principal,
    pub(crate) channel: Channel,
    pub(crate) id: String,
    pub(crate) mentions: Vec<String>,
}

/// One write to a watched bucket.
pub(crate) struct MemberChange {
    pub(crate) is_acl: bool,
    pub(crate) key: String,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) revision: u64,
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) member: Lifecycle,
    pub(crate) channel: Channel,
    pub(crate) seq: u64,
    pub(crate) reason: Reason,
    pub(crate) generation: u64,
}

/// One interval that a member really had.
#[derive(Debug, Clone)]
pub(crate) struct Interval {
    pub(crate) channel: Channel,
    pub(crate) member: Lifecycle,
    pub(crate) generation: u64,
    pub(crate) join: u64,
    pub(crate) leave: Option<u64>,
    pub(crate) activated: bool,
}

impl Interval {
    pub(crate) fn holds(&self, seq: u64) -> bool {
        self.join < seq && self.leave.is_none_or(|leave| seq <= leave)
    }
}

#[derive(Default)]
pub(crate) struct Space {
    /// CHAT; the post at sequence `n` is `posts[n - 1]`.
    pub(crate) posts: Vec<Post>,
    /// The space's channel config.
    pub(crate) defaults: &'static [u8],
    /// Both buckets, one revision counter.
    pub(crate) log: Vec<MemberChange>,
    pub(crate) acls: BTreeMap<Lifecycle, AclRow>,
    pub(crate) members: BTreeMap<(Channel, Lifecycle), Membership>,
    pub(crate) intervals: Vec<Interval>,
    /// The highest generation of each key that was closed since the manager last deleted the key.
    left: BTreeMap<(Channel, Lifecycle), u64>,
    /// Posts that `fanout` has acked.
    pub(crate) routed: HashSet<u64>,
    pub(crate) inbox: Vec<Entry>,
    inbox_keys: HashSet<String>,
    /// Entries that `reader` has acked, by index.
    pub(crate) read: HashSet<usize>,
    /// Copies per member, with the sequence of their post; `true` once acked.
    pub(crate) dlv: BTreeMap<Lifecycle, Vec<(u64, bool)>>,
    dlv_keys: HashSet<String>,
}

impl Space {
    pub(crate) fn new(defaults: &'static [u8]) -> Self {
        Self { defaults, ..Self::default() }
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.posts.len() as u64
    }

    pub(crate) fn post_at(&self, seq: u64) -> &Post {
        &self.posts[usize::try_from(seq).unwrap() - 1]
    }

    fn append(&mut self, is_acl: bool, key: String, value: Option<Vec<u8>>) -> u64 {
        let revision = self.log.len() as u64 + 1;
        self.log.push(MemberChange { is_acl, key, value, revision });
        revision
    }

    pub(crate) fn put_acl(&mut self, member: &Lifecycle, row: AclRow) {
        self.append(true, member.dotted(), Some(serde_json::to_vec(&row).unwrap()));
        self.acls.insert(member.clone(), row);
    }

    pub(crate) fn acl(&self, member: &Lifecycle) -> Acl<'_> {
        Acl::of(self.acls.get(member))
    }

    /// Somebody stores a `PubAck` over a row; the row in force does not change.
    pub(crate) fn garble(&mut self, is_acl: bool, key: &str) {
        let there = self.log.iter().any(|change| change.is_acl == is_acl && change.key == key);
        if there {
            let value = br#"{"stream":"CHAT_s","seq":1}"#.to_vec();
            self.append(is_acl, key.to_owned(), Some(value));
        }
    }

    /// The revision of the value stored under a member key.
    fn key_revision(&self, key: &str) -> u64 {
        let last = self.log.iter().rev().find(|change| !change.is_acl && change.key == key);
        last.map_or(0, |change| change.revision)
    }

    /// What a read from the leader finds: the last valid row, with the revision that a write must
    /// replace.
    pub(crate) fn read_member(&self, channel: &Channel, member: &Lifecycle) -> Stored {
        let revision = self.key_revision(&member_key(channel, member));
        let row = self.members.get(&(channel.clone(), member.clone()));
        let membership = row.map(|row| Membership { revision, ..row.clone() });
        Stored { membership, revision }
    }

    /// A compare-and-set; returns the new revision, or none if another one is stored.
    pub(crate) fn write_member(
        &mut self,
        channel: &Channel,
        member: &Lifecycle,
        write: &RowWrite,
    ) -> Option<u64> {
        let key = member_key(channel, member);
        if self.key_revision(&key) != write.over {
            return None;
        }
        let Some(row) = &write.row else {
            return Some(self.remove(channel, member, key));
        };
        let revision = self.append(false, key, Some(serde_json::to_vec(row).unwrap()));
        self.note_interval(row);
        // A rejoin that was refused and taken back never was a membership.
        self.intervals.retain(|held| {
            let same = held.channel == *channel && held.member == *member;
            !same || held.generation <= row.generation
        });
        let place = (channel.clone(), member.clone());
        let left = self.left.entry(place.clone()).or_default();
        if row.leave_cursor.is_some() {
            *left = row.generation.max(*left);
        } else {
            assert!(row.generation > *left, "generation {} is begun again", row.generation);
        }
        self.members.insert(place, Membership::of(row, revision));
        Some(revision)
    }

    fn note_interval(&mut self, row: &MemberRow) {
        let interval = Interval {
            channel: row.channel.clone(),
            member: row.member(),
            generation: row.generation,
            join: row.join_cursor,
            leave: row.leave_cursor,
            activated: row.activated,
        };
        let same = |held: &Interval| {
            held.channel == interval.channel
                && held.member == interval.member
                && held.generation == interval.generation
                && held.join == interval.join
        };
        match self.intervals.iter_mut().rev().find(|held| same(held)) {
            Some(held) => *held = interval,
            None => self.intervals.push(interval),
        }
    }

    /// CHAT loses its last `by` posts, and the copies made of them; returns its last sequence.
    pub(crate) fn fall_back(&mut self, by: usize) -> u64 {
        self.posts.truncate(self.posts.len().saturating_sub(by));
        let last = self.last_seq();
        self.routed.retain(|seq| *seq <= last);
        let read = std::mem::take(&mut self.read);
        let inbox = std::mem::take(&mut self.inbox);
        for (at, entry) in inbox.into_iter().enumerate().filter(|(_, it)| it.seq <= last) {
            if read.contains(&at) {
                self.read.insert(self.inbox.len());
            }
            self.inbox.push(entry);
        }
        // Keys name posts, and the sequences of lost posts are given out again. A copy in DLV
        // belongs to an entry of INBOX.
        self.inbox_keys = self.inbox.iter().filter_map(|entry| self.key_of(entry)).collect();
        self.dlv_keys.retain(|key| self.inbox_keys.contains(key));
        for copies in self.dlv.values_mut() {
            copies.retain(|(seq, _)| *seq <= last);
        }
        for interval in &mut self.intervals {
            interval.join = interval.join.min(last);
            interval.leave = interval.leave.map(|leave| leave.min(last));
        }
        last
    }

    /// The manager's delete, whatever is stored.
    pub(crate) fn drop_member(&mut self, channel: &Channel, member: &Lifecycle) {
        let key = member_key(channel, member);
        if self.read_member(channel, member).membership.is_some() {
            self.left.remove(&(channel.clone(), member.clone()));
            self.remove(channel, member, key);
        }
    }

    /// Every channel on which the lifecycle has a row.
    pub(crate) fn rows_of(&self, member: &Lifecycle) -> Vec<Channel> {
        let own = self.members.keys().filter(|(_, of)| of == member);
        own.map(|(channel, _)| channel.clone()).collect()
    }

    fn remove(&mut self, channel: &Channel, member: &Lifecycle, key: String) -> u64 {
        self.members.remove(&(channel.clone(), member.clone()));
        self.intervals.retain(|held| held.channel != *channel || held.member != *member);
        self.append(false, key, None)
    }

    fn key_of(&self, entry: &Entry) -> Option<String> {
        let post = self.post_at(entry.seq);
        let stem = dedup_stem(&post.id, &post.sender)?;
        Some(dedup_key(&stem, &entry.member, entry.generation))
    }

    pub(crate) fn store_inbox(&mut self, entry: Entry) {
        let key = self.key_of(&entry);
        if key.is_none_or(|key| self.inbox_keys.insert(key)) {
            self.inbox.push(entry);
        }
    }

    pub(crate) fn store_dlv(&mut self, entry: &Entry) {
        let key = self.key_of(entry);
        if key.is_none_or(|key| self.dlv_keys.insert(key)) {
            self.dlv.entry(entry.member.clone()).or_default().push((entry.seq, false));
        }
    }

    /// The last eight values of a key since its last deletion, oldest first, as the bucket keeps
    /// them.
    pub(crate) fn history(&self, is_acl: bool, key: &str) -> Vec<&MemberChange> {
        let of_key = self.log.iter().rev().filter(|c| c.is_acl == is_acl && c.key == key);
        let mut kept: Vec<_> = of_key.take(8).take_while(|c| c.value.is_some()).collect();
        kept.reverse();
        kept
    }
}
