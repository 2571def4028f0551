//! Profiles: what each kind of user may do (`wire.md` §8). Default-deny.

use crate::accounts::{Account, Topology};
use crate::channel::ChannelPattern;
use crate::ids::{ConnId, EndpointName, Lifecycle, Principal, Role};
use crate::limits::AGENT_SUBSCRIPTIONS;
use crate::names::{
    ANYCAST_TAKE, Bucket, DEFAULTS_KEY, DELIVERY, DELIVERY_ADMIN, FANOUT, FORWARDED_REPLIES,
    JS_FLOW, JS_INFO, READER, SYS_CLAIMS_UPDATE, SYS_PING, Space, TIMER_WRITER, replies_of, sys,
};
use crate::permissions::Permissions;

const HOUR: i64 = 3_600;

/// What an agent is minted for.
#[derive(Debug, Clone)]
pub struct AgentGrant {
    /// Which incarnation.
    pub lifecycle: Lifecycle,
    /// Channels it may read.
    pub read: Vec<ChannelPattern>,
    /// Channels it may post on.
    pub post: Vec<ChannelPattern>,
    /// The role whose requests it processes.
    pub role: Option<Role>,
}

/// A kind of user of a space.
#[derive(Debug, Clone)]
pub enum Profile {
    /// An agent.
    Agent(AgentGrant),
    /// The delivery daemon.
    Delivery(Principal),
    /// The writer of the derived membership feed.
    MembershipRw,
    /// The manager, and what `agent` commands run on.
    Supervisor(Principal),
    /// People's commands.
    Operator(Principal),
    /// Creation of streams, buckets, consumers and first rows.
    Provisioner,
    /// The same in the shared account of a space of three.
    SharedProvisioner,
    /// Removal of what an agent sent, where it fills a stream.
    Janitor,
    /// A workflow endpoint: asks for its own timers and reads when they fire.
    Workflow(EndpointName),
    /// Reads all channel traffic.
    Observer(Principal),
    /// Reads all traffic.
    Admin(Principal),
}

/// A kind of user in the system account.
#[derive(Debug, Clone)]
pub enum SystemProfile {
    /// Census of the accounts that a space's users live in.
    MembershipObserver {
        /// The accounts' nkeys.
        accounts: Vec<String>,
    },
    /// Kicks connections, broker-wide.
    ConnectionEvictor,
    /// Kicks connections of one server; one-shot, for a host's kick (EVC-5).
    Kick {
        /// The server's id.
        server: String,
    },
    /// Pushes account JWTs; one-shot.
    ClaimsPusher,
}

impl Profile {
    /// The profile's name, as in files and messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Agent(_) => "agent",
            Self::Delivery(_) => "delivery",
            Self::MembershipRw => "membership-rw",
            Self::Supervisor(_) => "supervisor",
            Self::Operator(_) => "operator",
            Self::Provisioner => "provisioner",
            Self::SharedProvisioner => "shared-provisioner",
            Self::Janitor => "janitor",
            Self::Workflow(_) => "workflow",
            Self::Observer(_) => "observer",
            Self::Admin(_) => "admin",
        }
    }

    /// The account that its users live in.
    #[must_use]
    pub fn account(&self) -> Account {
        match self {
            Self::Agent(_) | Self::Observer(_) | Self::Workflow(_) => Account::Agents,
            Self::SharedProvisioner => Account::Shared,
            _ => Account::Durable,
        }
    }

    /// How long a credential of it lives, in seconds; `None` for an agent's, which its retirement
    /// ends.
    #[must_use]
    pub fn lifetime(&self) -> Option<i64> {
        match self {
            Self::Agent(_) | Self::Observer(_) | Self::Admin(_) => None,
            Self::Delivery(_) | Self::MembershipRw | Self::Supervisor(_) => Some(24 * HOUR),
            Self::Workflow(_) => Some(30 * 24 * HOUR),
            Self::Operator(_) | Self::Provisioner | Self::SharedProvisioner | Self::Janitor => {
                Some(10 * 60)
            }
        }
    }

    /// The permissions of a user `conn` of this profile in `space`.
    #[must_use]
    pub fn permissions(&self, space: &Space, conn: &ConnId, topology: Topology) -> Permissions {
        let mut grant = Grant::new(space, conn, self.account(), topology);
        match self {
            Self::Agent(agent) => grant.agent(agent),
            Self::Delivery(own) => grant.delivery(own),
            Self::MembershipRw => grant.membership_rw(),
            Self::Supervisor(own) => grant.supervisor(own),
            Self::Operator(own) => grant.operator(own),
            Self::Provisioner => grant.provisioner(),
            Self::SharedProvisioner => grant.shared_provisioner(),
            Self::Janitor => grant.janitor(),
            Self::Workflow(endpoint) => grant.workflow(endpoint),
            Self::Observer(own) => grant.observer(own),
            Self::Admin(own) => grant.admin(own),
        }
        let may = grant.done();
        let bound = (self.account() == Account::Agents).then_some(AGENT_SUBSCRIPTIONS);
        Permissions { subscriptions: bound, ..may }
    }
}

