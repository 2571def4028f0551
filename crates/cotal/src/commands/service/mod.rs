//! `cotal service`: a root's daemons under systemd (LIF-16).

mod unit;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cotal_wire::Space;
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{MeshFile, Mode, Root};

use crate::args;
use crate::context::{Context, config_home, first_space, own_program};
use crate::exit::{Exit, Failure};
use unit::{Preset, Scope, Unit};

/// Prints or installs a systemd unit.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`delivery` runs the daemon of one space, `mesh` a whole root as `cotal up` does. The units are of
Type=notify: started means that it serves, and what hangs is started again. They run without any
privilege and may write below .cotal/ alone. Run as root, a unit is the machine's and runs as the
owner of the root; otherwise it is yours.

Examples:
  cotal service print delivery --space main
  cotal service install mesh --root /srv/mesh
  cotal service install delivery --dir /tmp/units --force")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the unit on standard output.
    #[command(after_help = "Example:\n  cotal service print mesh")]
    Print(UnitArgs),
    /// Write the unit where systemd finds it, and say what to run next.
    #[command(after_help = "Example:\n  cotal service install delivery --space main")]
    Install(InstallArgs),
}

#[derive(Debug, clap::Args)]
struct UnitArgs {
    /// What the unit runs.
    preset: Preset,
    /// The space of a `delivery` unit; else the first one of the root.
    #[arg(long, value_name = "SPACE", env = "COTAL_SPACE", value_parser = args::space)]
    space: Option<Space>,
    /// The nats-server of a `mesh` unit; else the one that `cotal up` would find.
    #[arg(long, value_name = "PATH", env = "COTAL_NATS_SERVER")]
    nats_server: Option<PathBuf>,
    /// A unit of the machine's manager, also when not run as root.
    #[arg(long, conflicts_with = "user")]
    system: bool,
    /// A unit of your own manager, also when run as root.
    #[arg(long)]
    user: bool,
}

#[derive(Debug, clap::Args)]
struct InstallArgs {
    #[command(flatten)]
    unit: UnitArgs,
    /// The directory to write into; else that of the manager.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Replace a file that says something else.
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.command {
        Command::Print(args) => {
            let made = make(&args, ctx).await?;
            ctx.out.data(made.text.trim_end())?;
        }
        Command::Install(args) => {
            let made = make(&args.unit, ctx).await?;
            install(&args, &made, ctx)?;
        }
    }
    Ok(Exit::Ok)
}

struct Made {
    name: String,
    text: String,
    scope: Scope,
    /// What the unit may write and what therefore must be there.
    writable: Vec<PathBuf>,
}

async fn make(args: &UnitArgs, ctx: &Context) -> anyhow::Result<Made> {
    let root = ctx.root()?;
    let mesh = ctx.mesh(&root)?;
    let scope = scope(args, &root)?;
    let private = root.dot_dir().join("config");
    // Another user's registry cannot be read, so the machine's service keeps one in the root.
    let config_home = match scope {
        Scope::System { .. } => Some(private),
        Scope::User => config_home(),
    };
    let registry = config_home.as_ref().map(|dir| dir.join("cotal"));
    let dot_dir = root.dot_dir();
    let mut writable = vec![dot_dir.as_path()];
    let (name, description, exec) = match args.preset {
        Preset::Delivery => delivery(args, &root, &mesh)?,
        Preset::Mesh => {
            writable.extend(registry.as_deref().filter(|dir| !dir.starts_with(&dot_dir)));
            mesh_command(args, &root, ctx).await?
        }
    };
    let unit = Unit {
        preset: args.preset,
        scope,
        description,
        exec,
        config_home: config_home.as_deref(),
        writable,
    };
    let text = unit.render().map_err(|why| Failure::new(Exit::Usage, why))?;
    let writable = unit.writable.iter().map(|&path| path.to_owned()).collect();
    Ok(Made { name, text, scope, writable })
}

