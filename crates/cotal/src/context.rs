//! Where a command is run: its root, its mesh, its credentials.
//!
//! The environment is read here, once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cotal_broker::{BrokerBinary, LocateOptions};
use cotal_manager::{Authority, BrokerAddress, Office};
use cotal_nats::{ConnectOptions, Connection, Creds, CredsSource, TlsMode};
use cotal_wire::{Principal, Space};
use cotal_workspace::{
    FileStore, MeshEntry, MeshFile, MeshRegistry, Mode, Root, RootError, SecretKey, SecretKind,
    SecretStore,
};

use crate::args::{Global, LogFormat, MeshArgs};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// The broker of a mesh that nothing else is recorded about.
pub const DEFAULT_SERVER: &str = "nats://127.0.0.1:4222";

/// The space of a root that names none.
pub const DEFAULT_SPACE: &str = "main";

/// How long a connection gets to hand over what it still holds.
pub const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// A daemon with 100,000 rows is ready in two seconds; a busy machine gets more.
const SERVING_WITHIN: Duration = Duration::from_secs(30);

/// What every command is given.
#[derive(Debug)]
pub struct Context {
    /// Where to print.
    pub out: Output,
    /// How logs are written.
    pub log_format: LogFormat,
    /// How long a daemon that was started may take to serve.
    pub serving_within: Duration,
    /// Which agent a command speaks as that names none.
    pub agent: Option<String>,
    /// The creds file of a command that names neither agent nor file.
    pub creds: Option<PathBuf>,
    root_flag: Option<PathBuf>,
    registry: Option<MeshRegistry>,
}

/// A space and how to reach it.
#[derive(Debug, Clone)]
pub struct Target {
    /// The root that holds its credentials.
    pub root: Root,
    /// The space.
    pub space: Space,
    /// The broker.
    pub server: String,
    /// The transport demanded.
    pub tls: TlsMode,
    /// Whether connections authenticate.
    pub mode: Mode,
}

/// The transport that a mesh demands of every connection (LIF-1).
pub fn tls_of(mesh: &MeshFile) -> TlsMode {
    if mesh.tls {
        let ca = mesh.ca.clone();
        TlsMode::Required { ca }
    } else {
        TlsMode::Plain
    }
}

impl Context {
    /// Reads the process's environment.
    pub fn from_process(global: &Global) -> anyhow::Result<Self> {
        Ok(Self {
            out: Output::from_process(),
            log_format: global.log_format,
            serving_within: serving_within()?,
            root_flag: global.root.clone(),
            agent: agent_variable()?,
            creds: variable("COTAL_CREDS").map(PathBuf::from),
            registry: registry_path().map(MeshRegistry::new),
        })
    }

    /// The root: `--root`, or the nearest at or above the working directory (LIF-12).
    pub fn root(&self) -> anyhow::Result<Root> {
        let found = match &self.root_flag {
            Some(dir) => Root::at(dir),
            None => Root::find(working_directory()?),
        };
        Ok(found?)
    }

    /// What `--root` names.
    pub fn root_flag(&self) -> Option<&Path> {
        self.root_flag.as_deref()
    }

    /// The nearest root at or above the working directory, whatever `--root` names.
    pub fn root_here(&self) -> anyhow::Result<Root> {
        let found = Root::find(working_directory()?);
        found.map_err(|e| Failure::new(Exit::Absent, e.to_string()).into())
    }

    /// The root that `up` serves: an existing one, else `--root` or the working directory.
    pub fn root_or_init(&self) -> anyhow::Result<Root> {
        if let Some(dir) = &self.root_flag {
            return Ok(Root::init(dir)?);
        }
        let here = working_directory()?;
        match Root::find(&here) {
            Err(RootError::NotFound(_)) => Ok(Root::init(&here)?),
            found => Ok(found?),
        }
    }

    /// The user's registry of meshes.
    pub fn registry(&self) -> anyhow::Result<&MeshRegistry> {
        self.registry.as_ref().ok_or_else(|| {
            let message = "neither XDG_CONFIG_HOME nor HOME is set, so there is no mesh registry";
            Failure::new(Exit::Failure, message).into()
        })
    }

    /// What the registry records for a space; without a registry nothing is recorded.
    pub fn recorded(&self, space: &Space) -> anyhow::Result<Option<MeshEntry>> {
        match &self.registry {
            Some(registry) => Ok(registry.get(space)?),
            None => Ok(None),
        }
    }

    /// The mesh of a root.
    pub fn mesh(&self, root: &Root) -> anyhow::Result<MeshFile> {
        MeshFile::load(root)?.ok_or_else(|| {
            let message = format!("{} has no mesh yet: run `cotal up` there", root.dir().display());
            Failure::new(Exit::Absent, message).into()
        })
    }

    /// Resolves which space of which mesh a command speaks to.
    pub fn target(&self, args: &MeshArgs) -> anyhow::Result<Target> {
        let root = match (self.root(), &args.space) {
            (Ok(root), _) => root,
            (Err(missing), None) => return Err(missing),
            (Err(missing), Some(space)) if Exit::of(&missing) == Exit::Absent => {
                let entry = self.recorded(space)?.ok_or(missing)?;
                Root::at(entry.root)?
            }
            (Err(refused), Some(_)) => return Err(refused),
        };
        let mesh = self.mesh(&root)?;
        let space = match &args.space {
            Some(space) => space.clone(),
            None => first_space(&mesh)?,
        };
        if !mesh.spaces.contains(&space) {
            let root = root.dir().display();
            let message =
                format!("{root} has no space {space}: add it with `cotal space add {space}`");
            return Err(Failure::new(Exit::Absent, message).into());
        }
        Ok(Target {
            tls: tls_of(&mesh),
            mode: mesh.mode,
            server: args.server.clone().unwrap_or(mesh.server),
            root,
            space,
        })
    }

