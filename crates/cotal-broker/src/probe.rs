//! What a listener says before anybody authenticates: the INFO line.

use std::io;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::version::{BadVersion, Version};

const DEADLINE: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 4222;
/// An INFO line that lists every server of a large cluster stays far below this.
const LONGEST_LINE: u64 = 256 * 1024;

/// The part of the INFO line that decides how to connect.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServerInfo {
    /// The server's own key: it differs for every run of a server.
    pub server_id: String,
    /// The configured name.
    #[serde(default)]
    pub server_name: String,
    /// The version.
    #[serde(deserialize_with = "version")]
    pub version: Version,
    /// A client must speak TLS.
    #[serde(default)]
    pub tls_required: bool,
    /// A client must authenticate.
    #[serde(default)]
    pub auth_required: bool,
    /// JetStream is enabled.
    #[serde(default)]
    pub jetstream: bool,
    /// The largest message body.
    #[serde(default)]
    pub max_payload: u64,
    /// The cluster it belongs to.
    #[serde(default)]
    pub cluster: Option<String>,
}

/// Why a listener could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The URL names no host.
    #[error("`{url}` is not a broker's URL: nats://HOST:PORT is expected")]
    BadUrl {
        /// The text.
        url: String,
    },
    /// Nothing listens there.
    #[error("no broker answers at {url}")]
    Unreachable {
        /// The URL.
        url: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Something accepted and then stayed silent.
    #[error("{url} accepted the connection and said nothing for {} s", DEADLINE.as_secs())]
    Silent {
        /// The URL.
        url: String,
    },
    /// Something that is not a NATS server answered.
    #[error("what listens at {url} is not a NATS server: {reason}")]
    NotNats {
        /// The URL.
        url: String,
        /// What was wrong with the answer.
        reason: String,
    },
}

/// Connects, reads the INFO line and hangs up.
pub async fn probe(url: &str) -> Result<ServerInfo, ProbeError> {
    let address = address(url).ok_or_else(|| ProbeError::BadUrl { url: url.to_owned() })?;
    let unreachable = |source| ProbeError::Unreachable { url: url.to_owned(), source };
    let stream = match timeout(DEADLINE, TcpStream::connect(&address)).await {
        Ok(connected) => connected.map_err(unreachable)?,
        Err(_) => return Err(unreachable(io::ErrorKind::TimedOut.into())),
    };
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(LONGEST_LINE));
    match timeout(DEADLINE, reader.read_line(&mut line)).await {
        Ok(Ok(_)) => {
            parse_info(&line).map_err(|reason| ProbeError::NotNats { url: url.to_owned(), reason })
        }
        Ok(Err(source)) => Err(unreachable(source)),
        Err(_) => Err(ProbeError::Silent { url: url.to_owned() }),
    }
}

fn address(url: &str) -> Option<String> {
    let rest = match url.split_once("://") {
        Some(("nats" | "tls", rest)) => rest,
        Some(_) => return None,
        None => url,
    };
    let rest = rest.trim_end_matches('/');
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if host.is_empty() || host.starts_with(':') || host.contains([' ', '/']) {
        return None;
    }
    let after_host = host.rsplit_once(']').map_or(host, |(_, after)| after);
    match after_host.rsplit_once(':') {
        Some((_, port)) => port.parse::<u16>().ok().map(|_| host.to_owned()),
        None => Some(format!("{host}:{DEFAULT_PORT}")),
    }
}

fn parse_info(line: &str) -> Result<ServerInfo, String> {
    let json = line.strip_prefix("INFO ").ok_or("it does not greet with INFO")?;
    serde_json::from_str(json.trim_end()).map_err(|e| format!("its INFO is unreadable: {e}"))
}

fn version<'de, D: serde::Deserializer<'de>>(de: D) -> Result<Version, D::Error> {
    let text = String::deserialize(de)?;
    text.parse().map_err(|e: BadVersion| serde::de::Error::custom(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_become_addresses() {
        for (url, expected) in [
            ("nats://127.0.0.1:4333", Some("127.0.0.1:4333")),
            ("tls://broker", Some("broker:4222")),
            ("nats://user:pw@broker:1/", Some("broker:1")),
            ("nats://[::1]", Some("[::1]:4222")),
            ("nats://[::1]:9", Some("[::1]:9")),
            ("localhost", Some("localhost:4222")),
            ("nats://", None),
            ("nats://:4222", None),
            ("nats://h:port", None),
            ("https://h:1", None),
        ] {
            assert_eq!(address(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn info_is_read_and_anything_else_is_refused() {
        let line =
            "INFO {\"server_id\":\"N\",\"version\":\"2.12.0-RC.1\",\"auth_required\":true} \r\n";
        let info = parse_info(line).unwrap();
        assert!(info.auth_required && !info.tls_required);
        assert_eq!(info.version.to_string(), "2.12.0-RC.1");
        for other in ["", "HTTP/1.1 200 OK\r\n", "INFO {}\r\n", "INFO {\"server_id\":"] {
            assert!(parse_info(other).is_err(), "{other}");
        }
    }
}
