//! A real server: fetched or found once, then started, paused, stopped and broken.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::env;
use std::fs::Permissions;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use cotal_broker::{
    Broker, BrokerBinary, BrokerError, Cluster, ListenPort, LocateOptions, ProbeError,
    ServerConfig, SpawnOptions, Stopped, Sync, cache_dir, locate, probe,
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The machine's server, found as the product finds it.
fn binary() -> &'static BrokerBinary {
    static BINARY: OnceLock<BrokerBinary> = OnceLock::new();
    BINARY.get_or_init(|| {
        locate(&LocateOptions {
            explicit: env::var_os("COTAL_NATS_SERVER").map(PathBuf::from),
            path_env: env::var_os("PATH"),
            cache_dir: cache_dir(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")).unwrap(),
            allow_fetch: true,
        })
        .unwrap()
    })
}

struct Fixture {
    dir: TempDir,
    config: ServerConfig,
}

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let config = ServerConfig::new("t", dir.path().join("js"));
        Self { dir, config }
    }

    fn write(&self) -> PathBuf {
        let conf = self.dir.path().join("server.conf");
        std::fs::write(&conf, self.config.render()).unwrap();
        conf
    }

    async fn try_spawn(&self) -> Result<Broker, BrokerError> {
        Broker::spawn(binary(), &self.write(), SpawnOptions::default()).await
    }

    async fn spawn(&self) -> Broker {
        self.try_spawn().await.unwrap()
    }
}

#[tokio::test]
async fn a_server_is_ready_when_it_is_returned_and_gone_when_it_is_stopped() {
    let broker = Fixture::new().spawn().await;
    let url = broker.url().to_owned();
    let info = probe(&url).await.unwrap();
    assert_eq!(&info, broker.info());
    assert_eq!(info.version, binary().version);
    assert!(info.jetstream && !info.auth_required && !info.tls_required);
    assert_eq!(info.max_payload, 1024 * 1024);
    let stopped = broker.stop().await.unwrap();
    assert!(matches!(stopped, Stopped::Gracefully(_)), "{stopped:?}");
    assert!(matches!(probe(&url).await, Err(ProbeError::Unreachable { .. })));
}

#[tokio::test]
async fn settings_reach_the_server_with_every_odd_character() {
    let mut fixture = Fixture::new();
    fixture.config.server_name = "$a\"quoted\"\\name#é".to_owned();
    fixture.config.max_payload = Some(4096);
    fixture.config.jetstream.sync = Sync::Always;
    fixture.config.jetstream.max_file_store = Some(1 << 20);
    fixture.config.jetstream.store_dir = fixture.dir.path().join("odd \"dir\" $HOME");
    fixture.config.pid_file = Some(fixture.dir.path().join("server.pid"));
    fixture.config.ping_interval = Some(Duration::from_millis(1500));
    fixture.config.ping_max = Some(2);
    let broker = fixture.spawn().await;
    assert_eq!(broker.info().server_name, fixture.config.server_name);
    assert_eq!(broker.info().max_payload, 4096);
    assert!(fixture.config.jetstream.store_dir.join("jetstream").is_dir());
    let recorded = std::fs::read_to_string(fixture.dir.path().join("server.pid")).unwrap();
    assert_eq!(recorded.trim(), broker.pid().to_string());
    let log = std::fs::read_to_string(broker.log()).unwrap();
    assert!(log.contains("1.00 MB"), "max_file_store is not applied: {log}");
}

#[tokio::test]
async fn a_port_in_use_is_said_so_even_when_a_nats_server_answers_there() {
    let first = Fixture::new().spawn().await;
    let mut fixture = Fixture::new();
    fixture.config.port = ListenPort::Fixed(first.port().unwrap());
    let error = fixture.try_spawn().await.unwrap_err();
    assert!(matches!(error, BrokerError::PortInUse { .. }), "{error}");
    assert!(error.to_string().contains(&first.port().unwrap().to_string()));
}

