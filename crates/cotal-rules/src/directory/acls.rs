//! The read-ACL rows, with the indexes that mentions need: which lifecycles are live, and their
//! names.

use cotal_wire::Principal;
use cotal_wire::rows::AclRow;
use hashbrown::HashMap;

use super::acl::{Acl, Resolved};
use super::garbled::Bearers;
use super::index::slot;
use crate::positions;

#[derive(Debug, Default)]
enum Held {
    #[default]
    Absent,
    Retired {
        revision: u64,
    },
    Row(Box<(AclRow, u64)>),
}

impl Held {
    /// Whether it is not the row that was provisioned: a later version or a tombstone.
    fn is_changed(&self) -> bool {
        match self {
            Self::Retired { .. } => true,
            Self::Row(row) => row.0.revision > 1,
            Self::Absent => false,
        }
    }
}

/// ACL rows by interned member.
#[derive(Debug, Default)]
pub(super) struct Acls {
    held: Vec<Held>,
    live: Bearers<Principal, u32>,
    names: Bearers<String, u32>,
    /// The lowered frontier of each lifecycle whose row names a post beyond the end of CHAT.
    lowered: HashMap<u32, u64>,
    len: usize,
}

impl Acls {
    pub(super) fn acl(&self, member: u32) -> Acl<'_> {
        match self.held.get(member as usize) {
            None | Some(Held::Absent) => Acl::Absent,
            Some(Held::Retired { .. }) => Acl::Retired,
            Some(Held::Row(row)) => Acl::Row(&row.0),
        }
    }

    pub(super) fn revision(&self, member: u32) -> Option<u64> {
        match self.held.get(member as usize)? {
            Held::Absent => None,
            Held::Retired { revision } => Some(*revision),
            Held::Row(row) => Some(row.1),
        }
    }

    /// Sets the row, unless there is a tombstone, which is final. Returns whether it was set.
    pub(super) fn put(
        &mut self,
        principal: &Principal,
        member: u32,
        mut row: AclRow,
        revision: u64,
    ) -> bool {
        if matches!(self.acl(member), Acl::Retired) && !row.retired {
            return false;
        }
        self.unindex(principal, member);
        if let (Some(last), Some(frontier)) = (self.lowered.get(&member), &mut row.activated) {
            frontier.chat = frontier.chat.min(*last);
        }
        let held = if row.retired {
            Held::Retired { revision }
        } else {
            self.live.add(principal.clone(), member);
            if let Some(name) = &row.name {
                self.names.add(name.to_lowercase(), member);
            }
            Held::Row(Box::new((row, revision)))
        };
        let before = std::mem::replace(slot(&mut self.held, member), held);
        self.len += usize::from(matches!(before, Held::Absent));
        true
    }

    /// Lowers every frontier beyond `last`, now and in later rows; returns the members.
    pub(super) fn lower_frontiers(&mut self, last: u64) -> Vec<u32> {
        let mut lowered = Vec::new();
        for (member, held) in (0..).zip(&mut self.held) {
            if let Held::Row(row) = held
                && let Some(to) = positions::frontier(&row.0, last)
                && let Some(frontier) = &mut row.0.activated
            {
                frontier.chat = to;
                self.lowered.insert(member, to);
                lowered.push(member);
            }
        }
        lowered
    }

    /// Removes the row, unless it is a tombstone.
    pub(super) fn remove(&mut self, principal: &Principal, member: u32) {
        if matches!(self.acl(member), Acl::Row(_)) {
            self.unindex(principal, member);
            *slot(&mut self.held, member) = Held::Absent;
            self.len -= 1;
        }
    }

    fn unindex(&mut self, principal: &Principal, member: u32) {
        if let Some(Held::Row(row)) = self.held.get(member as usize) {
            self.live.remove(principal, &member);
            if let Some(name) = &row.0.name {
                self.names.remove(name.to_lowercase().as_str(), &member);
            }
        }
    }

    /// The principal's member with a live row.
    pub(super) fn live(&self, principal: &Principal) -> Resolved<u32> {
        match self.live.of(principal) {
            [] => Resolved::None,
            [member] => Resolved::One(*member),
            _ => Resolved::Several,
        }
    }

    /// The members whose live row has the lowercased `name`.
    pub(super) fn named(&self, name: &str) -> &[u32] {
        self.names.of(name)
    }

    /// Members whose row was changed since it was provisioned, tombstones included.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.held).filter(|(_, held)| held.is_changed()).map(|(member, _)| member)
    }

    /// Whether the member's row was changed since it was provisioned.
    pub(super) fn is_changed(&self, member: u32) -> bool {
        self.held.get(member as usize).is_some_and(Held::is_changed)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
