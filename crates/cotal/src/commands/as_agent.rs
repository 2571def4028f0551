//! What `post`, `dm`, `join`, `leave`, `inbox` and the commands of role requests have in common:
//! they speak as an agent.

use std::path::{Path, PathBuf};

use cotal_client::{
    ConnectError, ControlError, Endpoint, EndpointOptions, SendError, Shortfall, TlsMode,
};
use cotal_nats::{ConnectOptions, CredsSource};
use cotal_wire::control::Code;
use cotal_wire::creds::Claims;
use cotal_wire::{Channel, Principal, Role, Space};
use cotal_workspace::MeshFile;

use crate::args::MeshArgs;
use crate::commands::doctor::Listener;
use crate::context::{Context, Target, principal};
use crate::exit::{Exit, Failure};
use crate::output::told;

/// How an agent comes to be allowed what it is not.
const GRANT: &str = "the agent's credential does not allow this: `cotal agent show NAME` tells what it \
                     allows, `cotal agent grant NAME` lets it do more";

/// A broker does not say why it rejects.
const REJECTED: &str = "a credential ends with its agent's retirement, or when it is narrowed: \
                        `cotal agent list` shows who is provisioned";

/// Which agent a command speaks as.
#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// The agent: NAME, or <owner>.<actor>; else COTAL_AS.
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// Its creds file, instead of the one that this root keeps; else COTAL_CREDS.
    #[arg(long, value_name = "FILE")]
    pub creds: Option<PathBuf>,
    /// The authority that signed the broker's certificate; it demands TLS.
    #[arg(long, value_name = "PEM", env = "COTAL_CA")]
    pub ca: Option<PathBuf>,
    #[command(flatten)]
    pub mesh: MeshArgs,
}

/// An agent, and how it is connected.
pub struct Seat {
    /// Its credential's file, read anew at every connect.
    pub file: PathBuf,
    server: String,
    tls: TlsMode,
    /// The space that was asked for, which must be the credential's.
    space: Option<Space>,
    /// The space as this machine knows it; nothing where only a file and a server are given.
    pub target: Option<Target>,
}

impl AgentArgs {
    /// Connects as the agent, as `tune` wants the endpoint to be.
    pub async fn connect(
        &self,
        ctx: &Context,
        tune: impl FnOnce(EndpointOptions) -> EndpointOptions,
    ) -> anyhow::Result<Endpoint> {
        self.seat(ctx)?.connect(tune).await
    }

    /// Who it is and where. What the command line names counts before the environment.
    pub fn seat(&self, ctx: &Context) -> anyhow::Result<Seat> {
        let (name, creds) = match (&self.name, &self.creds) {
            (None, None) => (ctx.agent.as_ref(), ctx.creds.as_ref()),
            given => (given.0.as_ref(), given.1.as_ref()),
        };
        match (name, creds) {
            (name, Some(file)) => self.seat_of_file(name, file, ctx),
            (Some(name), None) => self.seat_of_root(name, ctx),
            (None, None) => {
                let message = "name the agent: --as NAME, --creds FILE, or the variable COTAL_AS or \
                               COTAL_CREDS";
                Err(Failure::new(Exit::Usage, message).into())
            }
        }
    }

    fn seat_of_root(&self, name: &str, ctx: &Context) -> anyhow::Result<Seat> {
        let target = ctx.target(&self.mesh)?;
        target.demand_authenticated("agents")?;
        let file = target.agent_file(name)?;
        Ok(Seat {
            file,
            server: target.server.clone(),
            tls: self.tls(&target.server, target.tls.clone())?,
            space: self.mesh.space.clone(),
            target: Some(target),
        })
    }

    /// A creds file says by itself who and where; only the broker's address is missing.
    fn seat_of_file(
        &self,
        name: Option<&String>,
        file: &Path,
        ctx: &Context,
    ) -> anyhow::Result<Seat> {
        let claims = claims_of(file)?;
        if let Some(name) = name {
            let (named, whose) = (principal(name)?, claims.principal());
            if whose.as_ref().ok() != Some(&named) {
                let whose = whose.map_or_else(|e| e.to_string(), |whose| whose.to_string());
                let message =
                    format!("{} is the credential of {whose}, not of {named}", file.display());
                return Err(Failure::new(Exit::Usage, message).into());
            }
        }
        let mut mesh = self.mesh.clone();
        mesh.space = mesh.space.or(claims.space().ok());
        let target = ctx.target(&mesh);
        let (server, tls) = match (&self.mesh.server, &target) {
            (Some(server), _) => (server.clone(), TlsMode::Plain),
            (None, Ok(target)) => (target.server.clone(), target.tls.clone()),
            (None, Err(_)) => {
                let message = "no --server is named, nor COTAL_SERVER, and no root here knows the \
                               credential's space";
                return Err(target.err().map_or_else(
                    || Failure::new(Exit::Absent, message).into(),
                    |error| error.context(message),
                ));
            }
        };
        Ok(Seat {
            file: file.to_owned(),
            tls: self.tls(&server, tls)?,
            server,
            space: self.mesh.space.clone(),
            target: target.ok(),
        })
    }