#[tokio::test]
async fn a_crash_at_start_shows_the_log_of_this_run_only() {
    let mut fixture = Fixture::new();
    let log = fixture.dir.path().join("server.log");
    std::fs::write(&log, "an older run said address already in use\n").unwrap();
    let file = fixture.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    fixture.config.jetstream.store_dir = file.join("js");
    let error = fixture.try_spawn().await.unwrap_err();
    let BrokerError::Crashed { tail, status, .. } = &error else { panic!("{error}") };
    assert!(!status.success());
    assert!(tail.contains("JetStream") && !tail.contains("older run"), "{tail}");
}

/// A port that was free a moment ago: the routes must be known before the servers start.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Reads what a server tells its clients about the cluster until it lists all of `urls`.
async fn hears_of_members(urls: &[String]) {
    let mut stream = BufReader::new(TcpStream::connect(&urls[0]).await.unwrap());
    let hello = b"CONNECT {\"verbose\":false,\"protocol\":1}\r\nPING\r\n";
    stream.get_mut().write_all(hello).await.unwrap();
    let mut line = String::new();
    while stream.read_line(&mut line).await.unwrap() > 0 {
        if urls.iter().all(|url| line.contains(url.as_str())) {
            return;
        }
        line.clear();
    }
    panic!("the server hung up");
}

#[tokio::test]
async fn three_servers_form_a_cluster() {
    let ports = [free_port(), free_port(), free_port()];
    let routes: Vec<String> = ports.iter().map(|p| format!("nats://127.0.0.1:{p}")).collect();
    let mut members = Vec::new();
    for (i, port) in ports.into_iter().enumerate() {
        let mut fixture = Fixture::new();
        fixture.config.server_name = format!("n{i}");
        let host = "127.0.0.1".to_owned();
        let name = "trio".to_owned();
        fixture.config.cluster = Some(Cluster { name, host, port, routes: routes.clone() });
        let broker = fixture.spawn().await;
        members.push((fixture, broker));
    }
    let (_, first) = &members[0];
    assert_eq!(first.info().cluster.as_deref(), Some("trio"));
    let mut urls: Vec<String> =
        members.iter().map(|(_, broker)| broker.url().replace("nats://", "")).collect();
    urls.sort();
    let known = timeout(Duration::from_secs(20), hears_of_members(&urls[..])).await;
    assert!(known.is_ok(), "the members never found each other");
}

#[tokio::test]
async fn a_paused_server_is_silent_and_answers_after_it_is_resumed() {
    let mut broker = Fixture::new().spawn().await;
    let address = broker.url().trim_start_matches("nats://").to_owned();
    broker.pause().unwrap();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let mut byte = [0];
    let read = timeout(Duration::from_millis(300), stream.read(&mut byte)).await;
    assert!(read.is_err(), "a paused server spoke");
    broker.resume().unwrap();
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(&byte, b"I");
}

#[tokio::test]
async fn a_paused_server_can_be_stopped() {
    let mut broker = Fixture::new().spawn().await;
    broker.pause().unwrap();
    assert!(matches!(broker.stop().await, Ok(Stopped::Gracefully(_))));
}

/// A server that does not hear the signal to end, as one that hangs would not.
fn deaf(dir: &Path) -> BrokerBinary {
    let script = format!(
        "#!/bin/sh\ntrap '' TERM\nsetpriv --pdeathsig KILL '{}' \"$@\" &\n\
         until mv \"$4\"/*_$!.ports \"$4/deaf_$$.ports\" 2>/dev/null; do sleep 0.01; done\n\
         wait\n",
        binary().path.display()
    );
    let path = dir.join("deaf");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    BrokerBinary { path, ..binary().clone() }
}

#[tokio::test]
async fn a_server_that_has_no_time_left_is_killed() {
    let fixture = Fixture::new();
    let options = SpawnOptions { stop_within: Duration::ZERO, ..SpawnOptions::default() };
    let deaf = deaf(fixture.dir.path());
    let broker = Broker::spawn(&deaf, &fixture.write(), options).await.unwrap();
    let stopped = broker.stop().await.unwrap();
    assert!(matches!(stopped, Stopped::Killed(_)), "{stopped:?}");
}

