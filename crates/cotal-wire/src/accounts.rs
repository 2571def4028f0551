//! The accounts of a space: who lives in which, and what crosses from one to another (`wire.md`
//! §11).
//!
//! Invariant: no agent lives in an account that stores what is another's, each crossing names one
//! call, and none of those into the durable account lets an agent say where the broker publishes.
//! It answers a request that crossed on a subject of its own, which is a request to nobody.

use std::fmt;

use crate::creds::Claims;
use crate::names::{ANYCAST_TAKE, Bucket, DELIVERY, JS_FLOW, JS_INFO, Space};

/// The tag of a credential that names the account of the agents; only a space of three has one.
pub const AGENTS_TAG: &str = "agents";
/// The tag of a credential that says where a stream's API is served: `api:<stream>=<prefix>`.
pub const API_TAG: &str = "api";

/// How many accounts a space has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topology {
    /// One for all: an agent can make the broker destroy and rob what is another's.
    One,
    /// One for the agents, one for what they may write, one for everything else.
    Three,
}

impl Topology {
    /// The topology that a credential of the space's own account was minted for.
    #[must_use]
    pub fn of(claims: &Claims) -> Self {
        if claims.tag(AGENTS_TAG).is_some() { Self::Three } else { Self::One }
    }
}

/// The accounts that the users of a space live in, as a credential of its durable account names
/// them: that account, and the one of the agents where they have one.
#[must_use]
pub fn inhabited(claims: &Claims) -> Vec<String> {
    let agents = claims.tag(AGENTS_TAG);
    std::iter::once(claims.account.as_str()).chain(agents).map(str::to_owned).collect()
}

/// An account of a space. In a space of one account each of them is that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Account {
    /// Agents, workflow endpoints and observers; it stores nothing.
    Agents,
    /// What agents may write, and read-only mirrors for them; nobody's safety hangs on it.
    Shared,
    /// All that must not be lost, and whoever keeps it: daemon, manager, provisioner, operators,
    /// and whoever may read everything.
    Durable,
}

impl Account {
    /// Every account, in the order in which a broker is told of them: each but the last is imported
    /// from by a later one.
    pub const ALL: [Self; 3] = [Self::Shared, Self::Durable, Self::Agents];

    /// Whether it stores anything.
    #[must_use]
    pub fn has_jetstream(self) -> bool {
        self != Self::Agents
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agents => "agents",
            Self::Shared => "shared",
            Self::Durable => "durable",
        })
    }
}

/// How a subject crosses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Crossing {
    /// Requests, each answered once.
    Request,
    /// Requests, each answered by any number of messages: pulls.
    Pull,
    /// Messages that whoever imports them hears.
    Messages,
}

/// What one account offers another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The account whose subject it is.
    pub from: Account,
    /// The account that uses it.
    pub to: Account,
    /// The subject, in `from`.
    pub subject: String,
    /// How it crosses.
    pub crossing: Crossing,
    /// The subject in `to`, where it is another one; wildcards stand for those of `subject`.
    pub local: Option<String>,
}

impl Grant {
    /// The subject by which `to` uses it.
    #[must_use]
    pub fn local(&self) -> &str {
        self.local.as_deref().unwrap_or(&self.subject)
    }
}

impl Bucket {
    /// The account that holds it.
    #[must_use]
    pub fn account(self) -> Account {
        if self == Self::Presence { Account::Shared } else { Account::Durable }
    }

    /// Buckets of the durable account that agents or observers read: mirrors of them stand in the
    /// shared account.
    pub const MIRRORED: [Self; 3] = [Self::Channels, Self::Delivery, Self::Membership];
}

impl Space {
    /// Everything that crosses between the accounts of the space.
    #[must_use]
    pub fn grants(&self) -> Vec<Grant> {
        let mut list = List { space: self, grants: Vec::new() };
        list.agents_to_durable();
        list.agents_to_shared();
        list.durable_to_shared();
        list.shared_to_durable();
        list.grants
    }

    /// Where the durable account finds the API of what the shared account holds: stream and prefix,
    /// as the credentials of its users say it.
    #[must_use]
    pub fn api_tag(&self) -> String {
        let (stream, prefix) = (self.kv_stream(Bucket::Presence), self.shared_api());
        format!("{API_TAG}:{stream}={prefix}")
    }
}

/// Reads the value of an [`API_TAG`]: a stream and the prefix under which its API is served.
#[must_use]
pub fn parse_api_tag(tag: &str) -> Option<(&str, &str)> {
    tag.strip_prefix(API_TAG)?.strip_prefix(':')?.split_once('=')
}

struct List<'a> {
    space: &'a Space,
    grants: Vec<Grant>,
}

