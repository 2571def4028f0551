//! A cluster of three servers that loses one, and an account with thousands of connections (EVC-3,
//! TMR-1).

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cotal_broker::{Auth, Broker, Cluster, Jwt, ServerConfig, SpawnOptions};
use cotal_delivery::{Lane, LaneOptions};
use cotal_manager::{Authority, BrokerAddress, Office, clock, ensure_daemon_credentials};
use cotal_nats::{ConnectOptions, Connection, Creds, CredsSource, Get, TlsMode};
use cotal_testkit::{Mesh, Supervisor, broker_binary, eventually, serving};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::control::{Eviction, LiveState, PrincipalLiveness};
use cotal_wire::profile::Profile;
use cotal_wire::timers::TimerBody;
use cotal_wire::{EndpointName, Principal, Space, Timer};
use cotal_workspace::{FileStore, Root};
use serde_json::{Value, json};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// Three servers of one cluster, with one provisioned space.
struct Trio {
    _dir: tempfile::TempDir,
    root: Root,
    authority: Authority,
    servers: Vec<Broker>,
}

impl Trio {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let root = Root::init(dir.path()).expect("a root");
        let space = Space::parse("main").expect("a space");
        let authority = Authority::create_or_open(&root, &space).expect("trust material");
        let ports = [free_port(), free_port(), free_port()];
        let routes: Vec<_> = ports.iter().map(|p| format!("nats://127.0.0.1:{p}")).collect();
        let binary = broker_binary();
        let mut servers = Vec::new();
        for (n, port) in ports.into_iter().enumerate() {
            let home = dir.path().join(format!("n{n}"));
            std::fs::create_dir(&home).expect("a directory");
            let mut config = ServerConfig::new(format!("n{n}"), home.join("js"));
            config.auth = Auth::Jwt(Jwt {
                operator: authority.trust().operator_jwt().to_owned(),
                system_account: authority.trust().system().public_key(),
                resolver_dir: home.join("resolver"),
                preload: authority.trust().preload().expect("accounts").into_iter().collect(),
            });
            let (name, host) = ("trio".to_owned(), "127.0.0.1".to_owned());
            config.cluster = Some(Cluster { name, host, port, routes: routes.clone() });
            let conf = home.join("server.conf");
            std::fs::write(&conf, config.render()).expect("a configuration");
            let started = Broker::spawn(&binary, &conf, SpawnOptions::default()).await;
            servers.push(started.expect("a server"));
        }
        let trio = Self { _dir: dir, root, authority, servers };
        trio.provision().await;
        trio
    }

    /// A cluster first elects a leader, so provisioning is retried until it succeeds.
    async fn provision(&self) {
        let address = BrokerAddress { url: self.servers[0].url().to_owned(), tls: TlsMode::Plain };
        let attempt = || cotal_manager::provision(&self.authority, &address);
        let done = eventually("the space is provisioned", attempt, Result::is_ok).await;
        done.expect("provisioning");
        let store = FileStore::new(self.root.clone());
        ensure_daemon_credentials(&self.authority, &store).expect("credentials");
    }

    async fn lane(&self) -> Lane {
        let store = Arc::new(FileStore::new(self.root.clone()));
        let space = self.authority.space().clone();
        serving(Lane::start(LaneOptions::new(space, self.servers[0].url(), store))).await
    }

    fn creds(&self, profile: impl Fn(Principal) -> Profile) -> Creds {
        let key = UserKey::generate();
        let profile = profile(key.principal().expect("a principal"));
        let now = clock::unix_seconds();
        let minted = mint_profile(self.authority.account(), &key, &profile, now, Some(now + 600));
        Creds::parse(minted.expect("a credential").creds.expose()).expect("a credential")
    }

    /// A server that has just joined may not know the account yet.
    async fn connect(&self, server: usize, creds: Creds) -> Connection {
        let url = self.servers[server].url();
        let options = ConnectOptions::new(url, "a test", CredsSource::new(creds));
        let attempt = || Connection::connect(options.clone());
        eventually("a connection", attempt, Result::is_ok).await.expect("a connection")
    }

    async fn supervisor(&self) -> Supervisor {
        let creds = self.creds(Profile::Supervisor);
        let own = Principal::new("local", creds.nkey()).expect("a principal");
        let connection = self.connect(0, creds).await;
        Supervisor::new(connection, own, self.authority.space().clone())
    }
}

/// Retries until the daemon can scan: on a busy machine a dial may time out.
async fn ask<T: serde::de::DeserializeOwned>(
    manager: &Supervisor,
    op: &str,
    principal: &Principal,
) -> T {
    let asked = || manager.request(op, json!({ "principal": principal }));
    let answered = eventually("the scan is answered", asked, |reply| {
        reply.as_ref().is_ok_and(|reply| reply.ok)
    });
    let data = answered.await.expect("an answer").data.expect("data");
    serde_json::from_value(data).expect("a result")
}

async fn liveness(manager: &Supervisor, principal: &Principal) -> PrincipalLiveness {
    ask(manager, "principalLiveness", principal).await
}