#[tokio::test]
async fn a_server_that_is_not_ready_in_time_is_not_handed_out() {
    let fixture = Fixture::new();
    let options = SpawnOptions { ready_within: Duration::ZERO, ..SpawnOptions::default() };
    let error = Broker::spawn(binary(), &fixture.write(), options).await.unwrap_err();
    assert!(matches!(error, BrokerError::NotReady { .. }), "{error}");
}

#[tokio::test]
async fn a_killed_server_starts_again_over_what_it_left() {
    let fixture = Fixture::new();
    let broker = fixture.spawn().await;
    let (url, first) = (broker.url().to_owned(), broker.info().server_id.clone());
    let status = broker.kill().await.unwrap();
    assert!(!status.success());
    assert!(probe(&url).await.is_err());
    let again = fixture.spawn().await;
    assert_ne!(again.info().server_id, first);
    let ports = fixture.dir.path().join("server.ports");
    assert_eq!(std::fs::read_dir(ports).unwrap().count(), 1, "the stale ports file is still there");
}

#[tokio::test]
async fn an_end_that_nobody_asked_for_is_seen() {
    let mut broker = Fixture::new().spawn().await;
    assert!(broker.ended().unwrap().is_none());
    let pid = i32::try_from(broker.pid()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    broker.wait().await.unwrap();
    assert!(broker.ended().unwrap().is_some());
    assert!(matches!(broker.pause(), Err(BrokerError::Ended { .. })));
}

/// The end of a connection is the event that shows that its server is gone.
async fn hears_the_end_of(stream: &mut TcpStream) -> bool {
    let drained = async {
        let mut rest = Vec::new();
        // A killed server may reset instead of closing.
        let _ = stream.read_to_end(&mut rest).await;
    };
    timeout(Duration::from_secs(5), drained).await.is_ok()
}

#[tokio::test]
async fn dropping_kills_the_server_unless_it_is_detached() {
    let fixture = Fixture::new();
    let broker = fixture.spawn().await;
    let address = broker.url().trim_start_matches("nats://").to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    drop(broker);
    assert!(hears_the_end_of(&mut stream).await);

    let options = SpawnOptions { detach: true, ..SpawnOptions::default() };
    let broker = Broker::spawn(binary(), &fixture.write(), options).await.unwrap();
    let (url, pid) = (broker.url().to_owned(), broker.pid());
    drop(broker);
    probe(&url).await.unwrap();
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    let mut stream = TcpStream::connect(url.trim_start_matches("nats://")).await.unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(hears_the_end_of(&mut stream).await);
}

#[tokio::test]
async fn a_listener_that_is_no_broker_is_called_that() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("nats://{}", listener.local_addr()?);
    let answer = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = listener.accept()?;
        io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n")
    });
    let error = probe(&url).await.unwrap_err();
    assert!(matches!(error, ProbeError::NotNats { .. }), "{error}");
    answer.await?
}

#[test]
fn two_fetches_at_once_end_in_one_complete_cache() {
    let dir = TempDir::new().unwrap();
    let options = LocateOptions {
        explicit: None,
        path_env: None,
        cache_dir: dir.path().to_owned(),
        allow_fetch: true,
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(|| locate(&options).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(found[0].path, found[1].path);
    let left: Vec<_> = std::fs::read_dir(dir.path().join("nats-server"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != ".lock")
        .collect();
    assert_eq!(left, ["2.15.1"], "something besides the server stayed behind");
}

/// The broker's own banner is longer than the limit, so it is moved aside more than once.
#[tokio::test]
async fn its_log_is_moved_aside_at_its_size_and_one_moved_part_is_kept() {
    let mut fixture = Fixture::new();
    let log = fixture.dir.path().join("server.log");
    fixture.config.log_file = Some(log.clone());
    fixture.config.log_size_limit = Some(200);
    let broker = fixture.spawn().await;
    broker.stop().await.unwrap();
    let names = std::fs::read_dir(fixture.dir.path()).unwrap();
    let names: Vec<_> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let parts: Vec<_> = names.iter().filter(|name| name.starts_with("server.log")).collect();
    assert_eq!(parts.len(), 2, "{names:?}");
    assert!(log.metadata().unwrap().len() < 2_000);
}
