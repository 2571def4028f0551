//! A provisioned mesh in a temporary root.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cotal_broker::{Broker, BrokerBinary, ListenPort, LocateOptions, cache_dir, locate};
use cotal_delivery::{Lane, LaneOptions, Stage, Upkeep};
use cotal_manager::launch::BrokerLaunch;
use cotal_manager::{
    AgentName, Agents, Authority, BrokerAddress, NewAgent, clock, ensure_daemon_credentials,
    provision, provision_endpoint,
};
use cotal_nats::{ConnectOptions, Connection, Creds, CredsSource, TlsMode};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::accounts::{Account, Topology};
use cotal_wire::names::ANYCAST_TAKE;
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::rows::{ChannelConfig, DeliveryClass};
use cotal_wire::{Channel, ChannelPattern, EndpointName, Role, Space};
use cotal_workspace::{
    Durability, FileStore, MeshFile, Root, Secret, SecretKey, SecretKind, SecretStore as _,
};
use tempfile::TempDir;

use crate::peer::Peer;

/// The feed looks at an idle space this often, so that tests of it wait for little.
const FEED_IDLE_EVERY: Duration = Duration::from_secs(2);

/// What differs from mesh to mesh.
#[derive(Debug, Clone, Default)]
pub struct MeshOptions {
    /// Spaces; one named `main` when empty.
    pub spaces: Vec<String>,
    /// The cap of the broker's stores, in bytes.
    pub max_file_store: Option<u64>,
    /// Spaces of one account, as they were made before there were three.
    pub one_account: bool,
}

/// A broker, its trust, and provisioned spaces.
#[derive(Debug)]
pub struct Mesh {
    dir: TempDir,
    root: Root,
    spaces: Vec<Space>,
    max_file_store: Option<u64>,
    binary: BrokerBinary,
    broker: Option<Broker>,
    url: String,
    port: u16,
}

/// The broker under test: `COTAL_NATS_SERVER`, `PATH`, the cache, or fetched into it.
///
/// # Panics
/// When there is none and none can be fetched.
#[must_use]
pub fn broker_binary() -> BrokerBinary {
    let env = std::env::var_os;
    locate(&LocateOptions {
        explicit: env("COTAL_NATS_SERVER").map(PathBuf::from),
        path_env: env("PATH"),
        cache_dir: cache_dir(env("XDG_CACHE_HOME"), env("HOME")).expect("a cache directory"),
        allow_fetch: true,
    })
    .expect("a nats-server to test against")
}

impl Mesh {
    /// A mesh with the one space `main`.
    pub async fn start() -> Self {
        Self::with(MeshOptions::default()).await
    }

    /// The same, where the space has one account, as all had before there were three.
    pub async fn of_one_account() -> Self {
        Self::with(MeshOptions { one_account: true, ..MeshOptions::default() }).await
    }

    /// A mesh as `options` say.
    ///
    /// # Panics
    /// When any part of it cannot be brought up.
    pub async fn with(options: MeshOptions) -> Self {
        crate::init_logs();
        let names =
            if options.spaces.is_empty() { vec!["main".to_owned()] } else { options.spaces };
        let spaces: Vec<_> =
            names.iter().map(|name| Space::parse(name).expect("a space name")).collect();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = Root::init(dir.path()).expect("a root");
        let topology = if options.one_account { Topology::One } else { Topology::Three };
        let authorities: Vec<_> = spaces
            .iter()
            .map(|space| Authority::create_as(&root, space, topology).expect("trust material"))
            .collect();
        let binary = broker_binary();
        let mut mesh = Self {
            dir,
            root,
            spaces,
            max_file_store: options.max_file_store,
            binary,
            broker: None,
            url: String::new(),
            port: 0,
        };
        mesh.launch_broker(ListenPort::Any).await;
        mesh.save_mesh_file();
        for authority in &authorities {
            mesh.provision(authority).await;
        }
        mesh
    }

    fn save_mesh_file(&self) {
        let file = MeshFile {
            server: self.url.clone(),
            tls: false,
            ca: None,
            mode: cotal_workspace::Mode::Auth,
            durability: Durability::Default,
            spaces: self.spaces.clone(),
        };
        file.save(&self.root).expect("the mesh file");
    }

    async fn launch_broker(&mut self, port: ListenPort) {
        let trust = cotal_trust::Trust::open(&self.root).expect("trust material");
        let launch = BrokerLaunch {
            root: &self.root,
            binary: &self.binary,
            trust: Some(&trust),
            port,
            durability: Durability::Default,
            tls: false,
            detach: false,
            max_file_store: self.max_file_store,
        };
        let broker = launch.start().await.expect("a running broker");
        self.url = broker.url().to_owned();
        self.port = broker.port().expect("a port");
        self.broker = Some(broker);
    }

