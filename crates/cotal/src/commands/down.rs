//! `cotal down`: nothing of this root is left running.

use cotal_manager::launch::{Stop, Stopped, WhileStopping, stop_broker, stop_daemon, stop_manager};
use cotal_workspace::lock::LockError;
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
    let _held = match Reservation::try_acquire(&root.up_lock()) {
        // A full or read-only disk keeps nobody from stopping what runs.
        Err(error @ LockError::Io { .. }) => {
            ctx.out.warn(format!("{error}; going on without it"));
            None
        }
        held => Some(held?),
    };
    let mesh = MeshFile::load(&root).unwrap_or_else(|error| {
        ctx.out.warn(format!("{error}. What the pid records name is stopped"));
        None
    });
    everything(ctx, &root, mesh.as_ref(), WhileStopping::Refuse).await
}

/// Stops the managers, the daemons, then the broker: a daemon releases its lease only while the
/// broker answers. One that could not be stopped keeps no other from being stopped, but keeps its
/// broker.
///
/// Ends with [`Exit::Partial`] when all is stopped and a file could not be cleaned up.
///
/// A process may be recorded of a space that `mesh` does not list, or not any more; it is stopped
/// too.
pub async fn everything(
    ctx: &Context,
    root: &Root,
    mesh: Option<&MeshFile>,
    while_stopping: WhileStopping,
) -> anyhow::Result<Exit> {
    let mut listed = Vec::new();
    match mesh {
        Some(mesh) if mesh.mode == Mode::Open => {
            ctx.out.note("  this mesh is open, so it has no delivery daemon to stop");
        }
        Some(mesh) => listed.clone_from(&mesh.spaces),
        None => {}
    }
    let mut unlisted = root.recorded_spaces()?;
    unlisted.retain(|space| !listed.contains(space));
    let (mut failed, mut exit) = (None, Exit::Ok);
    for space in listed.iter().chain(&unlisted) {
        let manager = stop_manager(root, space).await;
        let daemon = stop_daemon(root, space, while_stopping).await;
        for (what, ended) in [("manager", manager), ("delivery daemon", daemon)] {
            match ended {
                // There need not have been one, so that there was none is no news.
                Ok(Stop { stopped: None, left: None })
                    if what == "manager" || unlisted.contains(space) => {}
                Ok(stop) => exit = exit.max(report(ctx, &format!("space {space}: {what}"), &stop)),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    let context = format!("the {what} of space {space} was not stopped");
                    failed.get_or_insert(error.context(context));
                }
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(exit.max(report(ctx, "broker", &stop_broker(root).await?)))
}

/// Says how something ended, and what was left behind.
fn report(ctx: &Context, what: &str, stop: &Stop) -> Exit {
    match stop.stopped {
        Some(Stopped::Gracefully) => ctx.out.proven(format!("{what} stopped")),
        Some(Stopped::Killed) => ctx.out.warn(format!("{what} did not stop and was killed")),
        None => ctx.out.note(format!("  {what} was not running")),
    }
    let Some(left) = &stop.left else { return Exit::Ok };
    ctx.out.warn(format!("{what}: a file of it was left behind, {left}"));
    Exit::Partial
}
