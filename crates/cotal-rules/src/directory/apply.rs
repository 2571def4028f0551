//! How watched values, and values from a bucket's history, change the indexes.

use cotal_wire::names::{DEFAULTS_KEY, parse_member_key};
use cotal_wire::rows::{AclRow, ChannelConfig, MemberRow, PresenceRow, RowError};
use cotal_wire::{Channel, Lifecycle, Principal};

use super::{Acl, Applied, Config, Directory, GarbledMember, Membership};

/// The report of a garbled value. A lifecycle's uid is a capability, so `what` must not contain it.
fn report(what: &str, revision: u64, error: &RowError) -> Applied {
    Applied::Garbled(format!(
        "{what} at revision {revision} is garbled ({error}); the last valid row stays in force"
    ))
}

fn real_member_key(key: &str) -> Option<(Channel, Lifecycle)> {
    parse_member_key(key).filter(|(_, member)| member.principal.has_real_owner())
}

fn real_lifecycle(key: &str) -> Option<Lifecycle> {
    Lifecycle::parse(key).ok().filter(|member| member.principal.has_real_owner())
}

/// Member rows.
impl Directory {
    /// Applies a watched member row; `None` is a deletion.
    pub fn apply_member(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        let Some((channel, member)) = real_member_key(key) else {
            return Applied::Ignored;
        };
        let held = self.membership(&channel, &member).map(|row| row.revision);
        if held.max(self.garbled_members.revision(key)) >= Some(revision) {
            return Applied::Ignored;
        }
        let Some(value) = value else {
            self.garbled_members.clear(key);
            let ids = self.channels.get(&channel).zip(self.lifecycles.get(&member));
            if let Some((channel, member)) = ids {
                self.rows.remove(channel, member);
                self.leaves.applied((channel, member), revision);
            }
            return Applied::Removed;
        };
        match MemberRow::parse(value, &channel, &member) {
            Ok(row) => {
                self.garbled_members.clear(key);
                self.put_member(&channel, &member, &row, revision);
                Applied::Applied
            }
            Err(error) => {
                self.garbled_members.note(key, revision);
                let who = &member.principal;
                report(&format!("the member row of {who} on {channel}"), revision, &error)
            }
        }
    }

    /// Adds a row from the bucket's history, in any order: the newest valid one of a key whose
    /// latest value is garbled, or the closed row of an earlier generation. The garbled revision is
    /// still remembered for the write-back. Do not add rows from before the key's last deletion: a
    /// deletion is a valid state too.
    pub fn recover_member(&mut self, key: &str, value: &[u8], revision: u64) -> Applied {
        let Some((channel, member)) = real_member_key(key) else {
            return Applied::Ignored;
        };
        let Ok(row) = MemberRow::parse(value, &channel, &member) else {
            return Applied::Ignored;
        };
        let held = self.membership(&channel, &member);
        let garbled = self.garbled_members.revision(key);
        let newer = held.is_none_or(|held| held.revision < revision);
        if newer && garbled.is_some_and(|garbled| revision < garbled) {
            self.put_member(&channel, &member, &row, revision);
            return Applied::Applied;
        }
        let ids = self.channels.get(&channel).zip(self.lifecycles.get(&member));
        let earlier = Membership::of(&row, revision);
        match ids {
            Some((channel, member)) if self.rows.learn(channel, member, &earlier) => {
                Applied::Applied
            }
            _ => Applied::Ignored,
        }
    }

    /// Notes that all of the key's history was given to [`Self::recover_member`]: earlier
    /// generations that are still unknown stay unknown, and no plan asks for them again.
    pub fn history_read(&mut self, channel: &Channel, member: &Lifecycle) {
        let ids = self.channels.get(channel).zip(self.lifecycles.get(member));
        if let Some((channel, member)) = ids {
            self.rows.searched(channel, member);
        }
    }

    fn put_member(&mut self, channel: &Channel, member: &Lifecycle, row: &MemberRow, rev: u64) {
        let (channel, member) = (self.channels.intern(channel), self.lifecycles.intern(member));
        self.rows.put(channel, member, Membership::of(row, rev));
        self.leaves.applied((channel, member), rev);
    }

    /// Member keys whose latest value is garbled now.
    pub fn garbled_members(&self) -> impl Iterator<Item = &str> {
        self.garbled_members.keys()
    }

    /// The row that is in force for a garbled member key, so that the daemon can write it back.
    #[must_use]
    pub fn last_valid_member(&self, key: &str) -> Option<GarbledMember> {
        let garbled_revision = self.garbled_members.revision(key)?;
        let (channel, member) = parse_member_key(key)?;
        let membership = self.membership(&channel, &member).cloned();
        Some(GarbledMember { channel, member, membership, garbled_revision })
    }
}

/// ACL rows.
impl Directory {
    /// Applies a watched ACL row; `None` is a deletion. A tombstone is final: neither a later row
    /// nor a deletion revives the lifecycle.
    pub fn apply_acl(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        let Some(member) = real_lifecycle(key) else {
            return Applied::Ignored;
        };
        let held = self.acl_revision(&member);
        if held.max(self.garbled_acls.revision(key)) >= Some(revision) {
            return Applied::Ignored;
        }
        let Some(value) = value else {
            self.garbled_acls.clear(key);
            return self.remove_acl(&member);
        };
        match AclRow::parse(value) {
            Ok(row) => {
                self.garbled_acls.clear(key);
                self.put_acl(&member, row, revision)
            }
            Err(error) => {
                self.garbled_acls.note(key, revision);
                report(&format!("the ACL row of {}", member.principal), revision, &error)
            }
        }
    }

