//! `cotal deliver --spaces`: the lanes of a manifest in one process (HST-1).
//!
//! It writes no pid record, because `cotal down` signals a record's process for one space, and this
//! one serves several (HST-4). Whoever asks for its lanes reads `host.json`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use cotal_delivery::{Host, HostOptions, LaneState, LaneStatus, Windows};
use cotal_manager::KickSigner;
use cotal_manager::clock::unix_millis;
use cotal_nats::TlsMode;
use cotal_wire::Space;
use cotal_workspace::lock::LockError;
use cotal_workspace::{FileStore, HostFile, HostLane, HostManifest, MeshFile, Reservation, Root};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::kicks::RetainedSeed;
use crate::args::MeshArgs;
use crate::commands::served_space::{broker, nowhere, signalled};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::notify::{self, Notifier};
use crate::output::told;

/// Between two looks at the manifest's file.
const MANIFEST_CHECK_EVERY: Duration = Duration::from_secs(2);
/// At least this often the state is written, so that a reader sees that this process still writes.
const STATE_WRITE_EVERY: Duration = Duration::from_secs(10);
/// At most this often, because a start changes the state of a thousand lanes within seconds.
const STATE_WRITE_APART: Duration = Duration::from_millis(300);
/// A lane that has not come to anything by then keeps nobody from hearing that the host is up.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Whoever only looks whether a host runs holds its lock for a moment.
const LOCK_WITHIN: Duration = Duration::from_secs(1);

/// What the command line says of a host.
pub(super) struct Hosting {
    pub(super) manifest: PathBuf,
    pub(super) mesh: MeshArgs,
    /// TLS is demanded, with this authority where the system's do not do.
    pub(super) tls: Option<Option<PathBuf>>,
    pub(super) windows: Windows,
}

/// Serves what the manifest names until a signal ends it.
pub(super) async fn run(hosting: Hosting, ctx: &Context) -> anyhow::Result<Exit> {
    let root = match ctx.root() {
        Ok(root) => root,
        Err(failure) => return Ok(nowhere("delivery host", &hosting.mesh, &failure, ctx)),
    };
    let log = root.host_log();
    logging::to_file_and_stderr(&log, ctx.log_format)
        .with_context(|| format!("the log {} cannot be opened", log.display()))?;
    // From here on every end has its reason in the host's own log, so none is printed again.
    match Box::pin(serve(&hosting, root, ctx)).await {
        Ok(()) => Ok(Exit::Ok),
        Err(failure) => {
            error!("✗ delivery host: {}", told(&failure));
            Ok(Exit::of(&failure))
        }
    }
}

/// What wakes the host.
enum Event {
    Exit(&'static str),
    Reload,
    Look,
    Show,
}

struct Hosted<'a> {
    hosting: &'a Hosting,
    ctx: &'a Context,
    root: Root,
    server: String,
    tls: TlsMode,
    /// What the manifest named when it was read last, and the file that said so.
    spaces: Vec<Space>,
    stamp: Option<Stamp>,
}

/// A version of the manifest's file: when it was written, its length and inode.
type Stamp = (SystemTime, u64, u64);

async fn serve(hosting: &Hosting, root: Root, ctx: &Context) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let _held = hold(&root).await?;
    let path = &hosting.manifest;
    let stamp = stamp(path);
    let manifest = HostManifest::load(path)?;
    let (server, tls) = address(hosting, ctx, &root, manifest.spaces())?;
    let mut options = HostOptions::new(server.as_str());
    options.tls = tls.clone();
    options.windows = hosting.windows;
    options.kick_authority = match KickSigner::of(&root)? {
        Some(signer) => Some(Arc::new(RetainedSeed(signer)) as _),
        None => {
            info!(
                "this root has no seed of the system account, so this host cannot kick connections"
            );
            None
        }
    };
    let spaces = manifest.spaces().to_vec();
    info!("serving {} spaces of {} at {server}", spaces.len(), path.display());
    let store = Arc::new(FileStore::new(root.clone()));
    let mut host = Host::start(options, store, spaces.iter().cloned());
    let mut hosted = Hosted { hosting, ctx, root, server, tls, spaces, stamp };
    let name = Box::pin(hosted.attend(&mut host, &mut signals)).await;
    info!("received {name}, exiting");
    notify::stopping(format_args!("received {name}"));
    host.close().await;
    info!("every lane is closed");
    Ok(())
}

