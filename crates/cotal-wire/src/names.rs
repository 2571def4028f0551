//! Every subject, stream, consumer, bucket and key of a space (`wire.md` §2 to §4, §6, §7).
//!
//! This file and those below it are the only ones that spell them. Builders take parsed types, and
//! parsers give them back.

mod crossings;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::channel::{Channel, ChannelPattern};
use crate::ids::{Lifecycle, Principal, Role, is_route_token, serde_as_text};

pub use crossings::{FORWARDED_REPLIES, is_forwarded_reply};

/// The control service that agents join and leave through.
pub const DELIVERY: &str = "delivery";
/// The control service of the manager.
pub const DELIVERY_ADMIN: &str = "delivery-admin";
/// The control service that role holders record takes on.
pub const ANYCAST_TAKE: &str = "anycast-take";
/// The key of a space's channel defaults.
pub const DEFAULTS_KEY: &str = "=defaults";
/// The key of the single-flight lease.
pub const LEASE_KEY: &str = "lease.0";
/// The key of the lease of whoever renews a space's credentials.
pub const RENEWAL_KEY: &str = "renewal";
/// The key of the membership feed's heartbeat.
pub const FEED_KEY: &str = "=feed";
/// The fan-out writer's consumer on CHAT.
pub const FANOUT: &str = "fanout";
/// The trusted reader's consumer on INBOX.
pub const READER: &str = "reader";
/// The timer writer's consumer on EPT_REQ.
pub const TIMER_WRITER: &str = "timer-writer";
/// The header that carries a delivered post's sequence on CHAT.
pub const SEQ_HEADER: &str = "Cotal-Seq";
/// The subject under which the broker serves account-level JetStream info.
pub const JS_INFO: &str = "$JS.API.INFO";
/// Flow-control replies of push consumers.
pub const JS_FLOW: &str = "$JS.FC.>";
/// Every server of the mesh answers here.
pub const SYS_PING: &str = "$SYS.REQ.SERVER.PING";
/// Account JWTs are pushed here.
pub const SYS_CLAIMS_UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";

/// Why a text is not a space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a space: use 1 to 64 letters, digits, _ and -")]
pub struct SpaceError(String);

/// A space: the token in all of its names. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(Arc<str>);

impl Space {
    /// Reads a space token.
    ///
    /// # Errors
    /// When the text is not 1 to 64 of `[A-Za-z0-9_-]`.
    pub fn parse(text: &str) -> Result<Self, SpaceError> {
        if is_route_token(text) && text.len() <= 64 {
            Ok(Self(text.into()))
        } else {
            Err(SpaceError(text.chars().take(64).collect()))
        }
    }

    /// Maps any other character of a free-form name to `_`, as other clients do.
    ///
    /// # Errors
    /// When the name is empty or too long.
    pub fn from_name(name: &str) -> Result<Self, SpaceError> {
        let keep = |c: char| {
            if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }
        };
        Self::parse(&name.chars().map(keep).collect::<String>())
    }

    /// The token.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `cotal.<space>`, the head of every subject.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("cotal.{self}")
    }

    /// A member's subject of one kind, made once per copy and so without the formatter.
    fn of_member(&self, kind: &str, member: &Lifecycle) -> String {
        let (principal, uid) = (member.principal.as_str(), member.uid.as_str());
        ["cotal.", self.as_str(), ".", kind, ".", principal, ".", uid].concat()
    }

    fn tail<'a>(&self, subject: &'a str, kind: &str) -> Option<&'a str> {
        subject
            .strip_prefix("cotal.")?
            .strip_prefix(self.as_str())?
            .strip_prefix('.')?
            .strip_prefix(kind)?
            .strip_prefix('.')
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

serde_as_text!(Space);

/// Subjects (`wire.md` §2).
impl Space {
    /// A post by `from` on `channel`.
    #[must_use]
    pub fn chat(&self, from: &Principal, channel: &Channel) -> String {
        format!("cotal.{self}.chat.{from}.{channel}")
    }

    /// The subjects `from` may post on under `pattern`.
    #[must_use]
    pub fn chat_posts(&self, from: &Principal, pattern: &ChannelPattern) -> String {
        format!("cotal.{self}.chat.{from}.{pattern}")
    }

    /// Everybody's posts under `pattern`.
    #[must_use]
    pub fn chat_channel(&self, pattern: &ChannelPattern) -> String {
        format!("cotal.{self}.chat.*.*.{pattern}")
    }

    /// Every post of the space.
    #[must_use]
    pub fn chat_all(&self) -> String {
        format!("cotal.{self}.chat.>")
    }