impl SystemProfile {
    /// The profile's name, as in files and messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::MembershipObserver { .. } => "membership-observer",
            Self::ConnectionEvictor => "connection-evictor",
            Self::Kick { .. } => "kick",
            Self::ClaimsPusher => "claims-pusher",
        }
    }

    /// How long a credential of it lives, in seconds.
    #[must_use]
    pub fn lifetime(&self) -> i64 {
        match self {
            Self::MembershipObserver { .. } | Self::ConnectionEvictor => 30 * 24 * HOUR,
            Self::ClaimsPusher => 5 * 60,
            Self::Kick { .. } => 60,
        }
    }

    /// The permissions of a user `conn` of this profile. Never empty: a system-account user without
    /// a permissions block is a broker admin.
    #[must_use]
    pub fn permissions(&self, conn: &ConnId) -> Permissions {
        let mut sub = vec![format!("{}.>", conn.inbox_prefix())];
        let mut publish = vec![JS_INFO.to_owned(), JS_FLOW.to_owned()];
        match self {
            Self::MembershipObserver { accounts } => {
                publish.extend(accounts.iter().map(|account| sys::connz(account)));
                publish.push(SYS_PING.to_owned());
                for account in accounts {
                    sub.extend([sys::connects(account), sys::disconnects(account)]);
                }
            }
            Self::ConnectionEvictor => publish.push(sys::kick("*")),
            Self::Kick { server } => publish.push(sys::kick(server)),
            Self::ClaimsPusher => publish.push(SYS_CLAIMS_UPDATE.to_owned()),
        }
        Permissions { pub_allow: publish, sub_allow: sub, ..Permissions::default() }
    }
}

/// Collects a space user's permissions; the helpers carry the names of `wire.md` §8.
struct Grant<'a> {
    space: &'a Space,
    home: Account,
    topology: Topology,
    publish: Vec<String>,
    deny: Vec<String>,
    subscribe: Vec<String>,
}

impl<'a> Grant<'a> {
    fn new(space: &'a Space, conn: &ConnId, home: Account, topology: Topology) -> Self {
        Self {
            space,
            home,
            topology,
            publish: vec![JS_INFO.to_owned(), JS_FLOW.to_owned()],
            deny: Vec::new(),
            subscribe: vec![format!("{}.>", conn.inbox_prefix())],
        }
    }

    fn done(self) -> Permissions {
        Permissions {
            pub_allow: self.publish,
            pub_deny: self.deny,
            sub_allow: self.subscribe,
            ..Permissions::default()
        }
    }

    fn api(&mut self, call: &str) {
        self.publish.push(format!("$JS.API.{call}"));
    }

    fn stream_info(&mut self, stream: &str) {
        self.api(&format!("STREAM.INFO.{stream}"));
    }

    fn is_isolated(&self) -> bool {
        self.topology == Topology::Three
    }

    /// Whether a bucket stands in the account of this user, so far as a user of the durable account
    /// is concerned; agents see all of theirs as if they stood in their own.
    fn is_elsewhere(&self, bucket: Bucket) -> bool {
        self.is_isolated() && self.home == Account::Durable && bucket.account() != self.home
    }