    /// The broker's program; the search may run programs and fetch, so it has its own thread.
    pub async fn locate_broker(&self, explicit: Option<PathBuf>) -> anyhow::Result<BrokerBinary> {
        let cache = cotal_broker::cache_dir(variable("XDG_CACHE_HOME"), variable("HOME"));
        let options = LocateOptions {
            explicit,
            path_env: variable("PATH"),
            cache_dir: cache.ok_or_else(|| {
                let message = "neither XDG_CACHE_HOME nor HOME is set, so there is no cache to \
                               find a nats-server in";
                Failure::new(Exit::Failure, message)
            })?,
            allow_fetch: true,
        };
        let found = tokio::task::spawn_blocking(move || cotal_broker::locate(&options)).await?;
        Ok(found?)
    }
}

impl Target {
    /// The broker's address.
    pub fn address(&self) -> BrokerAddress {
        BrokerAddress { url: self.server.clone(), tls: self.tls.clone() }
    }

    /// A connection that may look at every stream and bucket. It is made for one command.
    pub async fn operator(&self) -> anyhow::Result<(Principal, Connection)> {
        if self.mode == Mode::Open {
            let options = self.connect_options("cotal operator", CredsSource::anonymous());
            let nobody = Principal::new("local", "operator")?;
            return Ok((nobody, Connection::connect(options).await?));
        }
        let authority = Authority::open(&self.root, &self.space)?;
        Ok(authority.connect(Office::Operator, &self.address()).await?)
    }

    /// Refuses what an open mesh does not have (LIF-14).
    pub fn demand_authenticated(&self, what: &str) -> anyhow::Result<()> {
        if self.mode == Mode::Auth {
            return Ok(());
        }
        let message = format!(
            "this mesh is open, so it has no {what}: bring up an authenticated one with `cotal up` \
             in another directory"
        );
        Err(Failure::new(Exit::Refused, message).into())
    }

    /// How to connect with `creds`, listed by the broker under `name`.
    pub fn connect_options(&self, name: &str, creds: impl Into<CredsSource>) -> ConnectOptions {
        ConnectOptions::new(&self.server, name, creds.into()).tls(self.tls.clone())
    }

    /// The file of an agent's credential: `NAME`, or `<owner>.<actor>`.
    pub fn agent_file(&self, name: &str) -> anyhow::Result<PathBuf> {
        let principal = principal(name)?;
        let key = SecretKey::new(&self.space, SecretKind::Agent(principal.clone()));
        let store = FileStore::new(self.root.clone());
        let secret = store.get(&key)?.ok_or_else(|| {
            let (space, actor) = (&self.space, principal.actor());
            let makes = if principal.owner() == "local" {
                format!(
                    ": `cotal agent add {actor} --space {space} --read CHANNEL --post CHANNEL` makes \
                     one; if `cotal agent list --space {space}` shows {principal}, retire it first"
                )
            } else {
                "; another owner's is given with --creds FILE".to_owned()
            };
            let message = format!("this root has no credential of {principal} in space {space}{makes}");
            Failure::new(Exit::Absent, message)
        })?;
        Creds::parse(secret.expose()).with_context(|| format!("the credential of {principal}"))?;
        Ok(store.path(&key))
    }
}

/// The principal behind a name on the command line: `NAME` is `local.<name lowercased>`.
pub fn principal(name: &str) -> anyhow::Result<Principal> {
    let parsed = if name.contains('.') {
        Principal::parse(name)
    } else {
        Principal::new("local", &name.to_ascii_lowercase())
    };
    parsed.map_err(|e| Failure::new(Exit::Usage, e.to_string()).into())
}

/// The space that a command means when it names none.
pub fn first_space(mesh: &MeshFile) -> anyhow::Result<Space> {
    let first = mesh.spaces.first().cloned();
    first.ok_or_else(|| Failure::new(Exit::Absent, "this root has no space: run `cotal up`").into())
}

/// A variable of the environment; an empty one is not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn working_directory() -> anyhow::Result<PathBuf> {
    std::env::current_dir().context("the working directory cannot be read")
}

fn agent_variable() -> anyhow::Result<Option<String>> {
    let text = variable("COTAL_AS").map(|text| text.into_string().ok());
    match text {
        None => Ok(None),
        Some(Some(name)) => Ok(Some(name)),
        Some(None) => Err(Failure::new(Exit::Usage, "COTAL_AS is not UTF-8 text").into()),
    }
}

fn serving_within() -> anyhow::Result<Duration> {
    const NAME: &str = "COTAL_SERVING_WITHIN_MS";
    let Some(text) = variable(NAME) else {
        return Ok(SERVING_WITHIN);
    };
    let told = text.to_str().and_then(|text| text.parse().ok());
    told.map(Duration::from_millis).ok_or_else(|| {
        let message = format!("{NAME} is {}: give whole milliseconds", text.display());
        Failure::new(Exit::Usage, message).into()
    })
}

fn registry_path() -> Option<PathBuf> {
    Some(config_home()?.join("cotal/meshes.json"))
}

/// Where the user's configuration is kept.
pub fn config_home() -> Option<PathBuf> {
    match variable("XDG_CONFIG_HOME") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => Some(Path::new(&variable("HOME")?).join(".config")),
    }
}

/// This binary. The kernel marks the path of one that was replaced while it runs; what stands there
/// now is its successor, and a daemon is better started from that.
pub fn own_program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Ok(replaced.map_or_else(|| path.clone(), PathBuf::from))
}
