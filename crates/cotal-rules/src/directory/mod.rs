//! The in-memory indexes over members, ACLs, channel configs and presence (`wire.md` §4).
//!
//! A decision looks up what it needs and never scans a bucket. Watches update the indexes in stream
//! order. Invariants: a value that cannot be parsed changes nothing, so the last valid row stays in
//! force; an older revision never replaces a newer one; a tombstone is final; owners that no
//! deployment creates are never added.

mod acl;
mod acls;
mod apply;
mod garbled;
mod index;
mod leaving;
mod membership;
mod presence;
mod rows;
#[cfg(test)]
mod tests;

use cotal_wire::rows::{ChannelConfig, DeliveryClass, MemberState, delivery_class};
use cotal_wire::{Channel, Lifecycle, Principal};
use hashbrown::HashMap;

use crate::positions;

use acls::Acls;
use garbled::Garbled;
use index::Interner;
use leaving::Leaves;
use presence::Presence;
use rows::Rows;

pub use acl::{Acl, Resolved};
pub use membership::{GarbledMember, Membership};
pub(crate) use rows::Eligible;

/// What a watched value changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The row was set.
    Applied,
    /// The row was removed.
    Removed,
    /// It cannot be parsed: the last valid row stays in force. The text says what and why.
    Garbled(String),
    /// Nothing changed: an unknown key, an owner that no deployment creates, or an older revision.
    Ignored,
}

#[derive(Debug)]
struct Config {
    config: ChannelConfig,
    revision: u64,
}

/// The indexes.
#[derive(Debug, Default)]
pub struct Directory {
    lifecycles: Interner<Lifecycle>,
    channels: Interner<Channel>,
    rows: Rows,
    leaves: Leaves,
    acls: Acls,
    configs: HashMap<Channel, Config>,
    defaults: Option<Config>,
    presence: Presence,
    garbled_members: Garbled,
    garbled_acls: Garbled,
    garbled_channels: Garbled,
    garbled_presence: Garbled,
}

/// Channels and their members.
impl Directory {
    /// The delivery class of `channel`, from the one function that resolves it (FAN-7).
    #[must_use]
    pub fn class(&self, channel: &Channel) -> DeliveryClass {
        let defaults = self.defaults.as_ref().map(|held| &held.config);
        delivery_class(self.channel_config(channel), defaults)
    }

    /// The channel's own config, without the defaults.
    #[must_use]
    pub fn channel_config(&self, channel: &Channel) -> Option<&ChannelConfig> {
        self.configs.get(channel).map(|held| &held.config)
    }

    /// Every member row of `channel`, open or closed, in an order to which new ones are appended.
    pub fn members_of(&self, channel: &Channel) -> impl Iterator<Item = (&Lifecycle, &Membership)> {
        let rows = self.channels.get(channel).into_iter();
        rows.flat_map(|channel| self.rows.of_channel(channel))
            .map(|(member, row)| (self.lifecycles.key(member), row))
    }

    /// The members that the post at `seq` belongs to, in any of their generations.
    pub(crate) fn eligible(
        &self,
        channel: &Channel,
        seq: u64,
    ) -> impl Iterator<Item = (&Lifecycle, Eligible)> {
        let rows = self.channels.get(channel).into_iter();
        rows.flat_map(move |channel| self.rows.eligible(channel, seq))
            .map(|(member, eligible)| (self.lifecycles.key(member), eligible))
    }

    /// One member's row on `channel`.
    #[must_use]
    pub fn membership(&self, channel: &Channel, member: &Lifecycle) -> Option<&Membership> {
        let (channel, member) = (self.channels.get(channel)?, self.lifecycles.get(member)?);
        self.rows.get(channel, member)
    }

    /// Whether `seq` lies in the member's interval of an earlier `generation`. `None`: that
    /// interval is not known here; the bucket's history may still have it
    /// ([`Self::recover_member`]).
    #[must_use]
    pub fn past_holds(
        &self,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
        seq: u64,
    ) -> Option<bool> {
        let (channel, member) = (self.channels.get(channel)?, self.lifecycles.get(member)?);
        self.rows.past_holds(channel, member, generation, seq)
    }

