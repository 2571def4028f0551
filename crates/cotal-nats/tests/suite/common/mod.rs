//! A real broker per test, which can be killed and started again on the same port and store.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cotal_broker::{LocateOptions, cache_dir, locate};
use cotal_nats::{
    ConnectOptions, Connection, CredsSource, Delivery, PullConsumer, js::ConsumerAction,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) struct Broker {
    port: u16,
    dir: TempDir,
    child: Child,
}

impl Broker {
    /// A broker without authentication.
    pub(crate) fn open() -> Self {
        Self::with("")
    }

    /// A broker whose one user has these permissions.
    pub(crate) fn restricted(permissions: &str) -> Self {
        Self::with(&format!(
            "authorization {{ users: [{{ user: u, password: p, permissions: {permissions} }}] }}\n\
             no_auth_user: u\n"
        ))
    }

    /// A broker with `extra` lines in its configuration.
    pub(crate) fn with(extra: &str) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let store = dir.path().join("js");
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\nmax_control_line: 65536\n\
             jetstream {{ store_dir: {store:?} }}\n{extra}"
        );
        std::fs::write(dir.path().join("server.conf"), config).expect("the configuration");
        let child = spawn(&dir);
        Self { port, dir, child }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// SIGKILL, as a crash is.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the broker was running");
        self.child.wait().expect("its end");
    }

    pub(crate) fn start(&mut self) {
        self.child = spawn(&self.dir);
    }

    pub(crate) fn options(&self, creds: CredsSource) -> ConnectOptions {
        ConnectOptions::new(self.url(), "test", creds).retry_initial()
    }

    /// Connects, waiting for a broker that is still starting.
    pub(crate) async fn connect(&self) -> Connection {
        self.connect_as(CredsSource::anonymous()).await
    }

    pub(crate) async fn connect_as(&self, creds: CredsSource) -> Connection {
        let connection = Connection::connect(self.options(creds)).await.expect("an attempt");
        connection.connected(SOON).await.expect("the broker comes up");
        connection
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        #[allow(clippy::print_stderr, reason = "a failed test shows the broker's side")]
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            eprintln!("broker log:\n{log}");
        }
    }
}

fn spawn(dir: &TempDir) -> Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.path().join("log"))
        .expect("the log");
    Command::new(binary())
        .arg("-c")
        .arg(dir.path().join("server.conf"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("nats-server starts")
}

/// The server that the product itself would use.
fn binary() -> PathBuf {
    let env = std::env::var_os;
    let options = LocateOptions {
        explicit: env("COTAL_NATS_SERVER").map(PathBuf::from),
        path_env: env("PATH"),
        cache_dir: cache_dir(env("XDG_CACHE_HOME"), env("HOME")).expect("a home directory"),
        allow_fetch: true,
    };
    locate(&options).expect("a nats-server").path
}

/// A stream `S` on `s.>` with `more` settings.
pub(crate) async fn stream(connection: &Connection, more: Value) {
    let mut config = json!({ "name": "S", "subjects": ["s.>"], "storage": "file" });
    let fields = config.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    connection.create_stream("S", &config).await.expect("the stream");
}

/// A durable consumer `c` on `S` and a pull from it.
pub(crate) async fn consumer(
    connection: &Connection,
    options: cotal_nats::PullOptions,
) -> PullConsumer {
    let config = json!({
        "name": "c", "durable_name": "c", "ack_policy": "explicit", "deliver_policy": "all",
        "ack_wait": 60_000_000_000_u64,
    });
    connection
        .create_consumer("S", "c", None, &config, ConsumerAction::Create)
        .await
        .expect("the consumer");
    PullConsumer::open(connection, "S", "c", options).await.expect("a pull")
}

/// A bucket `b` with `more` settings.
pub(crate) async fn bucket(connection: &Connection, more: Value) -> cotal_nats::Bucket {
    let mut config = json!({
        "name": "KV_b", "subjects": ["$KV.b.>"], "storage": "file", "max_msgs_per_subject": 8,
        "allow_rollup_hdrs": true,
    });
    let fields = config.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    connection.create_stream("KV_b", &config).await.expect("the bucket");
    cotal_nats::Bucket::new(connection, "b")
}

/// The sequences of a batch, all acked.
pub(crate) async fn ack_all(batch: Vec<Delivery>) -> Vec<u64> {
    let mut seqs = Vec::new();
    for delivery in batch {
        seqs.push(delivery.stream_seq);
        delivery.ack().await.expect("an ack");
    }
    seqs
}
