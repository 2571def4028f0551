//! `cotal deliver`: the delivery daemon of one space, or of every space of a manifest.

mod hosted;
mod kicks;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use cotal_delivery::{Lane, LaneOptions, Progress, Stage, Windows};
use cotal_manager::launch::daemon_record;
use cotal_wire::Space;
use cotal_workspace::{FileStore, Identity, PidFile, Root, Segment, Share};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::served_space::{ServedSpace, nowhere, served_space, signalled};
use crate::args::MeshArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::logging;
use crate::notify::{self, Notifier};
use crate::output::told;
use hosted::Hosting;

/// Runs the delivery daemon of a space, or of every space of a manifest.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`cotal up` starts it; run it by hand only where something else watches over it. It serves one root:
--root, or the nearest directory with .cotal/ at or above this one. It logs to
.cotal/delivery.<space>.log and to standard error.

With --spaces it serves every space that the manifest names, each as if it had a process of its own,
and logs to .cotal/host.log. The manifest is read again when it changes, and on SIGHUP.

Examples:
  cotal deliver --space main --root /srv/mesh --log-format json
  cotal deliver --spaces spaces.json --root /srv/east --server nats://broker:4222")]
pub struct Args {
    #[command(flatten)]
    mesh: MeshArgs,
    /// Serve every space that this file names: {"version": 1, "spaces": ["alpha", "beta"]}.
    #[arg(long, value_name = "MANIFEST", conflicts_with = "space")]
    spaces: Option<PathBuf>,
    /// With --spaces: demand TLS of every connection. A mesh that is recorded with TLS demands it
    /// without being told, and so does a server that is named tls://….
    #[arg(long, requires = "spaces")]
    tls: bool,
    /// With --tls: the authority that signed the broker's certificate, where this system does not
    /// trust it.
    #[arg(long, value_name = "PEM", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// How long the broker may be away, in milliseconds, before the daemon ends; what this process
    /// itself was stalled is taken off. The default is 15000.
    #[arg(
        long,
        value_name = "MS",
        env = "COTAL_DELIVERY_BROKER_GONE_MS",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    broker_gone_ms: Option<i64>,
    /// The same by the wall clock, whatever was stalled; never less than the window, by default
    /// four of it.
    #[arg(
        long,
        value_name = "MS",
        env = "COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    broker_gone_backstop_ms: Option<i64>,
}

impl Args {
    fn windows(&self) -> Windows {
        Windows::new(self.broker_gone_ms, self.broker_gone_backstop_ms)
    }
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    if let Some(manifest) = &args.spaces {
        let hosting = Hosting {
            manifest: manifest.clone(),
            mesh: args.mesh.clone(),
            tls: args.tls.then(|| args.tls_ca.clone()),
            windows: args.windows(),
        };
        return Box::pin(hosted::run(hosting, ctx)).await;
    }
    let served = match served_space(&args.mesh, ctx) {
        Ok(place) => place,
        Err(failure) => return Ok(nowhere("delivery", &args.mesh, &failure, ctx)),
    };
    let log = served.root.delivery_log(&Segment::from(&served.space));
    logging::to_file_and_stderr(&log, ctx.log_format)
        .with_context(|| format!("the log {} cannot be opened", log.display()))?;
    served.warn_of_another_root();
    let ServedSpace { root, space, server, tls, .. } = served;
    let options = LaneOptions {
        tls,
        windows: args.windows(),
        ..LaneOptions::new(space.clone(), server, Arc::new(FileStore::new(root.clone())))
    };
    // From here on every end has its reason in the daemon's own log, so none is printed again.
    match serve(options, &root, &space).await {
        Ok(()) => Ok(Exit::Ok),
        Err(failure) => {
            error!(%space, "✗ delivery: {}", told(&failure));
            Ok(Exit::of(&failure))
        }
    }
}

/// Runs the lane until it ends or a signal ends it. The signals are caught before anything is
/// claimed, so that a lease that is won is always released.
async fn serve(options: LaneOptions, root: &Root, space: &Space) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let record = daemon_record(root, space);
    Identity::adopt(&record.run_lock(), Share::Together)?;
    let mut lane = Lane::start(options);
    let recorder = tokio::spawn(record_once_claimed(lane.stage(), record.clone()));
    let told = attend(space.clone(), lane.stage(), lane.progress());
    let ended = tokio::select! {
        ended = lane.ended() => {
            notify::stopping(ended.as_ref().map_or_else(ToString::to_string, |()| "ended".into()));
            ended
        }
        never = told => match never {},
        name = signalled(&mut interrupt, &mut terminate) => {
            info!(%space, "received {name}, exiting");
            notify::stopping(format_args!("received {name}"));
            lane.stop();
            lane.ended().await
        }
    };
    recorder.abort();
    // A record that is just being written must be there before it can be removed.
    let _ = recorder.await;
    // A lease that still stands refuses the next daemon. The record, whose process is gone by then,
    // is what `up` knows of that death by, as of any other: so it waits until the lease expires.
    if matches!(*lane.stage().borrow(), Stage::Ended { released: true })
        && let Err(error) = record.remove_if(std::process::id())
    {
        warn!(%space, %error, "the process record could not be removed");
    }
    Ok(ended?)
}

/// Tells the service manager how the lane makes progress, for as long as this is polled.
async fn attend(
    space: Space,
    mut stage: watch::Receiver<Stage>,
    progress: Progress,
) -> std::convert::Infallible {
    let Some(mut notifier) = Notifier::from_process() else {
        return std::future::pending().await;
    };
    loop {
        let now = *stage.borrow_and_update();
        match now {
            Stage::Starting => notifier.status(&format!("space {space}: claiming the lease")),
            Stage::Claimed => {
                notifier.status(&format!("space {space}: holds the lease, not bound"));
            }
            Stage::Ended { .. } => return std::future::pending().await,
            Stage::Ready => {
                let proof = progress.proven(notifier.every()).await;
                notifier.proven(match proof {
                    Ok(()) => Ok(format!("serving space {space}")),
                    Err(stalled) => Err(format!("space {space}: {stalled}")),
                });
            }
        }
        // What a stage says stands until it changes; only a proof grows old.
        let due = async {
            match now {
                Stage::Ready => tokio::time::sleep(notifier.every()).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            changed = stage.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
        }
    }
}

/// Records this process once it holds the lease: one that does not hold it is not the space's
/// daemon, and must not overwrite the record of the one that is (LIF-11).
async fn record_once_claimed(mut stage: watch::Receiver<Stage>, record: PidFile) {
    let claimed = stage.wait_for(|stage| matches!(stage, Stage::Claimed | Stage::Ready));
    if claimed.await.is_err() {
        return;
    }
    if let Err(error) = record.write(std::process::id()) {
        warn!(%error, "this process could not be recorded, so `cotal down` will not find it");
    }
}
