//! `cotal deliver`: the delivery daemon of one space.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use cotal_delivery::{Lane, LaneOptions, Progress, Stage, Windows};
use cotal_manager::launch::daemon_record;
use cotal_nats::TlsMode;
use cotal_wire::Space;
use cotal_workspace::{
    FileStore, Identity, MeshEntry, MeshFile, Mode, PidFile, Root, Segment, Share,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::args::MeshArgs;
use crate::context::{Context, DEFAULT_SERVER, first_space, tls_of};
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::notify::{self, Notifier};
use crate::output::told;

/// Runs the delivery daemon of a space.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
`cotal up` starts it; run it by hand only where something else watches over it. It serves one root:
--root, or the nearest directory with .cotal/ at or above this one. It logs to
.cotal/delivery.<space>.log and to standard error.

Example:
  cotal deliver --space main --root /srv/mesh --log-format json")]
pub struct Args {
    #[command(flatten)]
    mesh: MeshArgs,
    /// How long the broker may be away, in milliseconds, before the daemon ends; what this process
    /// itself was stalled is taken off. The default is 15000.
    #[arg(
        long,
        value_name = "MS",
        env = "COTAL_DELIVERY_BROKER_GONE_MS",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    broker_gone_ms: Option<i64>,
    /// The same by the wall clock, whatever was stalled; never less than the window, by default four
    /// of it.
    #[arg(
        long,
        value_name = "MS",
        env = "COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS",
        value_parser = clap::value_parser!(i64).range(1..)
    )]
    broker_gone_backstop_ms: Option<i64>,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let place = match place(&args.mesh, ctx) {
        Ok(place) => place,
        Err(failure) => return Ok(nowhere("delivery", &args.mesh, &failure, ctx)),
    };
    let log = place.root.delivery_log(&Segment::from(&place.space));
    logging::to_file_and_stderr(&log, ctx.log_format)
        .with_context(|| format!("the log {} cannot be opened", log.display()))?;
    place.warn_of_another_root();
    let Place { root, space, server, tls, .. } = place;
    let options = LaneOptions {
        tls,
        windows: Windows::new(args.broker_gone_ms, args.broker_gone_backstop_ms),
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

/// The end of a process that found no place to run: it has no log of its own, and its line on standard
/// error is one of a log like all that follow it.
pub(super) fn nowhere(
    process: &str,
    args: &MeshArgs,
    failure: &anyhow::Error,
    ctx: &Context,
) -> Exit {
    logging::to_stderr(ctx.log_format);
    let space = args.space.as_ref().map(ToString::to_string).unwrap_or_default();
    error!(space, "✗ {process}: {}", told(failure));
    Exit::of(failure)
}

/// Where a process of one space runs.
pub(super) struct Place {
    pub(super) root: Root,
    pub(super) space: Space,
    pub(super) server: String,
    pub(super) tls: TlsMode,
    /// The root that the registry records for the space, where it is not this one.
    other: Option<PathBuf>,
}

impl Place {
    /// Says whose broker is dialled, where it is another root's: that one knows nothing of what
    /// this root signed, and its refusal does not tell.
    pub(super) fn warn_of_another_root(&self) {
        let Some(other) = &self.other else { return };
        let (space, server) = (&self.space, &self.server);
        warn!(
            %space,
            "the mesh registry records space {space} for another root, {}, so its broker at \
             {server} is dialled: run `cotal up` in {} to record this root",
            other.display(),
            self.root.dir().display()
        );
    }
}

/// The root, the space that was named or else the root's first, and the broker of it.
pub(super) fn place(args: &MeshArgs, ctx: &Context) -> anyhow::Result<Place> {
    let root = ctx.root()?;
    let mesh = MeshFile::load(&root)?;
    let space = match (&args.space, &mesh) {
        (Some(space), _) => space.clone(),
        (None, Some(mesh)) => first_space(mesh)?,
        (None, None) => return Err(Failure::new(Exit::Usage, "name the space: --space").into()),
    };
    if mesh.as_ref().is_some_and(|mesh| mesh.mode == Mode::Open && mesh.spaces.contains(&space)) {
        let message = "this mesh is open, so it has no daemon and no manager: bring up an \
                       authenticated one with `cotal up` in another directory";
        return Err(Failure::new(Exit::Refused, message).into());
    }
    let recorded = ctx.recorded(&space)?;
    let (server, tls) = broker(&space, args.server.as_deref(), recorded.as_ref(), mesh.as_ref())?;
    let other = recorded.map(|entry| entry.root).filter(|other| other != root.dir());
    Ok(Place { root, space, server, tls, other })
}

/// The broker of a space: the one that the registry records, which nothing overrides; without a
/// record the one that was named, else the root's, else the local default (LIF-13).
fn broker(
    space: &Space,
    named: Option<&str>,
    recorded: Option<&MeshEntry>,
    mesh: Option<&MeshFile>,
) -> anyhow::Result<(String, TlsMode)> {
    let of_root = mesh.map_or(TlsMode::Plain, tls_of);
    let same = |a: &str, b: &str| a.trim_end_matches('/') == b.trim_end_matches('/');
    let Some(entry) = recorded else {
        let server = named.or(mesh.map(|mesh| mesh.server.as_str()));
        return Ok((server.unwrap_or(DEFAULT_SERVER).to_owned(), of_root));
    };
    if let Some(named) = named.filter(|named| !same(named, &entry.server)) {
        let message = format!(
            "the mesh registry records {} for space {space}, not {named}: leave --server out, or \
             run `cotal up` on the root that serves it",
            entry.server
        );
        return Err(Failure::new(Exit::Conflict, message).into());
    }
    let tls = if entry.tls {
        let ca = entry.ca.clone();
        TlsMode::Required { ca }
    } else {
        of_root
    };
    Ok((entry.server.clone(), tls))
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

/// Tells the service manager how the lane gets on, for as long as this is polled.
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

pub(super) async fn signalled(interrupt: &mut Signal, terminate: &mut Signal) -> &'static str {
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(server: &str, tls: bool) -> MeshEntry {
        MeshEntry { root: "/r".into(), server: server.to_owned(), tls, ca: None }
    }

    fn resolve(named: Option<&str>, recorded: Option<&MeshEntry>) -> anyhow::Result<String> {
        let space = Space::parse("main")?;
        Ok(broker(&space, named, recorded, None)?.0)
    }

    #[test]
    fn lif_13_the_recorded_broker_is_dialled_and_another_is_refused() {
        let recorded = entry("nats://127.0.0.1:4333", false);
        let dialled = |named| resolve(named, Some(&recorded));
        assert_eq!(dialled(None).unwrap(), "nats://127.0.0.1:4333");
        assert_eq!(dialled(Some("nats://127.0.0.1:4333/")).unwrap(), "nats://127.0.0.1:4333");
        let refused = dialled(Some("nats://127.0.0.1:4222")).unwrap_err();
        assert_eq!(Exit::of(&refused), Exit::Conflict);
        assert!(refused.to_string().contains("4333"), "{refused}");
    }

    #[test]
    fn lif_13_without_a_record_it_is_the_one_named_else_the_local_default() {
        assert_eq!(resolve(None, None).unwrap(), DEFAULT_SERVER);
        assert_eq!(resolve(Some("nats://h:1"), None).unwrap(), "nats://h:1");
    }

    #[test]
    fn lif_1_a_tls_mesh_is_dialled_with_tls_demanded() {
        let space = Space::parse("main").unwrap();
        let recorded = entry("tls://127.0.0.1:4333", true);
        let (_, tls) = broker(&space, None, Some(&recorded), None).unwrap();
        assert_eq!(tls, TlsMode::Required { ca: None });
    }
}
