//! What `post`, `dm`, `join`, `leave`, `inbox` and the commands of role requests have in common:
//! they speak as an agent.

use std::path::PathBuf;

use anyhow::Context as _;
use cotal_client::{
    ConnectError, ControlError, Credential, Endpoint, EndpointOptions, SendError, Shortfall,
    TlsMode,
};
use cotal_wire::control::Code;
use cotal_wire::creds::Claims;
use cotal_wire::{Channel, Role};

use crate::args::MeshArgs;
use crate::context::{Context, principal};
use crate::exit::{Exit, Failure};
use crate::output::told;

/// A credential is never widened: what an agent may do is decided when it is added.
const GRANT: &str = "the agent's credential does not grant this: `cotal agent retire` it and \
                     `cotal agent add` it anew with what it needs";

/// A broker does not say why it rejects.
const REJECTED: &str = "a credential ends with its agent's retirement, or when it is narrowed: \
                        `cotal agent list` shows who is provisioned";

/// Which agent a command speaks as.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// The agent: NAME, or <owner>.<actor>.
    #[arg(long = "as", value_name = "NAME", required_unless_present = "creds")]
    pub name: Option<String>,
    /// Its creds file, instead of the one that this root keeps.
    #[arg(long, value_name = "FILE")]
    pub creds: Option<PathBuf>,
    #[command(flatten)]
    pub mesh: MeshArgs,
}

impl AgentArgs {
    /// Connects as the agent, as `tune` wants the endpoint to be.
    pub async fn connect(
        &self,
        ctx: &Context,
        tune: impl FnOnce(EndpointOptions) -> EndpointOptions,
    ) -> anyhow::Result<Endpoint> {
        let options = match &self.creds {
            Some(file) => self.file_options(file, ctx)?,
            None => self.root_options(ctx)?,
        };
        let endpoint = Endpoint::connect(tune(options)).await.map_err(not_connected)?;
        match &self.mesh.space {
            Some(space) if space != endpoint.space() => {
                let message =
                    format!("the credential is for space {}, not for {space}", endpoint.space());
                endpoint.close().await;
                Err(Failure::new(Exit::Usage, message).into())
            }
            _ => Ok(endpoint),
        }
    }

    fn root_options(&self, ctx: &Context) -> anyhow::Result<EndpointOptions> {
        let target = ctx.target(&self.mesh)?;
        target.demand_authenticated("agents")?;
        let creds = target.agent_creds(self.name.as_deref().unwrap_or_default())?;
        let credential = Credential::Source(creds.into());
        Ok(EndpointOptions::new(target.server, credential).tls(target.tls))
    }

    /// A creds file says by itself who and where; only the broker's address is missing.
    fn file_options(&self, file: &PathBuf, ctx: &Context) -> anyhow::Result<EndpointOptions> {
        let claims = claims_of(file)?;
        if let Some(name) = &self.name {
            let (named, whose) = (principal(name)?, claims.principal());
            if whose.as_ref().ok() != Some(&named) {
                let whose = whose.map_or_else(|e| e.to_string(), |whose| whose.to_string());
                let message =
                    format!("{} is the credential of {whose}, not of {named}", file.display());
                return Err(Failure::new(Exit::Usage, message).into());
            }
        }
        if let Some(server) = &self.mesh.server {
            let tls = if server.starts_with("tls://") {
                TlsMode::Required { ca: None }
            } else {
                TlsMode::Plain
            };
            return Ok(EndpointOptions::from_file(server, file).tls(tls));
        }
        let mut mesh = self.mesh.clone();
        mesh.space = mesh.space.or(claims.space().ok());
        let target = ctx
            .target(&mesh)
            .context("no --server was named, and no root here knows the credential's space")?;
        Ok(EndpointOptions::from_file(target.server, file).tls(target.tls))
    }
}

fn claims_of(file: &PathBuf) -> anyhow::Result<Claims> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| Failure::new(Exit::Absent, format!("{}: {e}", file.display())))?;
    let creds = cotal_wire::creds::Creds::parse(&text)
        .map_err(|e| Failure::new(Exit::Usage, format!("{}: {e}", file.display())))?;
    Ok(creds.claims)
}

