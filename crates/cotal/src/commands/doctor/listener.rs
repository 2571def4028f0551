//! What listens where the root's broker was recorded.
//!
//! Invariant: a listener counts as the root's own broker only when it greets as that broker does,
//! and either the root's broker runs or the listener lets the root in. What somebody else's broker
//! says is never told as the root's.

use std::io::ErrorKind;

use cotal_broker::{ProbeError, ServerInfo, probe};
use cotal_manager::launch::{Process, moved_from, running_broker};
use cotal_manager::{Authority, BrokerAddress, ManagerError, Office};
use cotal_nats::{ConnectError, NatsError};
use cotal_workspace::{MeshFile, Mode, Root};

use crate::context::{CLOSE_WITHIN, tls_of};

/// Who listens; each text says what was found and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) enum Listener {
    /// The root's own broker, in this version.
    Own(String),
    /// Nobody, and the root's broker does not run.
    Nobody(String),
    /// The root's broker runs, and does not answer or cannot serve.
    Hangs(String),
    /// Something else.
    Foreign(String),
    /// A broker that refuses the root's credential, while the root's own does not run.
    Refuses(String),
}

impl Listener {
    /// Looks at what the root's mesh records as its broker.
    ///
    /// # Errors
    /// When the record of the root's broker cannot be read.
    pub(in crate::commands) async fn of(root: &Root, mesh: &MeshFile) -> anyhow::Result<Self> {
        let broker = running_broker(root)?;
        if let Some(moved) = broker.as_ref().and_then(|broker| moved(root, broker)) {
            return Ok(moved);
        }
        let runs = broker.map(|broker| broker.pid());
        let info = match probe(&mesh.server).await {
            Ok(info) => info,
            Err(error) => return Ok(unanswered(&mesh.server, &error, runs)),
        };
        if let Some(differs) = difference(&info, mesh) {
            return Ok(Self::Foreign(foreign(&mesh.server, differs, runs)));
        }
        let stranger = if runs.is_none() { stranger(root, mesh).await } else { None };
        Ok(stranger.unwrap_or_else(|| Self::Own(info.version.to_string())))
    }

    /// What is wrong with it; `None` when it is the root's own broker.
    pub(in crate::commands) fn problem(&self) -> Option<&str> {
        match self {
            Self::Own(_) => None,
            Self::Nobody(text) | Self::Hangs(text) | Self::Foreign(text) | Self::Refuses(text) => {
                Some(text)
            }
        }
    }
}

/// What runs still opens files where the root was, so nothing that it answers is told as sound.
fn moved(root: &Root, broker: &Process) -> Option<Listener> {
    let (then, pid) = (moved_from(root, broker)?, broker.pid());
    Some(Listener::Hangs(format!(
        "this root was moved from {} while its mesh is up, and its broker, process {pid}, still writes \
         there: run `cotal down`, then `cotal up`",
        then.display()
    )))
}

fn unanswered(url: &str, error: &ProbeError, runs: Option<u32>) -> Listener {
    let why = why(error);
    if let Some(pid) = runs {
        return Listener::Hangs(format!(
            "this root's broker, process {pid}, runs and does not answer at {url}: {why}; \
             `kill -CONT {pid}` wakes one that was paused, else run `cotal down`, then `cotal up`"
        ));
    }
    if is_nobody(error) {
        let text = format!("no broker answers at {url}: {why}; `cotal up` starts this root's");
        return Listener::Nobody(text);
    }
    Listener::Foreign(foreign(url, &why, runs))
}

/// Whoever accepts a connection is somebody, also when the connection breaks at once.
fn is_nobody(error: &ProbeError) -> bool {
    match error {
        ProbeError::Unreachable { source, .. } => {
            !matches!(source.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted)
        }
        ProbeError::BadUrl { .. } => true,
        ProbeError::Silent { .. } | ProbeError::NotNats { .. } => false,
    }
}

/// The cause alone: the sentence around it names the URL.
fn why(error: &ProbeError) -> String {
    match error {
        ProbeError::Unreachable { source, .. } => source.to_string(),
        ProbeError::Silent { .. } => "it accepted the connection and said nothing".to_owned(),
        ProbeError::NotNats { reason, .. } => format!("it is not a NATS server: {reason}"),
        ProbeError::BadUrl { .. } => error.to_string(),
    }
}

/// How a greeting differs from that of the root's broker, which `up` configured.
fn difference(info: &ServerInfo, mesh: &MeshFile) -> Option<&'static str> {
    if info.auth_required != (mesh.mode == Mode::Auth) {
        return Some("its authentication differs");
    }
    (info.tls_required != mesh.tls).then_some("its demand for TLS differs")
}

/// Tells why a listener is not the root's broker, whose process is not there: only somebody that
/// was given the root's trust lets the root in, and an open broker lets everybody in.
async fn stranger(root: &Root, mesh: &MeshFile) -> Option<Listener> {
    let say = |why: &str| foreign(&mesh.server, why, None);
    if mesh.mode == Mode::Open {
        return Some(Listener::Foreign(say("this root's broker does not run")));
    }
    // Trust that cannot be opened proves nothing about the listener, and is told elsewhere.
    let authority = Authority::open(root, mesh.spaces.first()?).ok()?;
    let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(mesh) };
    let cause = match authority.connect(Office::Operator, &address).await {
        // A broker may let a connection begin and end it at once.
        Ok((_, connection)) => {
            let proven = connection.round_trip().await;
            connection.close(CLOSE_WITHIN).await;
            proven.err()?
        }
        Err(ManagerError::Broker { source, .. }) => source,
        // What could not be asked proves nothing about the listener.
        Err(_) => return None,
    };
    let text = say(&format!("this root's broker does not run, and {cause}"));
    Some(match cause {
        NatsError::Connect(ConnectError::Rejected { .. }) => Listener::Refuses(text),
        _ => Listener::Foreign(text),
    })
}

fn foreign(url: &str, why: &str, runs: Option<u32>) -> String {
    let step = match runs {
        Some(pid) => format!("this root's is process {pid}: run `cotal down`, then `cotal up`"),
        None => "end it, then run `cotal up`, or take another port with \
                 `cotal up --server-port PORT`"
            .to_owned(),
    };
    format!("what answers at {url} is not this root's broker: {why}; {step}")
}