    fn kv(&mut self, bucket: Bucket) {
        let stream = self.space.kv_stream(bucket);
        if self.is_elsewhere(bucket) {
            return self.kv_below(&self.space.shared_api(), &stream);
        }
        self.stream_info(&stream);
        self.api(&format!("STREAM.MSG.GET.{stream}"));
        self.api(&format!("CONSUMER.CREATE.{stream}"));
        for call in ["CREATE", "INFO", "DELETE"] {
            self.api(&format!("CONSUMER.{call}.{stream}.>"));
        }
        self.api(&format!("CONSUMER.MSG.NEXT.{stream}.*"));
    }

    /// The same for a bucket of the shared account, in so far as it is offered to this one.
    fn kv_below(&mut self, prefix: &str, stream: &str) {
        let calls = [
            format!("STREAM.INFO.{stream}"),
            format!("STREAM.MSG.GET.{stream}"),
            format!("CONSUMER.CREATE.{stream}.>"),
            format!("CONSUMER.INFO.{stream}.*"),
            format!("CONSUMER.DELETE.{stream}.*"),
            format!("CONSUMER.MSG.NEXT.{stream}.*"),
        ];
        self.publish.extend(calls.map(|call| format!("{prefix}.{call}")));
    }

    fn kv_write(&mut self, bucket: Bucket, keys: &str) {
        self.publish.push(self.space.kv_subject(bucket, keys));
    }

    fn pull(&mut self, stream: &str, durable: &str) {
        self.api(&format!("CONSUMER.INFO.{stream}.{durable}"));
        self.api(&format!("CONSUMER.MSG.NEXT.{stream}.{durable}"));
        self.publish.push(format!("$JS.ACK.{stream}.{durable}.>"));
    }

    fn own(&mut self, stream: &str, durable: &str) {
        self.pull(stream, durable);
        self.api(&format!("CONSUMER.CREATE.{stream}.{durable}.>"));
        self.api(&format!("CONSUMER.DELETE.{stream}.{durable}"));
    }

    /// A request subject of this caller and the reply leaf below it.
    fn calls(&mut self, request_subject: String) {
        self.subscribe.push(replies_of(&request_subject));
        self.publish.push(request_subject);
    }

    /// A service's requests and the reply leaf below each.
    fn serves(&mut self, all: String) {
        self.publish.push(replies_of(&all));
        self.subscribe.push(all);
    }

    fn agent(&mut self, agent: &AgentGrant) {
        let space = self.space;
        let own = &agent.lifecycle.principal;
        self.subscribe.extend(agent.read.iter().map(|p| space.chat_channel(p)));
        self.calls(space.ctl(DELIVERY, own));
        self.calls(space.live(DELIVERY, own));
        self.publish.extend(agent.post.iter().map(|p| space.chat_posts(own, p)));
        self.publish.extend([space.inst_from(own), space.svc_from(own)]);
        self.kv_write(Bucket::Presence, own.as_str());
        self.stream_info(&space.chat_stream());
        if self.is_isolated() {
            let (prefix, chat) = (space.durable_api(), space.chat_stream());
            self.publish.push(format!("{prefix}.STREAM.INFO.{chat}"));
        }
        self.kv(Bucket::Presence);
        self.kv(Bucket::Channels);
        let lease = space.kv_stream(Bucket::Delivery);
        self.stream_info(&lease);
        self.api(&format!("STREAM.MSG.GET.{lease}"));
        self.history(agent);
        self.pull(&space.dm_stream(), &space.dm_consumer(&agent.lifecycle));
        self.pull(&space.dlv_stream(), &space.dlv_consumer(&agent.lifecycle));
        if let Some(role) = &agent.role {
            self.calls(space.ctl(ANYCAST_TAKE, own));
            self.pull(&space.task_stream(), &space.svc_consumer(role));
            self.stream_info(&space.task_stream());
        }
        self.agent_denials();
    }

    fn history(&mut self, agent: &AgentGrant) {
        let chat = self.space.chat_stream();
        let name = self.space.chathist_consumer(&agent.lifecycle);
        for pattern in &agent.read {
            let filter = self.space.chat_channel(pattern);
            self.api(&format!("CONSUMER.CREATE.{chat}.{name}.{filter}"));
        }
        for call in ["INFO", "MSG.NEXT", "DELETE"] {
            self.api(&format!("CONSUMER.{call}.{chat}.{name}"));
        }
    }

