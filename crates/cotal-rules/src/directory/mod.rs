//! The in-memory indexes over members, ACLs, channel configs and presence (`wire.md` §4).
use cotal_wire::rows::{AclRow, ChannelConfig, DeliveryClass};
use cotal_wire::{Channel, Lifecycle, Principal};

mod membership;
pub use membership::{GarbledMember, Membership};

/// What became of one watched value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// The row stands as written.
    Applied,
    /// The row is gone.
    Removed,
    /// Not a row of its bucket: the last valid one stands. The text says what and why.
    Garbled(String),
    /// Nothing changed: a foreign key, an owner that is not real, or an older revision.
    Ignored,
}

/// A lifecycle's read ACL as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acl<'a> {
    /// No row: proves nothing, neither a right nor an end.
    Absent,
    /// A tombstone: final.
    Retired,
    /// The row.
    Row(&'a AclRow),
}

impl Acl<'_> {
    /// Whether the lifecycle may read `channel` now.
    #[must_use]
    pub fn allows(&self, channel: &Channel) -> bool {
        matches!(self, Self::Row(row) if row.allows(channel))
    }
}

/// How many answers a look-up has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved<T> {
    /// None.
    None,
    /// Exactly one.
    One(T),
    /// More than one.
    Several,
}

/// The indexes.
#[derive(Debug, Default)]
pub struct Directory {}

#[allow(unused_variables, clippy::todo)]
impl Directory {
    /// Applies a watched member row; `None` is a deletion.
    pub fn apply_member(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        todo!()
    }
    /// Applies a watched ACL row; `None` is a deletion. A tombstone is final.
    pub fn apply_acl(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        todo!()
    }
    /// Applies a watched channel config or the space's defaults; `None` is a deletion.
    pub fn apply_channel(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        todo!()
    }
    /// Applies a watched presence row; `None` is a deletion.
    pub fn apply_presence(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        todo!()
    }
    /// Gives the directory a row from the bucket's history: the newest valid one of a garbled key,
    /// or an earlier generation of a member row.
    pub fn recover_member(&mut self, key: &str, value: &[u8], revision: u64) -> Applied {
        todo!()
    }
    /// The same for an ACL row.
    pub fn recover_acl(&mut self, key: &str, value: &[u8], revision: u64) -> Applied {
        todo!()
    }
    /// The same for a channel config.
    pub fn recover_channel(&mut self, key: &str, value: &[u8], revision: u64) -> Applied {
        todo!()
    }
    /// The class of `channel`, by the one resolver (FAN-7).
    #[must_use]
    pub fn class(&self, channel: &Channel) -> DeliveryClass {
        todo!()
    }
    /// The channel's own config, without the defaults.
    #[must_use]
    pub fn channel_config(&self, channel: &Channel) -> Option<&ChannelConfig> {
        todo!()
    }
    /// Every member row of `channel`, open or closed.
    pub fn members_of(&self, channel: &Channel) -> impl Iterator<Item = (&Lifecycle, &Membership)> {
        std::iter::empty()
    }
    /// One member's row on `channel`.
    #[must_use]
    pub fn membership(&self, channel: &Channel, member: &Lifecycle) -> Option<&Membership> {
        todo!()
    }
    /// Whether `seq` lies in the member's interval of an earlier `generation`; `None` when that
    /// interval is not known and the bucket's history may still hold it.
    #[must_use]
    pub fn past_holds(
        &self,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
        seq: u64,
    ) -> Option<bool> {
        todo!()
    }
    /// Every membership of `member`, open or closed, by channel.
    #[must_use]
    pub fn memberships_of(&self, member: &Lifecycle) -> Vec<(Channel, Membership)> {
        todo!()
    }
    /// The member's read ACL.
    #[must_use]
    pub fn acl(&self, member: &Lifecycle) -> Acl<'_> {
        todo!()
    }
    /// The bucket revision of the member's ACL row, tombstones included.
    #[must_use]
    pub fn acl_revision(&self, member: &Lifecycle) -> Option<u64> {
        todo!()
    }
    /// The lifecycle of `principal` that has a live ACL row.
    #[must_use]
    pub fn live_lifecycle(&self, principal: &Principal) -> Resolved<Lifecycle> {
        todo!()
    }
    /// Who a mention of `name` reaches (`wire.md` §4).
    #[must_use]
    pub fn resolve_mention(&self, name: &str, now_ms: i64) -> Option<Lifecycle> {
        todo!()
    }
    /// Values met so far that were no row of their bucket.
    #[must_use]
    pub fn garbled(&self) -> u64 {
        todo!()
    }
    /// Member keys whose latest value is garbled now.
    pub fn garbled_members(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
    /// What stands behind a garbled member key: the last valid row (absent when the last valid
    /// state is unknown or a deletion) and the revision to replace.
    #[must_use]
    pub fn last_valid_member(&self, key: &str) -> Option<GarbledMember> {
        todo!()
    }
    /// How many member rows and ACL rows (tombstones included) stand.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        todo!()
    }
}