impl Hosted<'_> {
    /// Follows the manifest and shows the lanes until a signal asks for the end.
    async fn attend(&mut self, host: &mut Host, signals: &mut Signals) -> &'static str {
        let started = Instant::now();
        let mut notifier = Notifier::from_process();
        let mut changes = host.changes();
        let mut look = tokio::time::interval(MANIFEST_CHECK_EVERY);
        loop {
            let lanes = host.lanes();
            self.save(&lanes);
            if let Some(notifier) = &mut notifier {
                let settled = started.elapsed() > SETTLED_WITHIN
                    || lanes.iter().all(|lane| lane.state != LaneState::Opening);
                let summary = summary(&lanes);
                match settled {
                    // The lanes prove their progress each for itself; one that hangs is closed
                    // alone.
                    true => notifier.proven(Ok(summary)),
                    false => notifier.status(&format!("starting: {summary}")),
                }
            }
            let show = notifier
                .as_ref()
                .map_or(STATE_WRITE_EVERY, |notifier| notifier.every().min(STATE_WRITE_EVERY));
            let mut due = std::pin::pin!(shown(&mut changes, show));
            loop {
                let event = tokio::select! {
                    name = signalled(&mut signals.interrupt, &mut signals.terminate) => {
                        Event::Exit(name)
                    }
                    _ = signals.hangup.recv() => Event::Reload,
                    _ = look.tick() => Event::Look,
                    () = &mut due => Event::Show,
                };
                match event {
                    Event::Exit(name) => return name,
                    Event::Show => break,
                    Event::Look if stamp(&self.hosting.manifest) == self.stamp => {}
                    Event::Look | Event::Reload => {
                        if let Some(name) = self.reload(host, signals).await {
                            return name;
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Reads the manifest again. One that is refused changes nothing. Gives the name of a signal
    /// that asked for the end meanwhile.
    async fn reload(&mut self, host: &mut Host, signals: &mut Signals) -> Option<&'static str> {
        self.stamp = stamp(&self.hosting.manifest);
        let spaces = match self.read() {
            Ok(spaces) => spaces,
            Err(failure) => {
                error!(
                    "✗ delivery host: {}; the {} lanes are unchanged",
                    told(&failure),
                    self.spaces.len()
                );
                return None;
            }
        };
        let (new, gone) = (others(&spaces, &self.spaces), others(&self.spaces, &spaces));
        info!("the manifest changed: {new} spaces added, {gone} removed");
        let set = host.set_spaces(spaces.iter().cloned());
        self.spaces.clone_from(&spaces);
        tokio::select! {
            () = set => None,
            // The lanes that are being closed are closed with all others.
            name = signals.exit() => Some(name),
        }
    }

    fn read(&self) -> anyhow::Result<Vec<Space>> {
        let manifest = HostManifest::load(&self.hosting.manifest)?;
        let (server, tls) = address(self.hosting, self.ctx, &self.root, manifest.spaces())?;
        if (&server, &tls) != (&self.server, &self.tls) {
            let message = format!(
                "the manifest's spaces are on another broker now, {server}: start another host for \
                 it, or this one anew"
            );
            return Err(Failure::new(Exit::Conflict, message).into());
        }
        Ok(manifest.spaces().to_vec())
    }

    /// Writes the state for whoever asks; serving does not depend on it.
    fn save(&self, lanes: &[LaneStatus]) {
        let lane = |lane: &LaneStatus| HostLane {
            space: lane.space.clone(),
            state: lane.state.to_string(),
            reason: lane.reason.clone(),
            since: lane.since,
        };
        let file = HostFile {
            pid: std::process::id(),
            server: self.server.clone(),
            manifest: self.hosting.manifest.clone(),
            written: unix_millis(),
            lanes: lanes.iter().map(lane).collect(),
        };
        if let Err(error) = file.save(&self.root) {
            warn!(%error, "the state of the lanes could not be written");
        }
    }
}

/// Waits until something is to be shown: a change, after a moment in which more may come, or the
/// time after which a reader would take this process for hung.
async fn shown(changes: &mut watch::Receiver<u64>, every: Duration) {
    let changed = async {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(STATE_WRITE_APART).await;
        changes.mark_unchanged();
    };
    let _ = tokio::time::timeout(every, changed).await;
}

/// How many serve, and what the others do.
fn summary(lanes: &[LaneStatus]) -> String {
    let count = |state| lanes.iter().filter(|lane| lane.state == state).count();
    let mut text = format!("serving {} of {} spaces", count(LaneState::Serving), lanes.len());
    for state in [
        LaneState::Opening,
        LaneState::Claimed,
        LaneState::Standby,
        LaneState::Refused,
        LaneState::Closed,
        LaneState::Stopping,
    ] {
        let n = count(state);
        if n > 0 {
            text = format!("{text}, {n} {state}");
        }
    }
    text
}

/// How many of `these` are not among `those`.
fn others(these: &[Space], those: &[Space]) -> usize {
    these.iter().filter(|space| !those.contains(space)).count()
}

/// The one broker of all spaces, each resolved as that of a daemon of its own (LIF-13), and the
/// transport (LIF-1).
fn address(
    hosting: &Hosting,
    ctx: &Context,
    root: &Root,
    spaces: &[Space],
) -> anyhow::Result<(String, TlsMode)> {
    let mesh = MeshFile::load(root)?;
    let mut found: Option<(String, TlsMode)> = None;
    for space in spaces {
        let recorded = ctx.recorded(space)?;
        let named = hosting.mesh.server.as_deref();
        let of_space = broker(space, named, recorded.as_ref(), mesh.as_ref())?;
        match &found {
            Some(found) if *found != of_space => {
                let message = format!(
                    "the mesh registry records another broker for space {space}, {}, than {}: one \
                     host serves the spaces of one broker",
                    of_space.0, found.0
                );
                return Err(Failure::new(Exit::Conflict, message).into());
            }
            _ => found = Some(of_space),
        }
    }
    let (server, inherited) = found.context("a manifest names a space")?;
    let named = server.starts_with("tls://").then_some(None);
    let tls = match (inherited, hosting.tls.clone().or(named)) {
        (TlsMode::Required { ca: inherited }, Some(ca)) => {
            TlsMode::Required { ca: ca.or(inherited) }
        }
        (TlsMode::Plain, Some(ca)) => TlsMode::Required { ca },
        (inherited, None) => inherited,
    };
    Ok((server, tls))
}

/// One host a root: two would stand by for each other's lanes and overwrite each other's state.
async fn hold(root: &Root) -> anyhow::Result<Reservation> {
    let deadline = Instant::now() + LOCK_WITHIN;
    loop {
        match Reservation::try_acquire(&root.host_lock()) {
            Ok(held) => return Ok(held),
            Err(LockError::Held { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

/// What this process listens to. It listens before anything is claimed, so that every lease that is
/// won is released.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn exit(&mut self) -> &'static str {
        signalled(&mut self.interrupt, &mut self.terminate).await
    }
}
