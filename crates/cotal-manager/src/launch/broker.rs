//! The broker of a root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cotal_broker::{
    Auth, Broker, BrokerBinary, BrokerError, Jwt, ListenPort, ServerConfig, SpawnOptions, Sync,
};
use cotal_trust::Trust;
use cotal_wire::limits::{MAX_CONNECTIONS, MAX_CONTROL_LINE};
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::log::DEFAULT_MAX_BYTES;
use cotal_workspace::{Durability, Identity, Root, Share, disk, identity, process};

use super::process::{Process, Stop};
use crate::error::ManagerError;

/// A broker flushes its stores before it ends.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// How the broker of a root is started.
#[derive(Debug)]
pub struct BrokerLaunch<'a> {
    /// The root it stores under.
    pub root: &'a Root,
    /// The program.
    pub binary: &'a BrokerBinary,
    /// Who may connect: holders of credentials that this trust signed, or anybody.
    pub trust: Option<&'a Trust>,
    /// Where it listens, on loopback.
    pub port: ListenPort,
    /// What a power failure may take.
    pub durability: Durability,
    /// Demand TLS, with the certificate that stands on the root.
    pub tls: bool,
    /// Leave it running when this process ends.
    pub detach: bool,
    /// The most bytes that its stores may hold, when it is not the usual share of the disk.
    pub max_file_store: Option<u64>,
}

impl BrokerLaunch<'_> {
    /// Writes its configuration, starts it and returns once it answers.
    ///
    /// # Errors
    /// When another process holds the store, trust material is damaged, a file cannot be written,
    /// or it does not become ready.
    pub async fn start(&self) -> Result<Broker, ManagerError> {
        let root = self.root;
        files::private_dir(&root.broker_dir())?;
        root.check_broker_files()?;
        // Before anything is written: two brokers on one store lose what each of them acknowledged.
        let identity = Identity::take(&root.broker_run_lock(), Share::Alone)?;
        let store = root.broker_jetstream();
        if let Some(pid) = process::with_open_file_below(&store) {
            return Err(ManagerError::StoreHeld { store, pid });
        }
        let config = self.config()?.render();
        files::replace(&root.broker_config(), config.as_bytes(), Privacy::Secret)?;
        let options = SpawnOptions {
            stdin: Some(identity.into_stdin()),
            log: Some(root.broker_log()),
            detach: self.detach,
            stop_within: STOP_WITHIN,
            ..SpawnOptions::default()
        };
        Ok(Broker::spawn(self.binary, &root.broker_config(), options).await?)
    }

    fn config(&self) -> Result<ServerConfig, ManagerError> {
        let root = self.root;
        let mut config = ServerConfig::new("cotal", root.broker_jetstream());
        config.port = self.port;
        config.pid_file = Some(root.broker_pid());
        config.log_file = Some(root.broker_log());
        config.log_size_limit = Some(DEFAULT_MAX_BYTES);
        config.max_control_line = u32::try_from(MAX_CONTROL_LINE).unwrap_or(u32::MAX);
        config.max_connections = Some(MAX_CONNECTIONS);
        config.jetstream.sync = match self.durability {
            Durability::Default => Sync::Periodic,
            Durability::Strict => Sync::Always,
        };
        config.jetstream.max_file_store = self.max_file_store.or_else(|| share_of_disk(root));
        config.tls = self.tls.then(|| super::tls::certificate(root));
        if let Some(trust) = self.trust {
            config.auth = Auth::Jwt(Jwt {
                operator: trust.operator_jwt().to_owned(),
                system_account: trust.system().public_key(),
                resolver_dir: root.broker_resolver(),
                preload: trust.preload()?.into_iter().collect::<BTreeMap<_, _>>(),
            });
        }
        Ok(config)
    }
}

/// The running broker of a root, whoever started it; `None` when there is none.
///
/// # Errors
/// When the system does not let it be looked at.
pub fn running_broker(root: &Root) -> Result<Option<Process>, ManagerError> {
    Ok(running(root)?.into_iter().next())
}

fn running(root: &Root) -> Result<Vec<Process>, ManagerError> {
    let mut running = Vec::new();
    for pid in processes(root) {
        // Judged again with the process in hand: the number may have been reused before it was.
        if let Some(process) = Process::open(pid)?
            && processes(root).contains(&pid)
        {
            running.push(process);
        }
    }
    Ok(running)
}

/// The recorded one first, if it is believed, then every other one that holds the lock. A record
/// that cannot be parsed names nobody.
fn processes(root: &Root) -> Vec<u32> {
    let recorded = files::read(&root.broker_pid()).ok().flatten();
    let recorded = recorded.and_then(|text| text.trim().parse().ok());
    let recorded = recorded.filter(|pid| process::is_alive(*pid) && is_ours(*pid, root));
    let holders = identity::holders(&root.broker_run_lock());
    let others = holders.into_iter().filter(|pid| Some(*pid) != recorded);
    recorded.into_iter().chain(others).collect()
}

/// A server of this root holds its lock, or, where an older version started it and it holds none,
/// was started on this root's configuration. Where a command line cannot be read the record is
/// believed.
fn is_ours(pid: u32, root: &Root) -> bool {
    if identity::holds(pid, &root.broker_run_lock()) == Some(true) {
        return true;
    }
    let config = root.broker_config();
    let named = process::command_line(pid)
        .is_none_or(|args| args.iter().any(|arg| config.as_os_str() == arg.as_str()));
    named && identity::held_by(pid).is_none()
}

/// What the broker may store: what it stores already, and three quarters of what is free. Its own
/// default would count what is free alone, and so refuse writes once it stores more than is left.
fn share_of_disk(root: &Root) -> Option<u64> {
    let room = disk::room(&root.broker_dir()).ok()?;
    Some(disk::used_below(&root.broker_jetstream()) + room.free / 4 * 3)
}

/// The most bytes that the broker of a root may store, as it was told when it was started.
#[must_use]
pub fn store_limit(root: &Root) -> Option<u64> {
    let config = files::read(&root.broker_config()).ok()??;
    let limit = |line: &str| line.trim().strip_prefix("max_file_store: ")?.parse().ok();
    config.lines().find_map(limit)
}

/// Where a root was when its broker was started, if that is somewhere else than now: what the
/// broker opens from now on it looks for there.
#[must_use]
pub fn moved_from(root: &Root, broker: &Process) -> Option<PathBuf> {
    let args = process::command_line(broker.pid())?;
    let at = args.iter().position(|arg| arg == "--config")?;
    let config = Path::new(args.get(at + 1)?);
    // <root>/.cotal/broker/server.conf
    let then = config.ancestors().nth(3)?;
    (then != root.dir()).then(|| then.to_owned())
}

/// Stops the broker of a root. Its stale record is removed.
///
/// # Errors
/// When the process cannot be stopped.
pub async fn stop_broker(root: &Root) -> Result<Stop, ManagerError> {
    let mut stopped = None;
    for broker in running(root)? {
        stopped = stopped.max(Some(broker.stop(STOP_WITHIN).await?));
    }
    let cleaned = files::remove(&root.broker_pid());
    Ok(Stop::new(stopped, cleaned.map(drop).map_err(ManagerError::from)))
}

impl From<BrokerError> for ManagerError {
    fn from(error: BrokerError) -> Self {
        Self::Start(Box::new(error))
    }
}