    /// Every membership of `member`, open or closed, by channel.
    #[must_use]
    pub fn memberships_of(&self, member: &Lifecycle) -> Vec<(Channel, Membership)> {
        let rows = self.lifecycles.get(member).into_iter();
        let rows = rows.flat_map(|member| self.rows.of_member(member));
        let mut all: Vec<_> =
            rows.map(|(channel, row)| (self.channels.key(channel).clone(), row.clone())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// Leaves in progress (RDR-10).
impl Directory {
    /// A leave of the member is about to read its cursor.
    pub fn begin_leave(&mut self, channel: &Channel, member: &Lifecycle) {
        let row = (self.channels.intern(channel), self.lifecycles.intern(member));
        self.leaves.begin(row);
    }

    /// The leave may write this cursor from now on.
    pub fn set_leave_cursor(&mut self, channel: &Channel, member: &Lifecycle, cursor: u64) {
        if let Some(row) = self.ids(channel, member) {
            self.leaves.set_cursor(row, cursor);
        }
    }

    /// Ends the leave once its closed row, at revision `written`, is applied; at once if it wrote
    /// none.
    pub fn end_leave(&mut self, channel: &Channel, member: &Lifecycle, written: Option<u64>) {
        if let Some(row) = self.ids(channel, member) {
            let applied = self.rows.get(row.0, row.1).map(|held| held.revision);
            self.leaves.end(row, written, applied);
        }
    }

    /// Whether a leave in progress may exclude the post at `seq`.
    #[must_use]
    pub fn is_leaving(&self, channel: &Channel, member: &Lifecycle, seq: u64) -> bool {
        if self.leaves.is_empty() {
            return false;
        }
        self.ids(channel, member).is_some_and(|row| self.leaves.may_exclude(row, seq))
    }

    fn ids(&self, channel: &Channel, member: &Lifecycle) -> Option<(u32, u32)> {
        self.channels.get(channel).zip(self.lifecycles.get(member))
    }
}

/// Sequences beyond the end of a stream that lost its end.
impl Directory {
    /// Every member row.
    #[must_use]
    pub fn memberships(&self) -> Vec<(Channel, Lifecycle, Membership)> {
        let rows = self.rows.all();
        rows.map(|(channel, member, row)| {
            let (channel, member) = (self.channels.key(channel), self.lifecycles.key(member));
            (channel.clone(), member.clone(), row.clone())
        })
        .collect()
    }

    /// Member rows with a cursor beyond the end of CHAT, each with its corrected membership.
    #[must_use]
    pub fn rows_beyond(&self, last: u64) -> Vec<(Channel, Lifecycle, Membership)> {
        let rows = self.rows.all();
        rows.filter_map(|(channel, member, row)| {
            let corrected = positions::member_row(row, last)?;
            let (channel, member) = (self.channels.key(channel), self.lifecycles.key(member));
            Some((channel.clone(), member.clone(), corrected))
        })
        .collect()
    }

    /// Lowers every lifecycle frontier beyond the end of CHAT to `last`, also in later versions of
    /// the row; returns the lifecycles.
    pub fn lower_frontiers(&mut self, last: u64) -> Vec<Lifecycle> {
        let lowered = self.acls.lower_frontiers(last);
        lowered.into_iter().map(|member| self.lifecycles.key(member).clone()).collect()
    }
}

/// Joins that a daemon left half done.
impl Directory {
    /// Open memberships whose catch-up was never completed; the daemon resumes them at start.
    #[must_use]
    pub fn half_joined(&self) -> Vec<(Channel, Lifecycle)> {
        let rows = self.rows.all();
        rows.filter(|(_, _, row)| row.is_open() && !row.activated)
            .map(|(channel, member, _)| {
                (self.channels.key(channel).clone(), self.lifecycles.key(member).clone())
            })
            .collect()
    }
}

/// Who is shown as a member.
impl Directory {
    /// Open memberships that are covered by durable delivery.
    pub fn durable_members(&self) -> impl Iterator<Item = (&Channel, &Lifecycle)> {
        let rows = self.rows.all();
        let covered = |row: &Membership| row.is_open() && row.state == MemberState::DurableActive;
        rows.filter(move |(_, _, row)| covered(row))
            .map(|(channel, member, _)| (self.channels.key(channel), self.lifecycles.key(member)))
    }
}

/// Lifecycles and their names.
impl Directory {
    /// The member's read ACL.
    #[must_use]
    pub fn acl(&self, member: &Lifecycle) -> Acl<'_> {
        let member = self.lifecycles.get(member);
        member.map_or(Acl::Absent, |member| self.acls.acl(member))
    }

    /// The bucket revision of the member's ACL row, tombstones included.
    #[must_use]
    pub fn acl_revision(&self, member: &Lifecycle) -> Option<u64> {
        self.acls.revision(self.lifecycles.get(member)?)
    }

    /// Lifecycles whose ACL row was changed since it was provisioned, tombstones included: copies
    /// handed off to them may have to be recalled.
    #[must_use]
    pub fn changed_acls(&self) -> Vec<Lifecycle> {
        self.acls.changed().map(|member| self.lifecycles.key(member).clone()).collect()
    }

    /// Whether this lifecycle is one of [`Directory::changed_acls`].
    #[must_use]
    pub fn is_changed_acl(&self, member: &Lifecycle) -> bool {
        self.lifecycles.get(member).is_some_and(|member| self.acls.is_changed(member))
    }

    /// The lifecycle of `principal` that has a live ACL row.
    #[must_use]
    pub fn live_lifecycle(&self, principal: &Principal) -> Resolved<Lifecycle> {
        match self.acls.live(principal) {
            Resolved::None => Resolved::None,
            Resolved::One(member) => Resolved::One(self.lifecycles.key(member).clone()),
            Resolved::Several => Resolved::Several,
        }
    }

    /// The lifecycle that a mention of `name` reaches. The principal is the one whose live ACL row
    /// has the name; if no live row has it, the one with a fresh claim to it in presence. The copy
    /// goes to that principal's only live lifecycle. Two candidates at either step: nobody (FAN-2,
    /// `wire.md` §4).
    #[must_use]
    pub fn resolve_mention(&self, name: &str, now_ms: i64) -> Option<Lifecycle> {
        let name = name.to_lowercase();
        let bearers = self.acls.named(&name).iter();
        let bearers = bearers.map(|&member| &self.lifecycles.key(member).principal);
        let principal = match only(bearers) {
            Resolved::None => match only(self.presence.fresh(&name, now_ms)) {
                Resolved::One(principal) => principal,
                Resolved::None | Resolved::Several => return None,
            },
            Resolved::One(principal) => principal,
            Resolved::Several => return None,
        };
        match self.live_lifecycle(principal) {
            Resolved::One(lifecycle) => Some(lifecycle),
            Resolved::None | Resolved::Several => None,
        }
    }

    /// Forgets every presence claim, because their bucket is gone or was replaced.
    pub fn forget_presence(&mut self) {
        self.presence = Presence::default();
    }

    /// Forgets presence claims that are no longer fresh: they decide nothing, but take memory.
    pub fn expire_presence(&mut self, now_ms: i64) {
        self.presence.expire(now_ms);
    }
}

/// Counts for the operator.
impl Directory {
    /// Values seen so far that could not be parsed.
    #[must_use]
    pub fn garbled(&self) -> u64 {
        let buckets = [
            &self.garbled_members,
            &self.garbled_acls,
            &self.garbled_channels,
            &self.garbled_presence,
        ];
        buckets.into_iter().map(Garbled::met).sum()
    }

    /// The number of member rows and of ACL rows (tombstones included).
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.rows.len(), self.acls.len())
    }
}

/// The item, if all items are equal.
fn only<T: PartialEq>(mut items: impl Iterator<Item = T>) -> Resolved<T> {
    let Some(first) = items.next() else {
        return Resolved::None;
    };
    if items.all(|item| item == first) { Resolved::One(first) } else { Resolved::Several }
}