type Named = (String, String, Vec<String>);

fn delivery(args: &UnitArgs, root: &Root, mesh: &MeshFile) -> anyhow::Result<Named> {
    if mesh.mode == Mode::Open {
        let message = "this mesh is open, so it has no delivery daemon: use the mesh preset";
        return Err(Failure::new(Exit::Refused, message).into());
    }
    let space = match &args.space {
        Some(space) => space.clone(),
        None => first_space(mesh)?,
    };
    if !mesh.spaces.contains(&space) {
        let message = format!("{} has no space {space}", root.dir().display());
        return Err(Failure::new(Exit::Absent, message).into());
    }
    let mut exec = vec![text(&own_program()?)?, "deliver".into(), "--space".into()];
    exec.extend([space.to_string(), "--root".into(), text(root.dir())?]);
    let name = format!("cotal-delivery-{space}.service");
    Ok((name, format!("Cotal delivery daemon of space {space}"), exec))
}

/// The broker is the one that is found now: a service fetches no programs.
async fn mesh_command(args: &UnitArgs, root: &Root, ctx: &Context) -> anyhow::Result<Named> {
    let broker = ctx.locate_broker(args.nats_server.clone()).await?;
    let mut exec = vec![text(&own_program()?)?, "up".into(), "--root".into(), text(root.dir())?];
    exec.extend(["--nats-server".into(), text(&broker.path)?]);
    let description = format!("Cotal mesh of {}", root.dir().display());
    Ok(("cotal-mesh.service".to_owned(), description, exec))
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

fn scope(args: &UnitArgs, root: &Root) -> anyhow::Result<Scope> {
    let system = args.system || (!args.user && rustix::process::geteuid().is_root());
    if !system {
        return Ok(Scope::User);
    }
    let owner = std::fs::metadata(root.dot_dir())?;
    Ok(Scope::System { uid: owner.uid(), gid: owner.gid() })
}

fn install(args: &InstallArgs, made: &Made, ctx: &Context) -> anyhow::Result<()> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => default_dir(made.scope)?,
    };
    for dir in made.writable.iter().chain([&dir]) {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let path = dir.join(&made.name);
    match files::read(&path)? {
        Some(text) if text == made.text => ctx.out.note("  the unit is installed already"),
        Some(_) if !args.force => {
            let message = format!("{} says something else: --force replaces it", path.display());
            return Err(Failure::new(Exit::Conflict, message).into());
        }
        _ => {
            files::replace(&path, made.text.as_bytes(), Privacy::Public)?;
            ctx.out.proven(format!("{} is written", made.name));
        }
    }
    ctx.out.data(path.display())?;
    advise(made, ctx);
    Ok(())
}

fn default_dir(scope: Scope) -> anyhow::Result<PathBuf> {
    match scope {
        Scope::System { .. } => Ok("/etc/systemd/system".into()),
        Scope::User => {
            let config = config_home()
                .context("neither XDG_CONFIG_HOME nor HOME is set: name a directory with --dir")?;
            Ok(config.join("systemd/user"))
        }
    }
}

fn advise(made: &Made, ctx: &Context) {
    let user = if made.scope == Scope::User { " --user" } else { "" };
    let name = &made.name;
    ctx.out.note("Next, once what runs of this root by hand is down (`cotal down`):");
    ctx.out.note(format_args!("  systemctl{user} daemon-reload"));
    ctx.out.note(format_args!("  systemctl{user} enable --now {name}"));
    ctx.out.note(format_args!("  journalctl{user} --unit {name} --follow"));
    match made.scope {
        Scope::User => {
            ctx.out.note("  loginctl enable-linger    # so that it runs without a login");
        }
        Scope::System { uid: 0, .. } => ctx.out.warn(
            "the root belongs to the superuser, so its service runs as the superuser: give it to \
             a user of its own (chown -R) and install again",
        ),
        Scope::System { .. } => {}
    }
}