    /// The channels that a subscription reads, whoever posts on them; `None` when it reads none.
    #[must_use]
    pub fn chat_read(&self, subject: &str) -> Option<ChannelPattern> {
        let mut rest = subject;
        let head = [Some("cotal"), Some(self.as_str()), Some("chat"), None, None];
        for wanted in head {
            if rest == ">" {
                return ChannelPattern::parse(">").ok();
            }
            let (token, tail) = rest.split_once('.')?;
            if token != "*" && wanted.is_some_and(|wanted| wanted != token) {
                return None;
            }
            rest = tail;
        }
        ChannelPattern::parse(rest).ok()
    }

    /// Reads a post's subject: its sender and channel.
    #[must_use]
    pub fn parse_chat(&self, subject: &str) -> Option<(Principal, Channel)> {
        let (owner, rest) = self.tail(subject, "chat")?.split_once('.')?;
        let (actor, channel) = rest.split_once('.')?;
        Some((Principal::new(owner, actor).ok()?, Channel::parse(channel).ok()?))
    }

    /// A direct message.
    #[must_use]
    pub fn inst(&self, to: &Principal, from: &Principal) -> String {
        format!("cotal.{self}.inst.{to}.{from}")
    }

    /// Every direct message to `to`.
    #[must_use]
    pub fn inst_to(&self, to: &Principal) -> String {
        format!("cotal.{self}.inst.{to}.>")
    }

    /// Direct messages of `from` to anyone.
    #[must_use]
    pub fn inst_from(&self, from: &Principal) -> String {
        format!("cotal.{self}.inst.*.*.{from}")
    }

    /// Every direct message of the space.
    #[must_use]
    pub fn inst_all(&self) -> String {
        format!("cotal.{self}.inst.>")
    }

    /// Reads a direct message's subject: recipient and sender.
    #[must_use]
    pub fn parse_inst(&self, subject: &str) -> Option<(Principal, Principal)> {
        let mut tokens = self.tail(subject, "inst")?.split('.');
        let to = Principal::new(tokens.next()?, tokens.next()?).ok()?;
        let from = Principal::new(tokens.next()?, tokens.next()?).ok()?;
        tokens.next().is_none().then_some((to, from))
    }

    /// A role request.
    #[must_use]
    pub fn svc(&self, role: &Role, from: &Principal) -> String {
        format!("cotal.{self}.svc.{role}.{from}")
    }

    /// Every request to `role`.
    #[must_use]
    pub fn svc_role(&self, role: &Role) -> String {
        format!("cotal.{self}.svc.{role}.>")
    }

    /// Requests of `from` to any role.
    #[must_use]
    pub fn svc_from(&self, from: &Principal) -> String {
        format!("cotal.{self}.svc.*.{from}")
    }

    /// Every role request of the space.
    #[must_use]
    pub fn svc_all(&self) -> String {
        format!("cotal.{self}.svc.>")
    }

    /// Reads a role request's subject: role and sender.
    #[must_use]
    pub fn parse_svc(&self, subject: &str) -> Option<(Role, Principal)> {
        let mut tokens = self.tail(subject, "svc")?.split('.');
        let role = Role::parse(tokens.next()?).ok()?;
        let from = Principal::new(tokens.next()?, tokens.next()?).ok()?;
        tokens.next().is_none().then_some((role, from))
    }

    /// A control request of `from` to `service`; replies go below it.
    #[must_use]
    pub fn ctl(&self, service: &str, from: &Principal) -> String {
        format!("cotal.{self}.ctl.{service}.{from}")
    }

    /// Every control request to `service`.
    #[must_use]
    pub fn ctl_all(&self, service: &str) -> String {
        format!("cotal.{self}.ctl.{service}.*.*")
    }

    /// Reads a control request's subject: the authenticated caller.
    #[must_use]
    pub fn parse_ctl(&self, service: &str, subject: &str) -> Option<Principal> {
        Principal::parse(self.tail(subject, "ctl")?.strip_prefix(service)?.strip_prefix('.')?).ok()
    }

    /// A liveness probe of `from` to `plane`; replies go below it.
    #[must_use]
    pub fn live(&self, plane: &str, from: &Principal) -> String {
        format!("cotal.{self}.live.{plane}.{from}")
    }

    /// Every liveness probe of `plane`.
    #[must_use]
    pub fn live_all(&self, plane: &str) -> String {
        format!("cotal.{self}.live.{plane}.*.*")
    }

