//! Short constructors for tests.

use cotal_wire::rows::{AclRow, Frontier, MemberRow, MemberState};
use cotal_wire::{Channel, ChannelPattern, Lifecycle, Principal};

use crate::directory::{Applied, Directory};

pub(crate) fn chan(text: &str) -> Channel {
    Channel::parse(text).unwrap()
}

pub(crate) fn who(actor: &str) -> Principal {
    Principal::new("local", actor).unwrap()
}

/// The first lifecycle of `local.<actor>`.
pub(crate) fn life(actor: &str) -> Lifecycle {
    incarnation(actor, 'a')
}

/// The lifecycle of `local.<actor>` whose uid repeats `letter`.
pub(crate) fn incarnation(actor: &str, letter: char) -> Lifecycle {
    let uid = String::from(letter).repeat(26);
    Lifecycle::parse(&format!("local.{actor}.{uid}")).unwrap()
}

pub(crate) fn acl(patterns: &[&str]) -> AclRow {
    AclRow {
        allow_subscribe: patterns.iter().map(|p| ChannelPattern::parse(p).unwrap()).collect(),
        revision: 1,
        updated_at: 0,
        name: None,
        activated: None,
        retired: false,
    }
}

pub(crate) fn named(name: &str, patterns: &[&str]) -> AclRow {
    AclRow { name: Some(name.to_owned()), ..acl(patterns) }
}

pub(crate) fn since(chat: u64, row: AclRow) -> AclRow {
    let activated = Some(Frontier { chat, ..Frontier::default() });
    AclRow { activated, ..row }
}

pub(crate) fn tombstone() -> AclRow {
    AclRow { retired: true, ..acl(&[]) }
}

pub(crate) fn row(
    channel: &str,
    member: &Lifecycle,
    generation: u64,
    join: u64,
    leave: Option<u64>,
) -> MemberRow {
    MemberRow {
        channel: chan(channel),
        owner: member.principal.clone(),
        lifecycle_uid: member.uid,
        state: MemberState::DurableActive,
        join_cursor: join,
        leave_cursor: leave,
        generation,
        activated: true,
        writer_identity: "w".into(),
        updated_at: 0,
    }
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// A directory that numbers its own revisions.
#[derive(Default)]
pub(crate) struct Fed {
    pub(crate) dir: Directory,
    revision: u64,
}

impl Fed {
    pub(crate) fn next(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    pub(crate) fn member(&mut self, row: &MemberRow) -> Applied {
        let key = cotal_wire::names::member_key(&row.channel, &row.member());
        let revision = self.next();
        self.dir.apply_member(&key, Some(&json(row)), revision)
    }

    pub(crate) fn acl(&mut self, member: &Lifecycle, row: &AclRow) -> Applied {
        let revision = self.next();
        self.dir.apply_acl(&member.dotted(), Some(&json(row)), revision)
    }

    pub(crate) fn class(&mut self, key: &str, class: &str) -> Applied {
        let revision = self.next();
        let value = format!(r#"{{"deliveryClass":"{class}"}}"#);
        self.dir.apply_channel(key, Some(value.as_bytes()), revision)
    }

    pub(crate) fn presence(&mut self, actor: &str, name: &str, ts: i64) -> Applied {
        let revision = self.next();
        let value = format!(r#"{{"card":{{"id":"local.{actor}","name":"{name}"}},"ts":{ts}}}"#);
        self.dir.apply_presence(&format!("local.{actor}"), Some(value.as_bytes()), revision)
    }
}