    /// Adds a row from the bucket's history, in any order: the newest valid one of a key whose
    /// latest value is garbled. A tombstone found there always counts.
    pub fn recover_acl(&mut self, key: &str, value: &[u8], revision: u64) -> Applied {
        let Some(member) = real_lifecycle(key) else {
            return Applied::Ignored;
        };
        let Ok(row) = AclRow::parse(value) else {
            return Applied::Ignored;
        };
        let garbled = self.garbled_acls.revision(key);
        let newer = self.acl_revision(&member) < Some(revision);
        let fills = newer && garbled.is_some_and(|garbled| revision < garbled);
        let retires = row.retired && !matches!(self.acl(&member), Acl::Retired);
        if fills || retires { self.put_acl(&member, row, revision) } else { Applied::Ignored }
    }

    fn put_acl(&mut self, member: &Lifecycle, row: AclRow, revision: u64) -> Applied {
        let id = self.lifecycles.intern(member);
        if self.acls.put(&member.principal, id, row, revision) {
            return Applied::Applied;
        }
        self.garbled_acls.count();
        Applied::Garbled(format!(
            "the ACL row of {} at revision {revision} would revive a retired lifecycle; the \
             tombstone stays in force",
            member.principal
        ))
    }

    fn remove_acl(&mut self, member: &Lifecycle) -> Applied {
        if matches!(self.acl(member), Acl::Retired) {
            return Applied::Ignored;
        }
        if let Some(id) = self.lifecycles.get(member) {
            self.acls.remove(&member.principal, id);
        }
        Applied::Removed
    }

    /// ACL keys whose latest value is garbled now; the manager writes them back.
    pub fn garbled_acls(&self) -> impl Iterator<Item = &str> {
        self.garbled_acls.keys()
    }
}

/// Channel configs.
impl Directory {
    /// Applies a watched channel config or the space's defaults; `None` is a deletion.
    pub fn apply_channel(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        let held = self.config_revision(key);
        if held.max(self.garbled_channels.revision(key)) >= Some(revision) {
            return Applied::Ignored;
        }
        let Some(value) = value else {
            self.garbled_channels.clear(key);
            return self.set_config(key, None, Applied::Removed);
        };
        match ChannelConfig::parse(value) {
            Ok(config) => {
                let config = Some(Config { config, revision });
                self.garbled_channels.clear(key);
                self.set_config(key, config, Applied::Applied)
            }
            Err(_) if key != DEFAULTS_KEY && Channel::parse(key).is_err() => Applied::Ignored,
            Err(error) => {
                self.garbled_channels.note(key, revision);
                report(&format!("the config of channel {key}"), revision, &error)
            }
        }
    }

    /// Adds a config from the bucket's history, in any order: the newest valid one of a key whose
    /// latest value is garbled.
    pub fn recover_channel(&mut self, key: &str, value: &[u8], revision: u64) -> Applied {
        let garbled = self.garbled_channels.revision(key);
        let newer = self.config_revision(key) < Some(revision);
        match ChannelConfig::parse(value) {
            Ok(config) if newer && garbled.is_some_and(|garbled| revision < garbled) => {
                self.set_config(key, Some(Config { config, revision }), Applied::Applied)
            }
            _ => Applied::Ignored,
        }
    }

    fn config_revision(&self, key: &str) -> Option<u64> {
        if key == DEFAULTS_KEY {
            return self.defaults.as_ref().map(|held| held.revision);
        }
        let channel = Channel::parse(key).ok()?;
        self.configs.get(&channel).map(|held| held.revision)
    }

    fn set_config(&mut self, key: &str, config: Option<Config>, done: Applied) -> Applied {
        if key == DEFAULTS_KEY {
            self.defaults = config;
            return done;
        }
        let Ok(channel) = Channel::parse(key) else {
            return Applied::Ignored;
        };
        match config {
            Some(config) => self.configs.insert(channel, config),
            None => self.configs.remove(&channel),
        };
        done
    }

    /// Channel keys whose latest value is garbled now; the manager writes them back.
    pub fn garbled_channels(&self) -> impl Iterator<Item = &str> {
        self.garbled_channels.keys()
    }
}

/// Presence.
impl Directory {
    /// Applies a watched presence row; `None` is a deletion. Agents write these rows themselves,
    /// and they live for seconds, so a garbled one is only counted; nobody writes it back.
    pub fn apply_presence(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        let principal = Principal::parse(key).ok();
        let Some(principal) = principal.filter(Principal::has_real_owner) else {
            return Applied::Ignored;
        };
        if self.presence.revision(&principal) >= Some(revision) {
            return Applied::Ignored;
        }
        let Some(value) = value else {
            self.presence.remove(&principal);
            return Applied::Removed;
        };
        match PresenceRow::parse(value, &principal) {
            Ok(row) => {
                self.presence.put(&principal, &row, revision);
                Applied::Applied
            }
            Err(error) => {
                self.garbled_presence.count();
                report(&format!("the presence row of {principal}"), revision, &error)
            }
        }
    }
}
