//! `cotal down`: nothing of this root is left running.

use cotal_manager::launch::{Stopped, stop_broker, stop_daemon};
use cotal_workspace::{MeshFile, Reservation};

use crate::context::Context;
use crate::exit::Exit;

/// Stops the daemons and the broker of this root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A process is stopped only when its record and its command line show that it is this root's. What
was provisioned stays; `cotal up` brings it back.

Example:
  cotal down")]
pub struct Args {}

/// Runs the command. A second run has nothing to do and succeeds.
pub async fn run(_args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let root = ctx.root()?;
    let _held = Reservation::try_acquire(&root.up_lock())?;
    let spaces = MeshFile::load(&root)?.map(|mesh| mesh.spaces);
    for space in spaces.unwrap_or_default() {
        // The daemon releases its lease only while the broker answers, so it goes first.
        let stopped = stop_daemon(&root, &space).await?;
        report(ctx, &format!("space {space}: delivery daemon"), stopped);
    }
    report(ctx, "broker", stop_broker(&root).await?);
    Ok(Exit::Ok)
}

/// Says how something ended.
pub fn report(ctx: &Context, what: &str, stopped: Option<Stopped>) {
    match stopped {
        Some(Stopped::Gracefully) => ctx.out.proven(format!("{what} stopped")),
        Some(Stopped::Killed) => ctx.out.warn(format!("{what} did not stop and was killed")),
        None => ctx.out.note(format!("  {what} was not running")),
    }
}
