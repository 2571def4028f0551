//! `cotal down`: nothing of this root is left running.

use cotal_manager::launch::{Patience, Stopped, stop_broker, stop_daemon, stop_manager};
use cotal_workspace::{MeshFile, Mode, Reservation, Root};

use crate::context::Context;
use crate::exit::Exit;

/// Stops the managers, the daemons and the broker of this root.
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
    match MeshFile::load(&root)? {
        Some(mesh) => everything(ctx, &root, &mesh, Patience::Refuse).await?,
        None => report(ctx, "broker", stop_broker(&root).await?),
    }
    Ok(Exit::Ok)
}

/// Stops the managers, the daemons, then the broker: a daemon releases its lease only while the broker answers.
/// One that could not be stopped keeps no other from being stopped, but keeps its broker.
pub async fn everything(
    ctx: &Context,
    root: &Root,
    mesh: &MeshFile,
    patience: Patience,
) -> anyhow::Result<()> {
    let mut failed = None;
    if mesh.mode == Mode::Open {
        ctx.out.note("  this mesh is open, so it has no delivery daemon to stop");
    }
    let spaces = mesh.spaces.iter().filter(|_| mesh.mode == Mode::Auth);
    for space in spaces {
        match stop_manager(root, space).await {
            Ok(None) => {}
            Ok(stopped) => report(ctx, &format!("space {space}: manager"), stopped),
            Err(error) => {
                let error = anyhow::Error::from(error);
                failed.get_or_insert(
                    error.context(format!("the manager of space {space} was not stopped")),
                );
            }
        }
        match stop_daemon(root, space, patience).await {
            Ok(stopped) => report(ctx, &format!("space {space}: delivery daemon"), stopped),
            Err(error) => {
                let error = anyhow::Error::from(error);
                let context = format!("the delivery daemon of space {space} was not stopped");
                failed.get_or_insert(error.context(context));
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    report(ctx, "broker", stop_broker(root).await?);
    Ok(())
}

/// Says how something ended.
fn report(ctx: &Context, what: &str, stopped: Option<Stopped>) {
    match stopped {
        Some(Stopped::Gracefully) => ctx.out.proven(format!("{what} stopped")),
        Some(Stopped::Killed) => ctx.out.warn(format!("{what} did not stop and was killed")),
        None => ctx.out.note(format!("  {what} was not running")),
    }
}