    /// Reads a liveness probe's subject: the authenticated caller.
    #[must_use]
    pub fn parse_live(&self, plane: &str, subject: &str) -> Option<Principal> {
        Principal::parse(self.tail(subject, "live")?.strip_prefix(plane)?.strip_prefix('.')?).ok()
    }

    /// A member's mixed inbox.
    #[must_use]
    pub fn dinbox(&self, member: &Lifecycle) -> String {
        self.of_member("dinbox", member)
    }

    /// Every mixed inbox.
    #[must_use]
    pub fn dinbox_all(&self) -> String {
        format!("cotal.{self}.dinbox.>")
    }

    /// Reads a mixed-inbox subject: whose it is.
    #[must_use]
    pub fn parse_dinbox(&self, subject: &str) -> Option<Lifecycle> {
        Lifecycle::parse(self.tail(subject, "dinbox")?).ok()
    }

    /// A member's authorized deliveries.
    #[must_use]
    pub fn dlv(&self, member: &Lifecycle) -> String {
        self.of_member("dlv", member)
    }

    /// Every authorized delivery.
    #[must_use]
    pub fn dlv_all(&self) -> String {
        format!("cotal.{self}.dlv.>")
    }

    /// Reads an authorized delivery's subject: whose it is.
    #[must_use]
    pub fn parse_dlv(&self, subject: &str) -> Option<Lifecycle> {
        Lifecycle::parse(self.tail(subject, "dlv")?).ok()
    }

    /// Timer subjects of one kind: `schedule`, `armed` or `fire`.
    #[must_use]
    pub fn ept_all(&self, kind: &str) -> String {
        format!("cotal.{self}.ept.*.*.*.*.{kind}")
    }
}

/// The reply leaf that a caller subscribes below its own request subject.
#[must_use]
pub fn replies_of(request_subject: &str) -> String {
    format!("{request_subject}.reply.*")
}

/// One reply subject below a request subject.
#[must_use]
pub fn reply_to(request_subject: &str, nonce: &str) -> String {
    format!("{request_subject}.reply.{nonce}")
}

/// Whether `reply` lies in the caller's own reply subtree: `<request>.reply.<nonce>`, where the
/// nonce is 16 to 64 of `[A-Za-z0-9]`.
#[must_use]
pub fn is_own_reply(request_subject: &str, reply: &str) -> bool {
    reply.strip_prefix(request_subject).and_then(|rest| rest.strip_prefix(".reply.")).is_some_and(
        |n| (16..=64).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_alphanumeric()),
    )
}

/// Streams (`wire.md` §3).
impl Space {
    /// Channel posts.
    #[must_use]
    pub fn chat_stream(&self) -> String {
        format!("CHAT_{self}")
    }

    /// Direct messages.
    #[must_use]
    pub fn dm_stream(&self) -> String {
        format!("DM_{self}")
    }

    /// Role requests.
    #[must_use]
    pub fn task_stream(&self) -> String {
        format!("TASK_{self}")
    }

    /// Mixed inboxes, which no agent reads.
    #[must_use]
    pub fn inbox_stream(&self) -> String {
        format!("INBOX_{self}")
    }

    /// Authorized deliveries.
    #[must_use]
    pub fn dlv_stream(&self) -> String {
        format!("DLV_{self}")
    }

    /// Timer requests.
    #[must_use]
    pub fn ept_req_stream(&self) -> String {
        format!("EPT_REQ_{self}")
    }

    /// Armed and fired timers.
    #[must_use]
    pub fn ept_stream(&self) -> String {
        format!("EPT_{self}")
    }
}

/// Consumers (`wire.md` §3).
impl Space {
    /// A lifecycle's delivery consumer on DLV.
    #[must_use]
    pub fn dlv_consumer(&self, member: &Lifecycle) -> String {
        format!("dlv_{}", member.dashed())
    }

    /// A lifecycle's direct-message consumer on DM.
    #[must_use]
    pub fn dm_consumer(&self, member: &Lifecycle) -> String {
        format!("dm_{}", member.dashed())
    }

    /// A role's shared consumer on TASK.
    #[must_use]
    pub fn svc_consumer(&self, role: &Role) -> String {
        format!("svc_{role}")
    }

    /// A lifecycle's history consumer on CHAT.
    #[must_use]
    pub fn chathist_consumer(&self, member: &Lifecycle) -> String {
        format!("chathist_{}", member.dashed())
    }
}