async fn evict(manager: &Supervisor, principal: &Principal) -> Eviction {
    ask(manager, "evictPrincipal", principal).await
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_3_a_census_needs_every_server_of_the_mesh() {
    let mut trio = Trio::start().await;
    let _lane = trio.lane().await;
    let manager = trio.supervisor().await;
    let observer = trio.creds(Profile::Observer);
    let who = Principal::new("local", observer.nkey()).expect("a principal");
    let far = trio.connect(1, observer.clone()).await;
    let farther = trio.connect(2, observer).await;

    let live = liveness(&manager, &who).await;
    assert_eq!((live.state, live.scan_complete), (LiveState::Live, true));
    assert_eq!(evict(&manager, &who).await.kicked, 2, "one on each server that reported it");
    far.close(Duration::from_secs(5)).await;
    farther.close(Duration::from_secs(5)).await;
    let gone = evict(&manager, &who).await;
    assert_eq!((gone.remaining, gone.verified_gone), (0, true));

    // A paused server proves nothing about its connections.
    trio.servers[2].pause().expect("a paused server");
    let unknown = liveness(&manager, &who).await;
    assert_eq!((unknown.state, unknown.scan_complete), (LiveState::Unknown, false));
    let unproven = evict(&manager, &who).await;
    assert!(!unproven.verified_gone && !unproven.scan_complete);
    assert!(unproven.note.is_some(), "it says why");
    trio.servers[2].resume().expect("a resumed server");
    let whole = || liveness(&manager, &who);
    eventually("the census is whole again", whole, |live| live.scan_complete).await;
}

/// Takes about half a minute: it opens thousands of connections.
#[tokio::test(flavor = "multi_thread")]
async fn evc_3_an_account_of_thousands_of_connections_is_counted_page_by_page() {
    const MANY: usize = 2_500;
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let text = mesh.creds(Profile::Observer);
    let creds = Creds::parse(&text).expect("a credential");
    let who = Principal::new("local", creds.nkey()).expect("a principal");
    let mut crowd = Vec::with_capacity(MANY);
    while crowd.len() < MANY {
        let batch = (0..25).map(|_| mesh.connect(&text));
        crowd.extend(futures_util::future::join_all(batch).await);
    }
    let live = liveness(&manager, &who).await;
    assert_eq!((live.state, live.scan_complete), (LiveState::Live, true));
    // The broker lists by age, so the youngest connection is on the last page.
    let text = mesh.creds(Profile::Observer);
    let creds = Creds::parse(&text).expect("a credential");
    let youngest = Principal::new("local", creds.nkey()).expect("a principal");
    let last = mesh.connect(&text).await;
    assert_eq!(evict(&manager, &youngest).await.kicked, 1, "every page was read");
    last.close(Duration::from_secs(5)).await;
    for connection in crowd {
        connection.close(Duration::from_millis(1)).await;
    }
    let proven = || evict(&manager, &who);
    eventually("the crowd is gone", proven, |eviction| eviction.verified_gone).await;
}

/// How many servers keep a stream is the operator's choice; the names stay the same.
#[tokio::test(flavor = "multi_thread")]
async fn tmr_1_a_timer_fires_on_a_cluster_that_lost_a_server() {
    let mut trio = Trio::start().await;
    let (_, provisioner) = {
        let url = trio.servers[0].url().to_owned();
        let address = BrokerAddress { url, tls: TlsMode::Plain };
        trio.authority.connect(Office::Provisioner, &address).await.expect("the provisioner")
    };
    let space = trio.authority.space().clone();
    for stream in [space.ept_req_stream(), space.ept_stream()] {
        let mut config = provisioner.stream_info(&stream).await.expect("a stream").config;
        config.rest.insert("num_replicas".to_owned(), json!(3));
        provisioner.update_stream(&stream, &config).await.expect("three replicas");
        // A replica that has not caught up cannot be elected.
        let replicas = || async {
            let subject = format!("$JS.API.STREAM.INFO.{stream}");
            let within = Some(Duration::from_secs(2));
            let asked = provisioner.request(subject, None, "".into(), within);
            let reply = asked.await.ok()?;
            let info: Value = serde_json::from_slice(&reply.payload).ok()?;
            let replicas = info["cluster"]["replicas"].as_array()?.clone();
            Some(replicas.iter().filter(|it| it["current"] == true).count())
        };
        eventually("two replicas caught up", replicas, |seen| *seen == Some(2)).await;
    }
    let wf = EndpointName::parse("wf").expect("an endpoint");
    let endpoint = trio.connect(0, trio.creds(|_| Profile::Workflow(wf.clone()))).await;
    let operator = trio.connect(0, trio.creds(Profile::Operator)).await;
    let _lane = trio.lane().await;
    let timer = Timer::parse("wf.i.1.t").expect("a timer");
    let ask = async |generation: u64, in_ms: i64| {
        let body = TimerBody::new(&timer, generation, clock::unix_millis() + in_ms);
        let body: cotal_nats::Bytes = serde_json::to_vec(&body).expect("JSON").into();
        let subject = space.ept_schedule(&timer);
        // During an election nobody answers; sending the same request again changes nothing.
        let asked = || endpoint.publish_confirmed(subject.clone(), None, body.clone(), None);
        eventually("a stored request", asked, Result::is_ok).await.expect("stored");
    };
    let stands = |subject: String, generation: u64| {
        let (operator, stream) = (&operator, space.ept_stream());
        async move {
            let found = || async {
                let last = Get::LastBySubject(&subject);
                let message = operator.get_message(&stream, last).await.ok()??;
                TimerBody::parse(&message.payload).ok().map(|body| body.generation)
            };
            eventually("the timer", found, |seen| *seen == Some(generation)).await;
        }
    };
    ask(1, 8_000).await;
    stands(space.ept_armed(&timer), 1).await;
    // The streams that it led elect another leader.
    trio.servers.pop().expect("a server").kill().await.expect("a killed server");
    stands(space.ept_fire(&timer), 1).await;
    ask(2, 500).await;
    stands(space.ept_fire(&timer), 2).await;
}
