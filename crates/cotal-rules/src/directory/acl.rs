//! A lifecycle's read ACL, and how many matches a look-up has.

use cotal_wire::Channel;
use cotal_wire::rows::AclRow;

/// A lifecycle's read ACL as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acl<'a> {
    /// No row. It proves nothing: neither a right to read nor the end of the lifecycle.
    Absent,
    /// A tombstone, which is final.
    Retired,
    /// The row.
    Row(&'a AclRow),
}

impl<'a> Acl<'a> {
    /// The ACL that a read from the leader found.
    #[must_use]
    pub fn of(row: Option<&'a AclRow>) -> Self {
        match row {
            None => Self::Absent,
            Some(row) if row.retired => Self::Retired,
            Some(row) => Self::Row(row),
        }
    }

    /// Whether the lifecycle may read `channel` now.
    #[must_use]
    pub fn allows(&self, channel: &Channel) -> bool {
        matches!(self, Self::Row(row) if row.allows(channel))
    }

    /// Whether the post at `seq` on CHAT is newer than the lifecycle's start; older posts do not
    /// belong to it.
    #[must_use]
    pub fn covers_age(&self, seq: u64) -> bool {
        match self {
            Self::Row(row) => row.activated.is_none_or(|frontier| seq > frontier.chat),
            Self::Absent | Self::Retired => false,
        }
    }
}

/// How many matches a look-up has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved<T> {
    /// None.
    None,
    /// Exactly one.
    One(T),
    /// More than one.
    Several,
}
