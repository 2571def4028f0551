//! The broker of a root.

use std::collections::BTreeMap;
use std::time::Duration;

use cotal_broker::{
    Auth, Broker, BrokerBinary, BrokerError, Jwt, ListenPort, ServerConfig, SpawnOptions, Sync,
};
use cotal_trust::Trust;
use cotal_wire::limits::MAX_CONTROL_LINE;
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::log::DEFAULT_MAX_BYTES;
use cotal_workspace::{Durability, Root, process};

use super::process::{Process, Stopped};
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
    /// The most bytes that its stores may hold, when it is not the broker's own share of the disk.
    pub max_file_store: Option<u64>,
}

impl BrokerLaunch<'_> {
    /// Writes its configuration, starts it and returns once it answers.
    ///
    /// # Errors
    /// When trust material is damaged, a file cannot be written, or it does not become ready.
    pub async fn start(&self) -> Result<Broker, ManagerError> {
        let root = self.root;
        files::private_dir(&root.broker_dir())?;
        let config = self.config()?.render();
        files::replace(&root.broker_config(), config.as_bytes(), Privacy::Secret)?;
        let options = SpawnOptions {
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
        config.jetstream.sync = match self.durability {
            Durability::Default => Sync::Periodic,
            Durability::Strict => Sync::Always,
        };
        config.jetstream.max_file_store = self.max_file_store;
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
/// When its record cannot be read.
pub fn running_broker(root: &Root) -> Result<Option<Process>, ManagerError> {
    let recorded = files::read(&root.broker_pid())?;
    let Some(pid) = recorded.and_then(|text| text.trim().parse().ok()) else {
        return Ok(None);
    };
    let Some(broker) = Process::open(pid)? else {
        return Ok(None);
    };
    Ok((process::is_alive(pid) && is_ours(pid, root)).then_some(broker))
}

/// A server of this root was started on this root's configuration. Where a command line cannot be
/// read the record is believed.
fn is_ours(pid: u32, root: &Root) -> bool {
    let config = root.broker_config();
    process::command_line(pid)
        .is_none_or(|args| args.iter().any(|arg| config.as_os_str() == arg.as_str()))
}

/// Stops the broker of a root; `None` when there was none. Its stale record is removed.
///
/// # Errors
/// When the record cannot be read, or the process cannot be stopped.
pub async fn stop_broker(root: &Root) -> Result<Option<Stopped>, ManagerError> {
    let stopped = match running_broker(root)? {
        Some(broker) => Some(broker.stop(STOP_WITHIN).await?),
        None => None,
    };
    files::remove(&root.broker_pid())?;
    Ok(stopped)
}

impl From<BrokerError> for ManagerError {
    fn from(error: BrokerError) -> Self {
        Self::Start(Box::new(error))
    }
}