/// A KV bucket of a space (`wire.md` §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Who is online; written by agents themselves.
    Presence,
    /// Channel configs and the space's defaults.
    Channels,
    /// Member rows.
    Members,
    /// Read-ACL rows.
    Acl,
    /// The derived membership feed.
    Membership,
    /// The single-flight lease.
    Delivery,
    /// Manager leases.
    Manager,
    /// Anycast request records.
    Anycast,
    /// Parked and given-up entries.
    Dead,
}

impl Bucket {
    /// Every bucket of a space.
    pub const ALL: [Self; 9] = [
        Self::Presence,
        Self::Channels,
        Self::Members,
        Self::Acl,
        Self::Membership,
        Self::Delivery,
        Self::Manager,
        Self::Anycast,
        Self::Dead,
    ];

    /// The short name, as in `cotal_<short>_<space>`.
    #[must_use]
    pub fn short(self) -> &'static str {
        match self {
            Self::Presence => "presence",
            Self::Channels => "channels",
            Self::Members => "members",
            Self::Acl => "acl",
            Self::Membership => "membership",
            Self::Delivery => "delivery",
            Self::Manager => "manager",
            Self::Anycast => "anycast",
            Self::Dead => "dead",
        }
    }
}

/// Buckets and keys (`wire.md` §4).
impl Space {
    /// The bucket's name, `cotal_<short>_<space>`.
    #[must_use]
    pub fn bucket(&self, bucket: Bucket) -> String {
        format!("cotal_{}_{self}", bucket.short())
    }

    /// The stream under the bucket.
    #[must_use]
    pub fn kv_stream(&self, bucket: Bucket) -> String {
        format!("KV_cotal_{}_{self}", bucket.short())
    }

    /// The subject of a key.
    #[must_use]
    pub fn kv_subject(&self, bucket: Bucket, key: &str) -> String {
        format!("$KV.cotal_{}_{self}.{key}", bucket.short())
    }
}

/// `<channel>/<owner>.<actor>.<uid>`: a member row's key.
#[must_use]
pub fn member_key(channel: &Channel, member: &Lifecycle) -> String {
    format!("{channel}/{}.{}", member.principal, member.uid)
}

/// Reads a member row's key.
#[must_use]
pub fn parse_member_key(key: &str) -> Option<(Channel, Lifecycle)> {
    let (channel, member) = key.split_once('/')?;
    Some((Channel::parse(channel).ok()?, Lifecycle::parse(member).ok()?))
}

/// `lease.<instance>`: the key of a running manager.
#[must_use]
pub fn manager_key(instance: &str) -> String {
    format!("lease.{instance}")
}

/// `req.<seq>`: a request record's key.
#[must_use]
pub fn request_key(seq: u64) -> String {
    format!("req.{seq}")
}

/// Reads a request record's key.
#[must_use]
pub fn parse_request_key(key: &str) -> Option<u64> {
    key.strip_prefix("req.")?.parse().ok()
}

/// `e.<inbox seq>`: a dead entry's key.
#[must_use]
pub fn dead_key(inbox_seq: u64) -> String {
    format!("e.{inbox_seq}")
}

/// Reads a dead entry's key.
#[must_use]
pub fn parse_dead_key(key: &str) -> Option<u64> {
    key.strip_prefix("e.")?.parse().ok()
}

/// The key of a kept row in the dead bucket; `nonce` is known to nobody but the daemon.
#[must_use]
pub fn kept_key(nonce: &str) -> String {
    format!("k.{nonce}")
}

/// Whether a key of the dead bucket is a kept row's.
#[must_use]
pub fn is_kept_key(key: &str) -> bool {
    key.starts_with("k.")
}

/// `$SYS` subjects (`wire.md` §7).
pub mod sys {
    /// The connection census of one account; every server answers.
    #[must_use]
    pub fn connz(account: &str) -> String {
        format!("$SYS.REQ.ACCOUNT.{account}.CONNZ")
    }

    /// The account whose census a subject asks for.
    #[must_use]
    pub fn observed(subject: &str) -> Option<&str> {
        subject.strip_prefix("$SYS.REQ.ACCOUNT.")?.strip_suffix(".CONNZ")
    }

    /// Connects of one account.
    #[must_use]
    pub fn connects(account: &str) -> String {
        format!("$SYS.ACCOUNT.{account}.CONNECT")
    }

    /// Disconnects of one account.
    #[must_use]
    pub fn disconnects(account: &str) -> String {
        format!("$SYS.ACCOUNT.{account}.DISCONNECT")
    }

    /// The kick of a connection on one server; `*` for a grant over all.
    #[must_use]
    pub fn kick(server: &str) -> String {
        format!("$SYS.REQ.SERVER.{server}.KICK")
    }
}

#[cfg(test)]
mod tests;
