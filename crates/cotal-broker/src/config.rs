//! What a server is told: its configuration file, rendered from values.
//!
//! Invariant: every value that came from outside is written as a quoted string with everything
//! special escaped, so that no path, name or token can add a setting or be read as a variable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a client may take to present its credential, in seconds. The broker's own 2 s reject
/// good clients on a machine that is busy; a connection that presents nothing costs no more than a
/// socket.
const AUTH_TIMEOUT: u32 = 10;

/// The configuration of one server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The address it listens on; loopback unless something else is asked for.
    pub host: String,
    /// The port it listens on.
    pub port: ListenPort,
    /// The name by which clients and cluster members see it.
    pub server_name: String,
    /// Storage.
    pub jetstream: JetStream,
    /// Who may connect.
    pub auth: Auth,
    /// The longest protocol line. The broker's own 4 KiB is too short for a CONNECT that carries a
    /// JWT with many permissions.
    pub max_control_line: u32,
    /// Connections that it takes in all, those that have not presented a credential yet among them;
    /// the broker's own default is 65,536.
    pub max_connections: Option<u32>,
    /// The largest message body, when it differs from the broker's 1 MiB.
    pub max_payload: Option<u32>,
    /// TLS, when clients must speak it.
    pub tls: Option<Tls>,
    /// The cluster that it is a member of.
    pub cluster: Option<Cluster>,
    /// How often a silent client is pinged.
    pub ping_interval: Option<Duration>,
    /// How many pings may stay unanswered.
    pub ping_max: Option<u32>,
    /// Where it writes its process id.
    pub pid_file: Option<PathBuf>,
    /// Where it logs, when not to the standard streams it was started with.
    pub log_file: Option<PathBuf>,
    /// The size in bytes at which that file is moved aside; one moved file is kept.
    pub log_size_limit: Option<u64>,
}

/// The port a server listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenPort {
    /// A port that the system chooses; it is known once the server is ready.
    Any,
    /// This port.
    Fixed(u16),
}

/// File storage.
#[derive(Debug, Clone)]
pub struct JetStream {
    /// The directory.
    pub store_dir: PathBuf,
    /// The most bytes that it may hold; the broker's own default is a share of the disk.
    pub max_file_store: Option<u64>,
    /// When an acknowledged write is on the disk.
    pub sync: Sync,
}

/// When an acknowledged write is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// The broker's default of two minutes: a power failure can lose acknowledged writes.
    #[default]
    Periodic,
    /// Before the acknowledgement, at about a fifteenth of the speed.
    Always,
}

/// Who may connect.
#[derive(Debug, Clone)]
pub enum Auth {
    /// Anybody who reaches the port: development only.
    Open,
    /// Holders of a JWT that an account of this operator signed.
    Jwt(Jwt),
}

/// Operator trust, with a directory that takes accounts while the server runs.
#[derive(Debug, Clone)]
pub struct Jwt {
    /// The operator's JWT.
    pub operator: String,
    /// The public key of the system account.
    pub system_account: String,
    /// The directory of account JWTs.
    pub resolver_dir: PathBuf,
    /// The account JWTs that are known before the first push, by public key.
    pub preload: BTreeMap<String, String>,
}

/// A certificate for the client port.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate chain.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// When set, clients must present a certificate that this authority signed.
    pub client_ca: Option<PathBuf>,
}

/// Membership in a cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The cluster's name, the same on every member.
    pub name: String,
    /// The address its route port listens on.
    pub host: String,
    /// The route port.
    pub port: u16,
    /// The route URLs of the members.
    pub routes: Vec<String>,
}

impl ServerConfig {
    /// An open server on a loopback port of the system's choice, storing under `store_dir`.
    pub fn new(server_name: impl Into<String>, store_dir: impl Into<PathBuf>) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: ListenPort::Any,
            server_name: server_name.into(),
            jetstream: JetStream {
                store_dir: store_dir.into(),
                max_file_store: None,
                sync: Sync::Periodic,
            },
            auth: Auth::Open,
            max_control_line: 65_536,
            max_connections: None,
            max_payload: None,
            tls: None,
            cluster: None,
            ping_interval: None,
            ping_max: None,
            pid_file: None,
            log_file: None,
            log_size_limit: None,
        }
    }

    /// The text of the configuration file.
    pub fn render(&self) -> String {
        let mut out = Writer::default();
        out.line("# Written by cotal; a change made here is overwritten.");
        self.render_listener(&mut out);
        self.render_jetstream(&mut out);
        if let Auth::Jwt(jwt) = &self.auth {
            render_jwt(jwt, &mut out);
        }
        if let Some(tls) = &self.tls {
            render_tls(tls, &mut out);
        }
        if let Some(cluster) = &self.cluster {
            render_cluster(cluster, &mut out);
        }
        out.text
    }

    fn render_listener(&self, out: &mut Writer) {
        out.string("host", &self.host);
        match self.port {
            ListenPort::Any => out.bare("port", -1),
            ListenPort::Fixed(port) => out.bare("port", port),
        }
        out.string("server_name", &self.server_name);
        out.bare("max_control_line", self.max_control_line);
        if let Some(count) = self.max_connections {
            out.bare("max_connections", count);
        }
        if let Some(bytes) = self.max_payload {
            out.bare("max_payload", bytes);
        }
        if let Some(interval) = self.ping_interval {
            out.string("ping_interval", &format!("{}ms", interval.as_millis()));
        }
        if let Some(max) = self.ping_max {
            out.bare("ping_max", max);
        }
        if let Some(path) = &self.pid_file {
            out.path("pid_file", path);
        }
        if let Some(path) = &self.log_file {
            out.path("log_file", path);
        }
        if let Some(bytes) = self.log_size_limit {
            out.bare("logfile_size_limit", bytes);
            out.bare("logfile_max_num", 2);
        }
    }

    fn render_jetstream(&self, out: &mut Writer) {
        out.open("jetstream");
        out.path("store_dir", &self.jetstream.store_dir);
        if let Some(bytes) = self.jetstream.max_file_store {
            out.bare("max_file_store", bytes);
        }
        if self.jetstream.sync == Sync::Always {
            out.bare("sync_interval", "always");
        }
        out.close();
    }
}