impl List<'_> {
    fn add(&mut self, (from, to): (Account, Account), subject: String, crossing: Crossing) {
        self.grants.push(Grant { from, to, subject, crossing, local: None });
    }

    /// An API call that `to` makes below a prefix of its own, because `$JS.API` is its own there.
    fn add_below(
        &mut self,
        (from, to): (Account, Account),
        prefix: &str,
        call: &str,
        crossing: Crossing,
    ) {
        let (subject, local) = (api(call), Some(format!("{prefix}.{call}")));
        self.grants.push(Grant { from, to, subject, crossing, local });
    }

    /// What agents post and ask, and the pulls from consumers that the manager made. No call that
    /// makes a consumer crosses: its body says where the broker delivers to, and in the durable
    /// account that could be a pull of the daemon's or a call that deletes.
    fn agents_to_durable(&mut self) {
        let (space, way) = (self.space, (Account::Durable, Account::Agents));
        let mut requests = vec![
            space.chat_all(),
            space.inst_all(),
            space.svc_all(),
            space.ctl_all(DELIVERY),
            space.ctl_all(ANYCAST_TAKE),
            space.live_all(DELIVERY),
            space.ept_all("schedule"),
            JS_INFO.to_owned(),
            api(&format!("STREAM.INFO.{}", space.task_stream())),
        ];
        let pulled =
            [space.dm_stream(), space.dlv_stream(), space.task_stream(), space.ept_stream()];
        for stream in &pulled {
            requests.push(api(&format!("CONSUMER.INFO.{stream}.*")));
            requests.push(format!("$JS.ACK.{stream}.>"));
        }
        for subject in requests {
            self.add(way, subject, Crossing::Request);
        }
        for stream in &pulled {
            self.add(way, api(&format!("CONSUMER.MSG.NEXT.{stream}.*")), Crossing::Pull);
        }
        // What is true of CHAT itself, beside the mirror that history is read from.
        let (prefix, info) = (space.durable_api(), format!("STREAM.INFO.{}", space.chat_stream()));
        self.add_below(way, &prefix, &info, Crossing::Request);
    }

    /// Presence, and the mirrors, read and watched in every way that clients know.
    fn agents_to_shared(&mut self) {
        let (space, way) = (self.space, (Account::Shared, Account::Agents));
        self.add(way, space.kv_subject(Bucket::Presence, ">"), Crossing::Request);
        self.add(way, JS_FLOW.to_owned(), Crossing::Request);
        let chat = space.chat_stream();
        self.add(way, format!("$JS.ACK.{chat}.>"), Crossing::Request);
        self.reads(way, &chat);
        for bucket in [Bucket::Presence].into_iter().chain(Bucket::MIRRORED) {
            let stream = space.kv_stream(bucket);
            self.add(way, api(&format!("STREAM.MSG.GET.{stream}")), Crossing::Request);
            self.add(way, api(&format!("CONSUMER.CREATE.{stream}")), Crossing::Request);
            self.reads(way, &stream);
        }
        // The inboxes to which a push watch delivers have two tokens or three; every subject of a
        // space has more.
        for inboxes in ["*.*", "*.*.*"] {
            self.add(way, inboxes.to_owned(), Crossing::Messages);
        }
    }

    /// Consumers of a stream, each made under a name.
    fn reads(&mut self, way: (Account, Account), stream: &str) {
        let calls = [
            format!("STREAM.INFO.{stream}"),
            format!("CONSUMER.CREATE.{stream}.>"),
            format!("CONSUMER.INFO.{stream}.*"),
            format!("CONSUMER.DELETE.{stream}.*"),
        ];
        for call in calls {
            self.add(way, api(&call), Crossing::Request);
        }
        self.add(way, api(&format!("CONSUMER.MSG.NEXT.{stream}.*")), Crossing::Pull);
    }

    /// Presence, as the daemon, the manager and people's commands read it.
    fn durable_to_shared(&mut self) {
        let (space, way) = (self.space, (Account::Shared, Account::Durable));
        let (stream, prefix) = (space.kv_stream(Bucket::Presence), space.shared_api());
        for call in ["STREAM.INFO", "STREAM.MSG.GET"] {
            self.add_below(way, &prefix, &format!("{call}.{stream}"), Crossing::Request);
        }
        self.add_below(way, &prefix, &format!("CONSUMER.CREATE.{stream}.>"), Crossing::Request);
        for call in ["INFO", "DELETE"] {
            let call = format!("CONSUMER.{call}.{stream}.*");
            self.add_below(way, &prefix, &call, Crossing::Request);
        }
        self.add_below(way, &prefix, &format!("CONSUMER.MSG.NEXT.{stream}.*"), Crossing::Pull);
    }

    /// What the mirrors are fed by.
    fn shared_to_durable(&mut self) {
        let (space, way) = (self.space, (Account::Durable, Account::Shared));
        let prefix = space.durable_api();
        let buckets = Bucket::MIRRORED.map(|bucket| space.kv_stream(bucket));
        for stream in buckets.into_iter().chain([space.chat_stream()]) {
            for tail in ["", ".>"] {
                let call = format!("CONSUMER.CREATE.{stream}{tail}");
                self.add_below(way, &prefix, &call, Crossing::Request);
            }
            self.add(way, format!("$JS.FC.{stream}.>"), Crossing::Request);
        }
        self.add(way, format!("{}.>", space.mirror_deliveries()), Crossing::Messages);
    }
}

fn api(call: &str) -> String {
    format!("$JS.API.{call}")
}

#[cfg(test)]
mod tests;
