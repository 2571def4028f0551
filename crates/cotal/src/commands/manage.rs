//! `cotal manage`: the manager of one space.

use std::sync::Arc;

use anyhow::Context as _;
use cotal_manager::launch::manager_record;
use cotal_manager::{Authority, BrokerAddress, Manager, ManagerOptions};
use cotal_wire::Space;
use cotal_workspace::{FileStore, Identity, PidFile, Root, Segment, Share};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::served_space::{ServedSpace, nowhere, served_space, signalled};
use crate::args::{LifetimeArg, MeshArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::logging;
use crate::output::told;

/// Runs the manager of a space.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`cotal up` starts it, `cotal down` stops it. It signs the daemon's credentials anew at half of their
life and has the daemon adopt them. A start first has what an earlier run left evicted; until that
is verified no agent is provisioned. It logs to .cotal/manager.<space>.log and to standard error.

Example:
  cotal manage --space main --root /srv/mesh")]
pub struct Args {
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    lifetime: LifetimeArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let served = match served_space(&args.mesh, ctx) {
        Ok(place) => place,
        Err(failure) => return Ok(nowhere("manager", &args.mesh, &failure, ctx)),
    };
    let log = served.root.manager_log(&Segment::from(&served.space));
    logging::to_file_and_stderr(&log, ctx.log_format)
        .with_context(|| format!("the log {} cannot be opened", log.display()))?;
    served.warn_of_another_root();
    let ServedSpace { root, space, server: url, tls, .. } = served;
    let authority = Authority::open(&root, &space)?;
    let authority = authority.with_lifetime(args.lifetime.credential_lifetime);
    let store = Arc::new(FileStore::new(root.clone()));
    let options = ManagerOptions::new(authority, store, BrokerAddress { url, tls });
    // From here on every end has its reason in the manager's own log, so none is printed again.
    match Box::pin(manage(options, &root, &space)).await {
        Ok(()) => Ok(Exit::Ok),
        Err(failure) => {
            error!(%space, "✗ manager: {}", told(&failure));
            Ok(Exit::of(&failure))
        }
    }
}

/// Runs the manager until it ends or a signal ends it. It records itself before it waits for
/// anything, so that a stop finds it while it still starts.
async fn manage(options: ManagerOptions, root: &Root, space: &Space) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let recorded = Recorded::write(root, space)?;
    let stop = CancellationToken::new();
    let running = async {
        let Some(started) = stop.run_until_cancelled(Manager::start(options)).await else {
            return Ok(());
        };
        let manager = started?;
        info!(%space, principal = %manager.principal(), "managing");
        manager.run(stop.clone()).await
    };
    tokio::pin!(running);
    let ended = tokio::select! {
        ended = &mut running => ended,
        name = signalled(&mut interrupt, &mut terminate) => {
            info!(%space, "received {name}, exiting");
            stop.cancel();
            running.await
        }
    };
    drop(recorded);
    Ok(ended?)
}

/// The record of this process. One of a manager that runs is never overwritten.
struct Recorded(PidFile);

impl Recorded {
    fn write(root: &Root, space: &Space) -> anyhow::Result<Self> {
        let record = manager_record(root, space);
        Identity::adopt(&record.run_lock(), Share::Alone)?;
        record.write(std::process::id())?;
        Ok(Self(record))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove_if(std::process::id()) {
            warn!(%error, "the process record could not be removed");
        }
    }
}