    fn agent_denials(&mut self) {
        let space = self.space;
        let streams =
            [space.dm_stream(), space.task_stream(), space.dlv_stream(), space.inbox_stream()];
        for stream in streams {
            self.deny.push(format!("$JS.API.CONSUMER.CREATE.{stream}"));
            self.deny.push(format!("$JS.API.CONSUMER.CREATE.{stream}.>"));
            self.deny.push(format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.>"));
        }
        self.deny.push("$JS.API.DIRECT.GET.>".to_owned());
    }

    fn delivery(&mut self, own: &Principal) {
        let space = self.space;
        for service in [DELIVERY, DELIVERY_ADMIN, ANYCAST_TAKE] {
            self.serves(space.ctl_all(service));
        }
        self.serves(space.live_all(DELIVERY));
        if self.is_isolated() {
            self.publish.push(FORWARDED_REPLIES.to_owned());
        }
        let prefix = space.prefix();
        self.publish.push(format!("{prefix}.dinbox.*.*.*"));
        self.publish.push(format!("{prefix}.dlv.*.*.*"));
        self.publish.push(space.inst_from(own));
        self.publish.push(space.ept_all("armed"));
        self.delivery_streams();
        for bucket in [
            Bucket::Presence,
            Bucket::Channels,
            Bucket::Members,
            Bucket::Acl,
            Bucket::Delivery,
            Bucket::Anycast,
            Bucket::Dead,
        ] {
            self.kv(bucket);
        }
        self.kv_write(Bucket::Members, ">");
        self.kv_write(Bucket::Delivery, "lease.*");
        self.kv_write(Bucket::Anycast, ">");
        self.kv_write(Bucket::Dead, ">");
    }

    fn delivery_streams(&mut self) {
        let space = self.space;
        let (chat, inbox, dlv) = (space.chat_stream(), space.inbox_stream(), space.dlv_stream());
        let (task, ept_req) = (space.task_stream(), space.ept_req_stream());
        self.own(&chat, FANOUT);
        self.own(&inbox, READER);
        self.own(&ept_req, TIMER_WRITER);
        self.api(&format!("DIRECT.GET.{chat}"));
        self.api(&format!("DIRECT.GET.{chat}.>"));
        // To trim what is routed; a purge cannot be confined to a subject.
        self.api(&format!("STREAM.PURGE.{chat}"));
        self.api(&format!("STREAM.MSG.GET.{chat}"));
        self.api(&format!("CONSUMER.INFO.{dlv}.*"));
        for stream in [&chat, &inbox, &dlv, &task, &ept_req, &space.ept_stream()] {
            self.stream_info(stream);
        }
        for stream in [&inbox, &dlv, &task] {
            self.api(&format!("STREAM.MSG.GET.{stream}"));
            self.api(&format!("STREAM.MSG.DELETE.{stream}"));
        }
        self.api(&format!("STREAM.MSG.GET.{}", space.ept_stream()));
    }

    fn membership_rw(&mut self) {
        self.kv(Bucket::Members);
        self.kv(Bucket::Membership);
        self.kv_write(Bucket::Membership, ">");
    }

    fn supervisor(&mut self, own: &Principal) {
        let space = self.space;
        self.calls(space.ctl(DELIVERY_ADMIN, own));
        for bucket in [Bucket::Acl, Bucket::Members, Bucket::Presence, Bucket::Manager] {
            self.kv(bucket);
        }
        for bucket in [Bucket::Acl, Bucket::Manager, Bucket::Members] {
            self.kv_write(bucket, ">");
        }
        for stream in [space.dm_stream(), space.dlv_stream(), space.task_stream()] {
            self.api(&format!("CONSUMER.CREATE.{stream}.>"));
            self.api(&format!("CONSUMER.INFO.{stream}.*"));
            self.api(&format!("CONSUMER.DELETE.{stream}.*"));
        }
        for stream in [space.chat_stream(), space.dm_stream(), space.task_stream()] {
            self.stream_info(&stream);
        }
    }

    fn operator(&mut self, own: &Principal) {
        let space = self.space;
        for bucket in Bucket::ALL {
            self.kv(bucket);
        }
        self.kv_write(Bucket::Channels, ">");
        self.kv_write(Bucket::Dead, ">");
        for config in space.stream_configs(0, false) {
            self.stream_info(&config.name);
        }
        // Whether what is posted is delivered shows at the daemon's own consumers.
        for (stream, durable) in [(space.chat_stream(), FANOUT), (space.inbox_stream(), READER)] {
            self.api(&format!("CONSUMER.INFO.{stream}.{durable}"));
        }
        let (requests, timers) = (space.ept_req_stream(), space.ept_stream());
        for stream in [space.inbox_stream(), space.dlv_stream(), requests, timers] {
            self.api(&format!("STREAM.MSG.GET.{stream}"));
        }
        self.calls(space.live(DELIVERY, own));
    }

    fn workflow(&mut self, endpoint: &EndpointName) {
        let space = self.space;
        self.publish.push(space.ept_endpoint(endpoint, "schedule"));
        self.pull(&space.ept_stream(), &space.ept_consumer(endpoint));
    }

    fn provisioner(&mut self) {
        let space = self.space;
        let streams = space.stream_configs(0, false).into_iter().map(|config| config.name);
        let buckets: Vec<_> =
            Bucket::ALL.into_iter().filter(|&bucket| !self.is_elsewhere(bucket)).collect();
        let buckets = buckets.into_iter().map(|bucket| space.kv_stream(bucket));
        for stream in streams.chain(buckets) {
            self.provisions(&stream);
            self.api(&format!("CONSUMER.CREATE.{stream}.>"));
        }
        self.kv_write(Bucket::Channels, DEFAULTS_KEY);
    }

    fn shared_provisioner(&mut self) {
        self.provisions(&self.space.chat_stream());
        for bucket in [Bucket::Presence].into_iter().chain(Bucket::MIRRORED) {
            self.provisions(&self.space.kv_stream(bucket));
        }
    }

    fn provisions(&mut self, stream: &str) {
        for call in ["CREATE", "UPDATE", "INFO"] {
            self.api(&format!("STREAM.{call}.{stream}"));
        }
    }

    /// A purge cannot be confined to a subject, so only a credential of minutes has it.
    fn janitor(&mut self) {
        let space = self.space;
        for stream in [space.chat_stream(), space.dm_stream(), space.task_stream()] {
            self.stream_info(&stream);
            self.api(&format!("STREAM.PURGE.{stream}"));
        }
    }

    fn observer(&mut self, own: &Principal) {
        let space = self.space;
        self.subscribe.push(space.chat_all());
        for bucket in [Bucket::Presence, Bucket::Channels, Bucket::Membership] {
            self.kv(bucket);
        }
        self.reads(&space.chat_stream());
        self.keeps_off(&space.chat_stream(), FANOUT);
        self.calls(space.live(DELIVERY, own));
    }

    fn admin(&mut self, own: &Principal) {
        self.observer(own);
        let space = self.space;
        self.subscribe.extend([space.inst_all(), space.svc_all()]);
        self.reads(&space.dm_stream());
    }

    /// Consumers of a stream, of any name. The name must stand in the subject: the broker obeys one
    /// in the body of a bare create too, and then no permission could keep a consumer out of reach.
    fn reads(&mut self, stream: &str) {
        self.stream_info(stream);
        for call in ["CREATE", "INFO", "DELETE"] {
            self.api(&format!("CONSUMER.{call}.{stream}.>"));
        }
        self.api(&format!("CONSUMER.MSG.NEXT.{stream}.*"));
        self.publish.push(format!("$JS.ACK.{stream}.>"));
    }

    /// Takes the daemon's own consumer out of [`Self::reads`]: whoever pulls from it, acknowledges
    /// for it or makes it anew takes posts away from every member.
    fn keeps_off(&mut self, stream: &str, durable: &str) {
        for call in ["CREATE", "DELETE", "MSG.NEXT"] {
            let subject = format!("$JS.API.CONSUMER.{call}.{stream}.{durable}");
            self.deny.extend([format!("{subject}.>"), subject]);
        }
        self.deny.push(format!("$JS.ACK.{stream}.{durable}.>"));
    }
}
