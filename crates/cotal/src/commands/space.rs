//! `cotal space`: the spaces of this root.

use cotal_manager::launch::{
    WhileStopping, running_broker, running_daemon, stop_daemon, stop_manager,
};
use cotal_manager::{Authority, Isolation};
use cotal_wire::Space;
use cotal_wire::accounts::Topology;
use cotal_workspace::{Mode, Reservation, Root};
use serde_json::json;

use super::up::Up;
use crate::args::{self, JsonArg};
use crate::context::Context;
use crate::exit::Exit;

/// Adds or lists the spaces of this root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal space add research
  cotal space isolate main
  cotal space list --json")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a space; while the mesh is up, it is provisioned and served at once.
    #[command(after_help = "Example:\n  cotal space add research")]
    Add {
        /// Its name; characters other than letters, digits, _ and - become _.
        #[arg(value_parser = args::space)]
        name: Space,
    },
    /// Move a space of one account to three, so that no agent can destroy or rob what is another's.
    #[command(after_help = "\
Nothing that is stored is moved or lost. The space's daemon and manager are stopped and started
again, and every agent's credential is signed anew under its own lifecycle, in its file: agents that
run connect again with it. Whatever interrupts the move, running it again continues.

Example:
  cotal space isolate main")]
    Isolate {
        /// The space.
        #[arg(value_parser = args::space)]
        name: Space,
    },
    /// Show who uses how much of a space's streams, or remove what an agent sent.
    #[command(after_help = "\
A stream that is full refuses what is sent to it, and pushes out nobody's. Retire whoever filled it,
then remove what it sent with --free: its posts, direct messages and role requests go, whoever has
not read them yet.

Examples:
  cotal space usage
  cotal space usage --space research --json
  cotal agent retire mallory && cotal space usage --free mallory")]
    Usage(super::usage::Args),
    /// List the spaces.
    #[command(after_help = "Example:\n  cotal space list --json")]
    List {
        #[command(flatten)]
        output: JsonArg,
    },
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    match args.command {
        Command::Add { name } => add(&name, ctx).await,
        Command::Isolate { name } => Box::pin(isolate(&name, ctx)).await,
        Command::Usage(args) => super::usage::run(args, ctx).await,
        Command::List { output } => list(output, ctx),
    }
}

async fn add(space: &Space, ctx: &Context) -> anyhow::Result<Exit> {
    let root = ctx.root()?;
    let _held = Reservation::try_acquire(&root.up_lock())?;
    let mut mesh = ctx.mesh(&root)?;
    if !mesh.spaces.contains(space) {
        mesh.spaces.push(space.clone());
    }
    let authorities = match mesh.mode {
        Mode::Auth => vec![Authority::create_or_open(&root, space)?],
        Mode::Open => Vec::new(),
    };
    mesh.save(&root)?;
    if running_broker(&root)?.is_none() {
        ctx.out.note(format!("space {space} is added; `cotal up` provisions and serves it"));
        return Ok(Exit::Ok);
    }
    // Only the new space is completed here; the others are `up`'s.
    let mut only = mesh.clone();
    only.spaces = vec![space.clone()];
    let up = Up::new(ctx, root, only);
    let completed = up.spaces(&authorities).await?;
    up.managers(&authorities, completed.exit).await
}

async fn isolate(space: &Space, ctx: &Context) -> anyhow::Result<Exit> {
    let root = ctx.root()?;
    let _held = Reservation::try_acquire(&root.up_lock())?;
    let mesh = ctx.mesh(&root)?;
    anyhow::ensure!(mesh.spaces.contains(space), "space {space} is not of this root");
    anyhow::ensure!(
        mesh.mode == Mode::Auth,
        "space {space} is open: without credentials there are no accounts to keep apart"
    );
    anyhow::ensure!(
        running_broker(&root)?.is_some(),
        "the broker does not run, and it must learn of the accounts: `cotal up`, then this again"
    );
    let mut only = mesh.clone();
    only.spaces = vec![space.clone()];
    let up = Up::new(ctx, root.clone(), only);
    if needs_isolation(&root, space)? {
        stop_manager(&root, space).await?;
        stop_daemon(&root, space, WhileStopping::Wait).await?;
        ctx.out.proven(format!("space {space}: its manager and its daemon are stopped"));
    }
    match Box::pin(cotal_manager::isolate(&root, space, up.address())).await? {
        None => ctx.out.proven(format!("space {space} has three accounts")),
        Some(done) => told(space, &done, ctx),
    }
    let authorities = vec![Authority::open(&root, space)?];
    let completed = up.spaces(&authorities).await?;
    up.managers(&authorities, completed.exit).await
}

fn needs_isolation(root: &Root, space: &Space) -> anyhow::Result<bool> {
    let authority = Authority::open(root, space)?;
    let account = authority.account();
    Ok(account.topology() == Topology::One || account.is_moving())
}

fn told(space: &Space, done: &Isolation, ctx: &Context) {
    let n = done.reissued.len();
    ctx.out.proven(format!(
        "space {space} has three accounts; {n} agents' credentials are signed anew, and every older \
         one is refused"
    ));
    for agent in &done.elsewhere {
        ctx.out.warn(format!(
            "{agent}: its credential is not on this root and is refused now; retire it, or provision \
             it again"
        ));
    }
}

fn list(output: JsonArg, ctx: &Context) -> anyhow::Result<Exit> {
    let root = ctx.root()?;
    let mesh = ctx.mesh(&root)?;
    let mut rows = Vec::new();
    for space in &mesh.spaces {
        let pid = running_daemon(&root, space)?.map(|daemon| daemon.pid());
        rows.push((space, pid));
    }
    if output.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(space, pid)| json!({"space": space, "daemon": pid, "server": mesh.server}))
            .collect();
        ctx.out.json(&rows)?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = rows
        .iter()
        .map(|(space, pid)| {
            let pid = pid.map_or("-".to_owned(), |pid| pid.to_string());
            vec![space.to_string(), pid, mesh.server.clone()]
        })
        .collect();
    ctx.out.table(&["SPACE", "DAEMON", "SERVER"], &rows, "no spaces yet: `cotal up`")?;
    Ok(Exit::Ok)
}
