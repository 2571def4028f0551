//! `cotal space`: the spaces of this root.

use cotal_manager::Authority;
use cotal_manager::launch::{running_broker, running_daemon};
use cotal_wire::Space;
use cotal_workspace::{Mode, Reservation};
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