fn render_jwt(jwt: &Jwt, out: &mut Writer) {
    out.string("operator", &jwt.operator);
    out.string("system_account", &jwt.system_account);
    out.open("resolver");
    out.bare("type", "full");
    out.path("dir", &jwt.resolver_dir);
    // An account that a push could delete would take its space's streams out of reach.
    out.bare("allow_delete", false);
    out.string("interval", "2m");
    out.close();
    out.open("authorization");
    out.bare("timeout", AUTH_TIMEOUT);
    out.close();
    if !jwt.preload.is_empty() {
        out.open("resolver_preload");
        for (account, token) in &jwt.preload {
            out.string(&quote(account), token);
        }
        out.close();
    }
}

fn render_tls(tls: &Tls, out: &mut Writer) {
    out.open("tls");
    out.path("cert_file", &tls.cert);
    out.path("key_file", &tls.key);
    out.string("min_version", "1.2");
    if let Some(ca) = &tls.client_ca {
        out.path("ca_file", ca);
        out.bare("verify", true);
    }
    out.close();
}

fn render_cluster(cluster: &Cluster, out: &mut Writer) {
    out.open("cluster");
    out.string("name", &cluster.name);
    out.string("host", &cluster.host);
    out.bare("port", cluster.port);
    let routes: Vec<String> = cluster.routes.iter().map(|r| quote(r)).collect();
    out.bare("routes", format!("[{}]", routes.join(", ")));
    out.close();
}

#[derive(Default)]
struct Writer {
    text: String,
    depth: usize,
}

impl Writer {
    fn line(&mut self, line: &str) {
        let indent = "  ".repeat(self.depth);
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{indent}{line}");
    }

    fn open(&mut self, block: &str) {
        self.line(&format!("{block} {{"));
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.line("}");
    }

    fn bare(&mut self, key: &str, value: impl std::fmt::Display) {
        self.line(&format!("{key}: {value}"));
    }

    fn string(&mut self, key: &str, value: &str) {
        self.line(&format!("{key}: {}", quote(value)));
    }

    fn path(&mut self, key: &str, value: &Path) {
        self.string(key, &value.to_string_lossy());
    }
}

/// A double-quoted string of the broker's grammar, which knows `\t \n \r \" \\` and `\xHH`.
fn quote(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for c in value.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_ascii_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_server_says_only_what_it_must() {
        let mut config = ServerConfig::new("main", "/srv/js");
        config.port = ListenPort::Fixed(4333);
        let expected = "\
# Written by cotal; a change made here is overwritten.
host: \"127.0.0.1\"
port: 4333
server_name: \"main\"
max_control_line: 65536
jetstream {
  store_dir: \"/srv/js\"
}
";
        assert_eq!(config.render(), expected);
    }

    #[test]
    fn a_value_cannot_leave_its_quotes() {
        assert_eq!(quote("a\"b\\c\nd\u{1}é"), "\"a\\\"b\\\\c\\nd\\x01é\"");
        let config = ServerConfig::new("x\"\nport: 1\n# ", "/srv/$HOME");
        let text = config.render();
        assert_eq!(text.lines().filter(|l| l.starts_with("port:")).count(), 1);
        assert!(text.contains("store_dir: \"/srv/$HOME\""));
    }

    #[test]
    fn trust_tls_and_cluster_are_blocks_of_their_own() {
        let mut config = ServerConfig::new("n1", "/srv/js");
        config.jetstream.sync = Sync::Always;
        config.auth = Auth::Jwt(Jwt {
            operator: "eyJo".to_owned(),
            system_account: "ASYS".to_owned(),
            resolver_dir: "/srv/accounts".into(),
            preload: BTreeMap::from([("ASYS".to_owned(), "eyJs".to_owned())]),
        });
        config.tls = Some(Tls {
            cert: "/srv/c.pem".into(),
            key: "/srv/k.pem".into(),
            client_ca: Some("/srv/ca.pem".into()),
        });
        config.cluster = Some(Cluster {
            name: "c".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 6222,
            routes: vec!["nats://127.0.0.1:6222".to_owned(), "nats://127.0.0.1:6223".to_owned()],
        });
        let expected = "\
jetstream {
  store_dir: \"/srv/js\"
  sync_interval: always
}
operator: \"eyJo\"
system_account: \"ASYS\"
resolver {
  type: full
  dir: \"/srv/accounts\"
  allow_delete: false
  interval: \"2m\"
}
authorization {
  timeout: 10
}
resolver_preload {
  \"ASYS\": \"eyJs\"
}
tls {
  cert_file: \"/srv/c.pem\"
  key_file: \"/srv/k.pem\"
  min_version: \"1.2\"
  ca_file: \"/srv/ca.pem\"
  verify: true
}
cluster {
  name: \"c\"
  host: \"127.0.0.1\"
  port: 6222
  routes: [\"nats://127.0.0.1:6222\", \"nats://127.0.0.1:6223\"]
}
";
        let text = config.render();
        assert!(text.ends_with(expected), "{text}");
    }
}
