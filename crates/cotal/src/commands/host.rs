//! `cotal host`: roots of delivery hosts, filled by whoever holds the signing keys.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cotal_manager::{Authority, provision_host};
use cotal_trust::retain_system;
use cotal_wire::Space;
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::manifest::ManifestError;
use cotal_workspace::{HostManifest, Root, workspace_secret_store};

use crate::args::{self, LifetimeArg};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Provisions the root of a delivery host.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  cotal host provision --root /srv/east --space main")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write what a host runs on below --root, and renew what is past half its life.
    #[command(after_help = "\
--root is the host's root; it is made when it is missing. The keys are those of the mesh at
--authority, or at or above this directory; the host gets none of them. Each host has keys of its
own, which a renewal keeps. Run it again well before 18 hours have passed.

Examples:
  cotal host provision --root /srv/east --space main
  cotal host provision --root /srv/east --space alpha --space beta --authority /srv/mesh")]
    Provision(ProvisionArgs),
}

#[derive(Debug, clap::Args)]
struct ProvisionArgs {
    /// A space that the host serves, or stands by for.
    #[arg(
        long,
        value_name = "SPACE",
        env = "COTAL_SPACE",
        required = true,
        value_parser = args::space
    )]
    space: Vec<Space>,
    /// The root that holds the signing keys.
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
    /// The manifest that the spaces are added to; else spaces.json in the host's root.
    #[arg(long, value_name = "MANIFEST")]
    manifest: Option<PathBuf>,
    /// Copy the system account's seed to the host, so that it can kick connections. A kick
    /// reaches every space of the broker: only for a trusted machine.
    #[arg(long)]
    kicks: bool,
    #[command(flatten)]
    lifetime: LifetimeArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.command {
        Command::Provision(args) => provision(&args, ctx),
    }
}

fn provision(args: &ProvisionArgs, ctx: &Context) -> anyhow::Result<Exit> {
    let signing = signing_root(args.authority.as_deref(), ctx)?;
    let dir = ctx.root_flag().ok_or_else(|| {
        Failure::new(Exit::Usage, "name the host's root: --root DIR; it is made when missing")
    })?;
    let host = Root::init(dir)?;
    if host == signing {
        let message = format!(
            "{} holds the signing keys, and its own host needs no other credentials: `cotal up` \
             makes them. Name another --root",
            host.dir().display()
        );
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    let store = workspace_secret_store(&host);
    for space in &args.space {
        let authority = Authority::open(&signing, space)?;
        let authority = authority.with_lifetime(args.lifetime.credential_lifetime);
        let renewed = provision_host(&authority, &store)?;
        for one in &renewed {
            let (kind, reason) = (one.kind.name(), one.reason);
            ctx.out.proven(format!("space {space}: {kind} credential minted, {reason}"));
        }
        if renewed.is_empty() {
            ctx.out.proven(format!("space {space}: every credential is good"));
        }
    }
    if args.kicks {
        retain_system(&signing, &host)?;
        ctx.out.warn("the host holds the system account's seed: its kicks reach every space");
    }
    let path = args.manifest.clone().unwrap_or_else(|| host.dir().join("spaces.json"));
    extend(&path, &args.space)?;
    ctx.out.data(path.display())?;
    Ok(Exit::Ok)
}

/// `--root` names the host's root here, so the keys are looked for as other commands look for a
/// root.
fn signing_root(named: Option<&Path>, ctx: &Context) -> anyhow::Result<Root> {
    match named {
        Some(dir) => Ok(Root::at(dir)?),
        None => ctx.root_here(),
    }
}

/// Names the spaces in the manifest, beside those that it names already.
fn extend(path: &Path, more: &[Space]) -> anyhow::Result<()> {
    let mut spaces = match HostManifest::load(path) {
        Ok(manifest) => manifest.spaces().to_vec(),
        Err(ManifestError::Absent(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let before = spaces.len();
    for space in more {
        if !spaces.contains(space) {
            spaces.push(space.clone());
        }
    }
    if spaces.len() == before {
        return Ok(());
    }
    let manifest = HostManifest::new(spaces).map_err(anyhow::Error::msg)?;
    files::replace(path, manifest.render().as_bytes(), Privacy::Public)
        .with_context(|| format!("the manifest {} was not written", path.display()))
}