    fn tls(&self, server: &str, known: TlsMode) -> anyhow::Result<TlsMode> {
        if let Some(ca) = &self.ca {
            if let Err(error) = std::fs::metadata(ca) {
                let message = format!("the authority {} cannot be read: {error}", ca.display());
                return Err(Failure::new(Exit::Absent, message).into());
            }
            return Ok(TlsMode::Required { ca: Some(ca.clone()) });
        }
        let is_tls = server.starts_with("tls://") && known == TlsMode::Plain;
        Ok(if is_tls { TlsMode::Required { ca: None } } else { known })
    }
}

impl Seat {
    /// The credential's claims, and how a connection of its own is made with it, which the broker
    /// lists under `name`.
    pub fn bare(&self, name: &str) -> anyhow::Result<(Claims, ConnectOptions)> {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|e| Failure::new(Exit::Absent, format!("{}: {e}", self.file.display())))?;
        let creds = cotal_nats::Creds::parse(&text)
            .map_err(|e| Failure::new(Exit::Usage, format!("{}: {e}", self.file.display())))?;
        let options = ConnectOptions::new(&self.server, name, CredsSource::new(creds));
        Ok((claims_of(&self.file)?, options.tls(self.tls.clone())))
    }

    /// Connects as the agent, as `tune` wants the endpoint to be.
    pub async fn connect(
        &self,
        tune: impl FnOnce(EndpointOptions) -> EndpointOptions,
    ) -> anyhow::Result<Endpoint> {
        let options = EndpointOptions::from_file(&self.server, &self.file).tls(self.tls.clone());
        let endpoint = match Endpoint::connect(tune(options)).await {
            Ok(endpoint) => endpoint,
            Err(error) => return Err(self.not_connected(error).await),
        };
        match &self.space {
            Some(space) if space != endpoint.space() => {
                let message =
                    format!("the credential is for space {}, not for {space}", endpoint.space());
                endpoint.close().await;
                Err(Failure::new(Exit::Usage, message).into())
            }
            _ => Ok(endpoint),
        }
    }

    /// The broker's answer below decides the code; what the client found itself is decided here.
    async fn not_connected(&self, error: ConnectError) -> anyhow::Error {
        let exit = match &error {
            ConnectError::Creds(_) | ConnectError::Identity(_) | ConnectError::Anonymous => {
                Exit::Denied
            }
            ConnectError::Connect(_) => {
                let error = anyhow::Error::from(error);
                if Exit::of(&error) != Exit::Denied {
                    return error;
                }
                return Failure::new(Exit::Denied, self.rejected(&error).await).into();
            }
            _ => Exit::Failure,
        };
        Failure::new(exit, told(&error.into())).into()
    }

    /// Why a credential is rejected: it may be the broker that is another one.
    async fn rejected(&self, error: &anyhow::Error) -> String {
        if let Some(target) = &self.target
            && let Ok(Some(mesh)) = MeshFile::load(&target.root)
            && mesh.server == self.server
            && let Ok(Listener::Foreign(why) | Listener::Refuses(why)) =
                Listener::of(&target.root, &mesh).await
        {
            return why;
        }
        format!("{}; {REJECTED}", told(error))
    }
}

fn claims_of(file: &Path) -> anyhow::Result<Claims> {
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

/// A message that was not sent.
pub fn not_sent(error: SendError) -> anyhow::Error {
    let exit = match &error {
        SendError::Duplicate { .. } => Exit::Conflict,
        SendError::Id { .. } => Exit::Usage,
        SendError::TooLarge { .. } | SendError::Malformed(_) => Exit::Refused,
        SendError::Closed | SendError::NotConnected => Exit::Unreachable,
        SendError::Refused { source, .. } if source.is_denied() => {
            return Failure::new(Exit::Denied, format!("nothing was sent: {GRANT}")).into();
        }
        SendError::Refused { .. } => return error.into(),
        SendError::Unconfirmed { id, .. } => {
            let again = format!(
                "to repeat it without storing it twice, run the same command with `--id {id}`"
            );
            return anyhow::Error::from(error).context(again);
        }
        _ => Exit::Failure,
    };
    Failure::new(exit, error.to_string()).into()
}

/// What the agent may not do with a channel, and how it is granted; `option` is that of the grant.
pub fn denied(who: &Principal, option: &str, channel: &Channel) -> anyhow::Error {
    let (verb, actor) = (if option == "--post" { "post on" } else { "read" }, who.actor());
    let message = format!(
        "{who} may not {verb} {channel}: `cotal agent grant {actor} {option} {channel}` lets it"
    );
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