/// Reads a channel of the command line.
pub fn channel(text: &str) -> Result<Channel, String> {
    Channel::parse(text).map_err(|e| e.to_string())
}

/// Reads a role of the command line.
pub fn role(text: &str) -> Result<Role, String> {
    Role::parse(text).map_err(|e| e.to_string())
}

/// The broker's answer below decides the code; what the client found itself is decided here.
fn not_connected(error: ConnectError) -> anyhow::Error {
    let exit = match &error {
        ConnectError::Creds(_) | ConnectError::Identity(_) | ConnectError::Anonymous => {
            Exit::Denied
        }
        ConnectError::Connect(_) => {
            let error = anyhow::Error::from(error);
            if Exit::of(&error) != Exit::Denied {
                return error;
            }
            let message = format!("{}; {REJECTED}", told(&error));
            return Failure::new(Exit::Denied, message).into();
        }
        _ => Exit::Failure,
    };
    Failure::new(exit, told(&error.into())).into()
}

/// A message that was not sent.
pub fn not_sent(error: SendError) -> anyhow::Error {
    let exit = match &error {
        SendError::Duplicate { .. } => Exit::Conflict,
        SendError::Id { .. } => Exit::Usage,
        SendError::TooLarge { .. } | SendError::Malformed(_) => Exit::Refused,
        SendError::Closed | SendError::NotConnected => Exit::Unreachable,
        SendError::Refused { source, .. } if source.is_denied() => return denied(error),
        SendError::Unconfirmed { .. } | SendError::Refused { .. } => return error.into(),
        _ => Exit::Failure,
    };
    Failure::new(exit, error.to_string()).into()
}

/// What the broker forbids the agent's credential, and how it is granted.
pub fn denied(error: impl Into<anyhow::Error>) -> anyhow::Error {
    let message = format!("{}; {GRANT}", told(&error.into()));
    Failure::new(Exit::Denied, message).into()
}

/// A question that the daemon did not answer, or refused.
pub fn not_asked(error: ControlError) -> anyhow::Error {
    let exit = match &error {
        ControlError::Denied { .. } => Exit::Denied,
        ControlError::NoResponders { .. } => Exit::NotServing,
        ControlError::Timeout { .. } => Exit::TimedOut,
        ControlError::Refused { code, .. } => of_code(*code),
        ControlError::ConnectionLost | ControlError::Stopped => Exit::Unreachable,
        ControlError::Nats(_) => return error.into(),
        _ => Exit::Failure,
    };
    let advice = match exit {
        Exit::NotServing => "; `cotal up` starts a missing daemon, then do this again",
        _ => "",
    };
    Failure::new(exit, format!("{error}{advice}")).into()
}

/// The code of a refusal.
fn of_code(code: Option<Code>) -> Exit {
    match code {
        Some(Code::Denied | Code::Retired) => Exit::Denied,
        Some(Code::NotProvisioned) => Exit::Absent,
        Some(Code::NotReady | Code::Unavailable) => Exit::NotServing,
        Some(Code::Conflict | Code::Superseded | Code::StaleGeneration) => Exit::Conflict,
        _ => Exit::Refused,
    }
}

/// The code of a durable half that is missing.
pub fn exit_of(why: &Shortfall) -> Exit {
    match why {
        Shortfall::NoDaemon => Exit::NotServing,
        Shortfall::Silent { .. } => Exit::TimedOut,
        Shortfall::Denied { .. } => Exit::Denied,
        Shortfall::Refused { code, .. } => of_code(*code),
        Shortfall::Superseded => Exit::Conflict,
        Shortfall::Evicted => Exit::Partial,
        Shortfall::ConnectionLost | Shortfall::Stopped => Exit::Unreachable,
        // Whatever else a later version can say.
        _ => Exit::Failure,
    }
}

/// What to do about a durable half that is missing.
pub fn advice(why: &Shortfall) -> &'static str {
    match why {
        Shortfall::NoDaemon | Shortfall::Silent { .. } => {
            "`cotal status` shows the daemon and `cotal up` starts a missing one; then do this again"
        }
        Shortfall::Evicted | Shortfall::Superseded | Shortfall::ConnectionLost => "do this again",
        Shortfall::Denied { .. } => GRANT,
        _ => "the reason above says what is missing",
    }
}
