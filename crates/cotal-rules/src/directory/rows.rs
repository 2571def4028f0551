//! The member rows, by channel and by member, with the earlier intervals that rejoins have
//! replaced.

use std::collections::BTreeMap;

use cotal_wire::limits::HISTORY;

use super::index::slot;
use super::membership::Membership;

/// Earlier generations remembered for one row. The bucket's history holds no more either, and no
/// new generation begins while an older one is needed.
const MAX_PAST: usize = HISTORY as usize;

/// The closed interval of an earlier generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interval {
    generation: u64,
    join_cursor: u64,
    leave_cursor: u64,
    revision: u64,
}

impl Interval {
    fn holds(&self, seq: u64) -> bool {
        self.join_cursor < seq && seq <= self.leave_cursor
    }
}

/// What is known of a row's earlier generations.
#[derive(Debug, Default)]
struct Past {
    intervals: Vec<Interval>,
    /// The bucket's history was read: no more can be learned.
    searched: bool,
}

/// A row. Few members rejoin, so what only those need is boxed.
#[derive(Debug)]
struct Row {
    membership: Membership,
    past: Option<Box<Past>>,
}

/// Which of a member's generations a post belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eligible {
    /// The interval of this generation holds the post.
    In(u64),
    /// An earlier generation may hold it; the bucket's history may still tell.
    Unsure,
}

impl Row {
    fn learn(&mut self, earlier: &Membership) -> bool {
        let Some(leave_cursor) = earlier.leave_cursor else {
            return false;
        };
        if earlier.generation >= self.membership.generation {
            return false;
        }
        let past = &mut self.past.get_or_insert_default().intervals;
        let known = past.iter().position(|p| p.generation == earlier.generation);
        match known {
            Some(index) if past[index].revision >= earlier.revision => return false,
            Some(index) => {
                past.remove(index);
            }
            None if past.len() == MAX_PAST => {
                past.remove(0);
            }
            None => {}
        }
        past.push(Interval {
            generation: earlier.generation,
            join_cursor: earlier.join_cursor,
            leave_cursor,
            revision: earlier.revision,
        });
        past.sort_unstable_by_key(|p| p.generation);
        true
    }

    fn past_holds(&self, generation: u64, seq: u64) -> Option<bool> {
        let past = &self.past.as_deref()?.intervals;
        let interval = past.iter().find(|p| p.generation == generation)?;
        Some(interval.holds(seq))
    }

    fn eligible(&self, seq: u64) -> Option<Eligible> {
        let row = &self.membership;
        if row.holds(seq) {
            return Some(Eligible::In(row.generation));
        }
        if row.generation <= 1 || seq > row.join_cursor {
            return None;
        }
        let Some(past) = self.past.as_deref() else {
            return Some(Eligible::Unsure);
        };
        if let Some(interval) = past.intervals.iter().find(|p| p.holds(seq)) {
            return Some(Eligible::In(interval.generation));
        }
        let complete = past.searched || past.intervals.len() as u64 >= row.generation - 1;
        (!complete).then_some(Eligible::Unsure)
    }
}

/// Member rows under interned channels and members.
#[derive(Debug, Default)]
pub(super) struct Rows {
    by_channel: Vec<BTreeMap<u32, Row>>,
    by_member: Vec<Vec<u32>>,
    len: usize,
}

impl Rows {
    fn row(&self, channel: u32, member: u32) -> Option<&Row> {
        self.by_channel.get(channel as usize)?.get(&member)
    }

    fn row_mut(&mut self, channel: u32, member: u32) -> Option<&mut Row> {
        self.by_channel.get_mut(channel as usize)?.get_mut(&member)
    }

    pub(super) fn get(&self, channel: u32, member: u32) -> Option<&Membership> {
        self.row(channel, member).map(|row| &row.membership)
    }

    pub(super) fn past_holds(
        &self,
        channel: u32,
        member: u32,
        generation: u64,
        seq: u64,
    ) -> Option<bool> {
        self.row(channel, member)?.past_holds(generation, seq)
    }

    pub(super) fn put(&mut self, channel: u32, member: u32, membership: Membership) {
        let rows = slot(&mut self.by_channel, channel);
        if let Some(row) = rows.get_mut(&member) {
            let replaced = std::mem::replace(&mut row.membership, membership);
            if row.membership.generation < replaced.generation {
                // A refused rejoin was taken back, or the row was removed and created again:
                // earlier generations must be read from the bucket's history.
                row.past = None;
            } else if !row.learn(&replaced) && row.membership.generation > replaced.generation {
                // The closing row was never seen, so the earlier generations found so far are not
                // all.
                row.past.get_or_insert_default().searched = false;
            }
            return;
        }
        let past = None;
        rows.insert(member, Row { membership, past });
        slot(&mut self.by_member, member).push(channel);
        self.len += 1;
    }

    /// Adds an earlier generation's interval from the bucket's history.
    pub(super) fn learn(&mut self, channel: u32, member: u32, earlier: &Membership) -> bool {
        self.row_mut(channel, member).is_some_and(|row| row.learn(earlier))
    }

    /// Notes that the row's whole history was read.
    pub(super) fn searched(&mut self, channel: u32, member: u32) {
        if let Some(row) = self.row_mut(channel, member) {
            row.past.get_or_insert_default().searched = true;
        }
    }

    pub(super) fn remove(&mut self, channel: u32, member: u32) -> bool {
        let rows = self.by_channel.get_mut(channel as usize);
        let gone = rows.is_some_and(|rows| rows.remove(&member).is_some());
        if gone {
            slot(&mut self.by_member, member).retain(|held| *held != channel);
            self.len -= 1;
        }
        gone
    }

    pub(super) fn of_channel(&self, channel: u32) -> impl Iterator<Item = (u32, &Membership)> {
        let rows = self.by_channel.get(channel as usize).into_iter().flatten();
        rows.map(|(member, row)| (*member, &row.membership))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u32, u32, &Membership)> {
        (0..).zip(&self.by_channel).flat_map(|(channel, rows)| {
            rows.iter().map(move |(member, row)| (channel, *member, &row.membership))
        })
    }

    pub(super) fn eligible(&self, channel: u32, seq: u64) -> impl Iterator<Item = (u32, Eligible)> {
        let rows = self.by_channel.get(channel as usize).into_iter().flatten();
        rows.filter_map(move |(member, row)| Some((*member, row.eligible(seq)?)))
    }

    pub(super) fn of_member(&self, member: u32) -> impl Iterator<Item = (u32, &Membership)> {
        let channels = self.by_member.get(member as usize).into_iter().flatten();
        channels.filter_map(move |&channel| Some((channel, self.get(channel, member)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