    async fn provision(&self, authority: &Authority) {
        provision(authority, &self.address()).await.expect("provisioning");
        let store = FileStore::new(self.root.clone());
        ensure_daemon_credentials(authority, &store).expect("the daemon's credentials");
    }

    /// The workspace root.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The directory that holds the root.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The first space.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.spaces[0]
    }

    /// The broker's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// `host:port` of the broker, for a [`crate::Proxy`].
    #[must_use]
    pub fn host_port(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How the manager's side speaks to the broker.
    #[must_use]
    pub fn address(&self) -> BrokerAddress {
        BrokerAddress { url: self.url.clone(), tls: TlsMode::Plain }
    }

    /// The keys of the first space.
    ///
    /// # Panics
    /// When the trust material is gone.
    #[must_use]
    pub fn authority(&self) -> Authority {
        Authority::open(&self.root, self.space()).expect("trust material")
    }

    /// The running broker.
    ///
    /// # Panics
    /// When it was killed.
    pub fn broker(&mut self) -> &mut Broker {
        self.broker.as_mut().expect("a running broker")
    }

    /// Ends the broker with SIGKILL.
    ///
    /// # Panics
    /// When it is not running.
    pub async fn kill_broker(&mut self) {
        let broker = self.broker.take().expect("a running broker");
        broker.kill().await.expect("a killed broker");
    }

    /// Starts the broker again, on its store and port.
    pub async fn restart_broker(&mut self) {
        self.launch_broker(ListenPort::Fixed(self.port)).await;
    }

    /// Provisions an agent, as `cotal agent add` does, and gives its credential's text.
    ///
    /// # Panics
    /// When it cannot be provisioned.
    pub async fn add_agent(
        &self,
        name: &str,
        read: &[&str],
        post: &[&str],
        role: Option<&str>,
    ) -> String {
        let patterns = |texts: &[&str]| {
            texts.iter().map(|t| ChannelPattern::parse(t).expect("a pattern")).collect()
        };
        let agent = NewAgent {
            name: AgentName::parse(name).expect("a name"),
            read: patterns(read),
            post: patterns(post),
            role: role.map(|role| Role::parse(role).expect("a role")),
        };
        let address = self.address();
        let agents = Agents::connect(&self.root, self.space(), &address).await;
        agents.expect("the supervisor").add(&agent).await.expect("an agent");
        let kind = SecretKind::Agent(agent.name.principal().clone());
        let key = SecretKey::new(self.space(), kind);
        let store = FileStore::new(self.root.clone());
        store.get(&key).expect("the store").expect("the credential").expose().to_owned()
    }

    /// Provisions a workflow endpoint, as `cotal timer creds` does, and gives its credential's
    /// text.
    ///
    /// # Panics
    /// When it cannot be provisioned.
    pub async fn add_endpoint(&self, name: &str) -> String {
        let name = EndpointName::parse(name).expect("an endpoint");
        let made = provision_endpoint(&self.authority(), &self.address(), &name, 600).await;
        made.expect("an endpoint").expose().to_owned()
    }

    /// Provisions an agent and connects it as a bare protocol client.
    pub async fn peer(&self, name: &str, read: &[&str], post: &[&str]) -> Peer {
        self.peer_with_role(name, read, post, None).await
    }

    /// The same with a role.
    pub async fn peer_with_role(
        &self,
        name: &str,
        read: &[&str],
        post: &[&str],
        role: Option<&str>,
    ) -> Peer {
        let creds = self.add_agent(name, read, post, role).await;
        Peer::connect(&self.url, &creds).await
    }

    /// A credential of any profile of the first space, valid for ten minutes. `profile` is given
    /// the principal that the credential's own key makes.
    ///
    /// # Panics
    /// When it cannot be minted.
    #[must_use]
    pub fn creds(&self, profile: impl Fn(cotal_wire::Principal) -> Profile) -> String {
        let key = UserKey::generate();
        let now = clock::unix_seconds();
        let own = key.principal().expect("a principal");
        let authority = self.authority();
        let minted = mint_profile(authority.account(), &key, &profile(own), now, Some(now + 600));
        minted.expect("a credential").creds.expose().to_owned()
    }

    /// The credential of an agent with a role as it would have been minted before there were takes.
    ///
    /// # Panics
    /// When `creds` is not such an agent's, or nothing can be minted.
    #[must_use]
    pub fn predating_takes(&self, creds: &str) -> String {
        let claims = cotal_wire::creds::Creds::parse(creds).expect("a credential").claims;
        let grant = AgentGrant {
            lifecycle: claims.lifecycle().expect("an agent's credential"),
            read: Vec::new(),
            post: Vec::new(),
            role: claims.role(),
        };
        let key = UserKey::generate();
        let conn = key.conn_id().expect("a key");
        let authority = self.authority();
        let topology = authority.account().topology();
        let mut permissions = Profile::Agent(grant).permissions(self.space(), &conn, topology);
        for subjects in [&mut permissions.pub_allow, &mut permissions.sub_allow] {
            subjects.retain(|subject| !subject.contains(ANYCAST_TAKE));
        }
        let spec = cotal_trust::UserSpec {
            name: "agent",
            key: &key,
            tags: claims.tags,
            permissions,
            issued_at: clock::unix_seconds(),
            expires_at: None,
        };
        let minted = cotal_trust::mint_user(authority.account().keys_of(Account::Agents), &spec);
        minted.expect("a credential").creds.expose().to_owned()
    }

    /// Signs the stored delivery credential of the first space anew under its own key: issued `ago`
    /// seconds ago, with `left` seconds to live.
    ///
    /// # Panics
    /// When there is none, or it cannot be replaced.
    pub fn set_delivery_life(&self, ago: i64, left: i64) {
        let store = FileStore::new(self.root.clone());
        let at = SecretKey::new(self.space(), SecretKind::Delivery);
        let held = store.get(&at).expect("the store").expect("a credential");
        let seed = cotal_wire::creds::Creds::parse(held.expose()).expect("a credential").seed;
        let key = UserKey::from_seed(&Secret::new(seed)).expect("a key");
        let profile = Profile::Delivery(key.principal().expect("a principal"));
        let (now, authority) = (clock::unix_seconds(), self.authority());
        let minted = mint_profile(authority.account(), &key, &profile, now - ago, Some(now + left));
        store.put(&at, &minted.expect("a credential").creds).expect("stored");
    }

    /// A connection with a credential's text.
    ///
    /// # Panics
    /// When the broker does not take it.
    pub async fn connect(&self, creds: &str) -> Connection {
        let source = CredsSource::new(Creds::parse(creds).expect("a credential"));
        let options = ConnectOptions::new(self.url.as_str(), "test", source);
        Connection::connect(options).await.expect("a connection")
    }

    /// A connection that may read every bucket and stream state.
    pub async fn operator(&self) -> Connection {
        self.connect(&self.creds(Profile::Operator)).await
    }

    /// A connection that may do all in the account where the space's streams are, for what no
    /// profile may: tampering and looking into stores.
    pub async fn god(&self) -> Connection {
        self.all_of(Account::Durable).await
    }

    /// The same in any account of the space.
    ///
    /// # Panics
    /// When it cannot be minted.
    pub async fn all_of(&self, account: Account) -> Connection {
        let key = UserKey::generate();
        let now = clock::unix_seconds();
        let all = vec![">".to_owned()];
        let authority = self.authority();
        let spec = cotal_trust::UserSpec {
            name: "test-god",
            key: &key,
            tags: authority.account().tags_of(account),
            permissions: cotal_wire::permissions::Permissions {
                pub_allow: all.clone(),
                sub_allow: all,
                ..Default::default()
            },
            issued_at: now,
            expires_at: Some(now + 3_600),
        };
        let minted = cotal_trust::mint_user(authority.account().keys_of(account), &spec);
        self.connect(minted.expect("a credential").creds.expose()).await
    }

    /// Sets a channel's class, as `cotal channel set` does.
    ///
    /// # Panics
    /// When the row cannot be written.
    pub async fn set_class(&self, channel: &str, class: DeliveryClass) {
        let channel = Channel::parse(channel).expect("a channel");
        let config = ChannelConfig { delivery_class: Some(class), ..ChannelConfig::default() };
        let bucket = self.space().bucket(cotal_wire::names::Bucket::Channels);
        let kv = cotal_nats::Bucket::new(&self.operator().await, &bucket);
        let value = serde_json::to_vec(&config).expect("JSON");
        kv.put(channel.as_str(), value.into()).await.expect("a channel row");
    }

    /// How a lane of the first space is run.
    #[must_use]
    pub fn lane_options(&self) -> LaneOptions {
        let store = Arc::new(FileStore::new(self.root.clone()));
        LaneOptions {
            upkeep: Upkeep { feed_idle_every: FEED_IDLE_EVERY, ..Upkeep::default() },
            ..LaneOptions::new(self.space().clone(), self.url.as_str(), store)
        }
    }

    /// A lane in this process, serving.
    pub async fn lane(&self) -> Lane {
        self.serve(self.lane_options()).await
    }

    /// The same, run as `options` say.
    pub async fn serve(&self, options: LaneOptions) -> Lane {
        serving(Lane::start(options)).await
    }
}

/// Waits until a lane serves.
///
/// # Panics
/// When it ends instead.
pub async fn serving(mut lane: Lane) -> Lane {
    let mut stage = lane.stage();
    let ready = stage.wait_for(|s| matches!(s, Stage::Ready | Stage::Ended { .. })).await;
    if matches!(*ready.expect("a running lane"), Stage::Ended { .. }) {
        panic!("the lane ended instead of serving: {:?}", lane.ended().await);
    }
    lane
}
