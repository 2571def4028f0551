//! `cotal mint`: one bounded credential of a delivery host, for whoever provisions its store
//! himself.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cotal_manager::{
    Authority, HostProfile, mint_connection_evictor_creds, mint_creds,
    mint_membership_observer_creds,
};
use cotal_trust::UserKey;
use cotal_wire::Space;
use cotal_wire::creds::Creds;
use cotal_workspace::Secret;
use cotal_workspace::files::{self, Privacy};

use crate::args::{self, LifetimeArg};
use crate::context::{Context, first_space};
use crate::exit::{Exit, Failure};

/// Mints one credential that a delivery host runs on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`cotal host provision` writes a host's whole store; this is for a store that something else fills. A
credential that stands in FILE is renewed under its own key, so that a host keeps its identity.

Examples:
  cotal mint delivery --space main --out east/delivery.creds
  cotal mint observer --space main --out east/membership-observer.creds")]
pub struct Args {
    /// The kind of credential.
    kind: Kind,
    /// The space; else the first one of the root.
    #[arg(long, value_name = "SPACE", env = "COTAL_SPACE", value_parser = args::space)]
    space: Option<Space>,
    /// Where to write it, readable by its owner alone.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The rotation that an observer and its evictor share; a daemon refuses a pair of two. An
    /// observer without one is that of a host, whose lanes never kick.
    #[arg(long, value_name = "ID", required_if_eq("kind", "evictor"))]
    rotation: Option<String>,
    #[command(flatten)]
    lifetime: LifetimeArg,
}

/// A credential of a delivery host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// The daemon itself.
    Delivery,
    /// The writer of the membership feed.
    MembershipRw,
    /// The census of the space's accounts.
    Observer,
    /// Kicks connections of every space of the broker. Only for a host that serves the one space of
    /// its broker.
    Evictor,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let root = ctx.root()?;
    let space = match args.space {
        Some(space) => space,
        None => first_space(&ctx.mesh(&root)?)?,
    };
    let authority = Authority::open(&root, &space)?;
    let authority = authority.with_lifetime(args.lifetime.credential_lifetime);
    if args.kind == Kind::Evictor && authority.trust().spaces()? > 1 {
        let message = "this broker hosts several spaces, and a kick credential reaches all of them: \
                       a host on a root that retained the system account's seed kicks \
                       (`cotal host provision --kicks`)";
        return Err(Failure::new(Exit::Refused, message).into());
    }
    let key = key_of(&args.out)?;
    let rotation = args.rotation.as_deref();
    let creds = match args.kind {
        Kind::Delivery => mint_creds(&authority, HostProfile::Delivery, &key)?,
        Kind::MembershipRw => mint_creds(&authority, HostProfile::MembershipRw, &key)?,
        Kind::Observer => mint_membership_observer_creds(&authority, &key, rotation)?,
        Kind::Evictor => {
            let rotation = rotation.context("an evictor belongs to a rotation")?;
            mint_connection_evictor_creds(&authority, &key, rotation)?
        }
    };
    files::replace(&args.out, creds.expose().as_bytes(), Privacy::Secret)?;
    let expires = Creds::parse(creds.expose())?.claims.expires_at;
    let (public, out) = (key.public_key(), args.out.display());
    let until = expires.map_or(String::new(), |at| format!(", until {at} (Unix seconds)"));
    ctx.out.proven(format!("{public} is minted for space {space}{until}: {out}"));
    Ok(Exit::Ok)
}

/// The key that stands in `path`, or a new one (CRD-7).
fn key_of(path: &Path) -> anyhow::Result<UserKey> {
    let Some(text) = files::read(path)? else { return Ok(UserKey::generate()) };
    let seed = Creds::seed_of(&text).map(Secret::new);
    let key = seed.as_ref().and_then(|seed| UserKey::from_seed(seed).ok());
    key.ok_or_else(|| {
        let message = format!("{} holds something that is not a credential", path.display());
        Failure::new(Exit::Conflict, message).into()
    })
}
