//! The member rows, by channel and by member.

use std::collections::BTreeMap;

use super::index::slot;
use super::membership::Membership;

/// Earlier generations remembered for one row; the bucket's history holds no more either.
const MAX_PAST: usize = 8;

/// The closed interval of an earlier generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Past {
    generation: u64,
    join_cursor: u64,
    leave_cursor: u64,
    revision: u64,
}

/// A row, with the intervals that rejoins have replaced. Few members rejoin, so those are boxed.
#[derive(Debug)]
struct Row {
    membership: Membership,
    #[expect(
        clippy::box_collection,
        reason = "8 bytes instead of 24 in each of 100,000 rows"
    )]
    past: Option<Box<Vec<Past>>>,
}

impl Row {
    fn learn(&mut self, earlier: &Membership) -> bool {
        let Some(leave_cursor) = earlier.leave_cursor else {
            return false;
        };
        if earlier.generation >= self.membership.generation {
            return false;
        }
        let past = self.past.get_or_insert_default();
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
        past.push(Past {
            generation: earlier.generation,
            join_cursor: earlier.join_cursor,
            leave_cursor,
            revision: earlier.revision,
        });
        past.sort_unstable_by_key(|p| p.generation);
        true
    }

    fn past_holds(&self, generation: u64, seq: u64) -> Option<bool> {
        let past = self.past.as_deref()?;
        let past = past.iter().find(|p| p.generation == generation)?;
        Some(past.join_cursor < seq && seq <= past.leave_cursor)
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
                // The row was removed and made anew: its generations count from the start.
                row.past = None;
            } else {
                row.learn(&replaced);
            }
            return;
        }
        let past = None;
        rows.insert(member, Row { membership, past });
        slot(&mut self.by_member, member).push(channel);
        self.len += 1;
    }

    /// Takes an earlier generation's interval from the bucket's history.
    pub(super) fn learn(&mut self, channel: u32, member: u32, earlier: &Membership) -> bool {
        self.by_channel
            .get_mut(channel as usize)
            .and_then(|rows| rows.get_mut(&member))
            .is_some_and(|row| row.learn(earlier))
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

    pub(super) fn of_member(&self, member: u32) -> impl Iterator<Item = (u32, &Membership)> {
        let channels = self.by_member.get(member as usize).into_iter().flatten();
        channels.filter_map(move |&channel| Some((channel, self.get(channel, member)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
