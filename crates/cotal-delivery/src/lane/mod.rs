//! A lane: one space's daemon, from the claim of its lease to its release.
//!
//! The order makes it safe: credentials are checked before the broker is dialled; the lease is held
//! before any consumer or rail is bound; the rails are bound before the row says `ready`; and
//! everything that was pulled or accepted is finished before the lease is released.

pub(crate) mod context;
pub(crate) mod error;
pub(crate) mod link;
pub(crate) mod options;
mod shell;
pub(crate) mod stage;
mod start;
mod tasks;
pub(crate) mod wait_for_broker;

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{ConnectOptions, Connection, Fence};
use cotal_wire::accounts::Topology;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::now_ms;
use crate::credentials;
use crate::lease::gate;
use crate::lease::keeper::{self, Claim};
use crate::loop_progress::Progress;
use crate::sidecar::Health;
use crate::state::acl_changes;
use crate::state::view::View;
use context::LaneContext;
use error::{LaneError, broker};
use link::LinkLevels;
use options::LaneOptions;
use shell::{End, Parts};
use stage::Stage;
use start::Start;
use tasks::Tasks;

/// How long the connection may take to send queued messages when it is closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// Bytes that a connection beside delivery reads at once: what comes there is small.
const BESIDE_READ_BUFFER: u16 = 4_096;

/// A running lane. Dropping it aborts it without a release, so its lease row stays until it
/// expires; call [`Lane::close`] instead.
#[derive(Debug)]
pub struct Lane {
    stop: CancellationToken,
    stage: watch::Receiver<Stage>,
    progress: Progress,
    running: Running,
}

/// The state of a lane's task.
#[derive(Debug)]
enum Running {
    Task(JoinHandle<Result<(), LaneError>>),
    /// There was no runtime to run it on.
    Never,
    /// It ended, and the first caller was given the error.
    Told(Option<String>),
}

impl Lane {
    /// Starts a lane in the background, on the current Tokio runtime. Without a runtime the lane
    /// ends at once, and [`ended`](Self::ended) says so.
    #[must_use]
    pub fn start(options: LaneOptions) -> Self {
        let stop = CancellationToken::new();
        let (sender, stage) = watch::channel(Stage::Starting);
        let progress = Progress::default();
        let running = match Handle::try_current() {
            Ok(runtime) => {
                let lane = run(options, progress.clone(), stop.clone(), sender);
                Running::Task(runtime.spawn(lane))
            }
            Err(_) => {
                sender.send_replace(Stage::Ended { released: true });
                Running::Never
            }
        };
        Self { stop, stage, progress, running }
    }

    /// How far the lane has come; the receiver also tells when that changes.
    #[must_use]
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.clone()
    }

    /// Proves on request that every loop of the lane makes progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Waits until the lane serves; false if it ended instead, and [`Lane::ended`] tells why.
    ///
    /// Dropping the future changes nothing.
    pub async fn readiness(&self) -> bool {
        let mut stage = self.stage.clone();
        let settled = stage.wait_for(|stage| matches!(stage, Stage::Ready | Stage::Ended { .. }));
        settled.await.is_ok_and(|stage| *stage == Stage::Ready)
    }

    /// Stops pulling and accepting requests, settles those in progress, releases the lease, and
    /// waits until all of that is done: 5 s for the work, and 5 s for the release and for closing
    /// the connection.
    ///
    /// If the future is dropped, the lane continues to drain.
    pub async fn drain(&self) {
        self.stop();
        let mut stage = self.stage.clone();
        // A lane without a sender has ended.
        let _ = stage.wait_for(|stage| matches!(stage, Stage::Ended { .. })).await;
    }

    /// Drains the lane and returns how it ended.
    ///
    /// If the future is dropped, the lane is aborted without a release.
    ///
    /// # Errors
    /// Why it ended, unless it was this stop.
    pub async fn close(mut self) -> Result<(), LaneError> {
        self.stop();
        self.ended().await
    }

    /// Tells the lane to finish what it has pulled or accepted, release the lease and end.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits for the end of the lane. Cancel-safe.
    ///
    /// # Errors
    /// Why it ended, unless it was stopped. Later calls return the same reason as text.
    pub async fn ended(&mut self) -> Result<(), LaneError> {
        let ended = match &mut self.running {
            Running::Task(task) => {
                task.await.unwrap_or_else(|e| Err(LaneError::Defect(e.to_string())))
            }
            Running::Never => Err(LaneError::NoRuntime),
            Running::Told(None) => return Ok(()),
            Running::Told(Some(why)) => return Err(LaneError::EndedBefore(why.clone())),
        };
        self.running = Running::Told(ended.as_ref().err().map(ToString::to_string));
        ended
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Running::Task(task) = &self.running {
            task.abort();
        }
    }
}

async fn run(
    options: LaneOptions,
    progress: Progress,
    stop: CancellationToken,
    stage: watch::Sender<Stage>,
) -> Result<(), LaneError> {
    // A failure before the claim leaves no row.
    let ended = claim_and_serve(&options, progress, &stop, &stage).await;
    let End { outcome, released } = ended.unwrap_or_else(|error| End::unclaimed(Err(error)));
    stage.send_replace(Stage::Ended { released });
    outcome
}

impl End {
    /// Nothing was claimed, so nothing is left.
    fn unclaimed(outcome: Result<(), LaneError>) -> Self {
        Self { outcome, released: true }
    }
}

/// How the lane's own connection is made; those beside it begin with the same.
fn connect_options(options: &LaneOptions, identity: &credentials::Identity) -> ConnectOptions {
    let name = format!("cotal-delivery {}", options.space);
    ConnectOptions {
        heartbeat_at_least: options.upkeep.heartbeat,
        read_buffer: options.read_buffer,
        ..ConnectOptions::new(options.server.as_str(), name, identity.source.clone())
            .tls(options.tls.clone())
    }
}

async fn claim_and_serve(
    options: &LaneOptions,
    progress: Progress,
    stop: &CancellationToken,
    stage: &watch::Sender<Stage>,
) -> Result<End, LaneError> {
    let identity = tokio::select! {
        loaded = credentials::load_blocking(&options.store, &options.space) => loaded?,
        () = stop.cancelled() => return Ok(End::unclaimed(Ok(()))),
    };
    let connect = connect_options(options, &identity);
    let dialled = tokio::select! {
        dialled = Connection::connect(connect.clone()) => dialled,
        // Nothing is claimed yet, so there is nothing to wait for and nothing to release.
        () = stop.cancelled() => return Ok(End::unclaimed(Ok(()))),
    };
    let connection = dialled.map_err(broker("cannot connect"))?;
    // From here on the link is watched, so that a broker which goes away at any step ends the lane
    // after the same window and with the same words.
    let (link, renewals) = LinkLevels::new(&options.space, &connection);
    let incarnation = format!("{}-{}-{}", connection.conn_id(), std::process::id(), now_ms());
    let (gate_keeper, gate) = gate::gate();
    let claim = Claim {
        space: options.space.clone(),
        holder: identity.principal.clone(),
        incarnation: incarnation.clone(),
        ttl: options.lease_ttl,
        health: Health::new("the writes of the lease"),
    };
    let lease_health = claim.health.clone();
    let (lease, keeper) = keeper::lease(&connection, claim, gate_keeper);
    let (changes, changed_acls) = acl_changes::changes();
    let components = Tasks::default();
    // No component is given a handle that writes without the gate; the keeper alone has one.
    let fence = {
        let gate = gate.clone();
        Fence::new(move || gate.is_open())
    };
    let fenced = connection.fenced(fence.clone());
    let context = LaneContext {
        space: options.space.clone(),
        topology: Topology::of(&identity.creds.claims),
        connection: fenced.clone(),
        connect: ConnectOptions {
            fence: Some(fence),
            ping_interval: options.upkeep.ping_every,
            read_buffer: BESIDE_READ_BUFFER,
            ..connect
        },
        principal: identity.principal.clone(),
        view: View::new(&fenced, &options.space, &incarnation, gate.clone(), changes),
        incarnation,
        gate,
        counters: Arc::default(),
        stop: CancellationToken::new(),
        patience: Duration::from_millis(options.windows.window_ms.unsigned_abs()),
        progress,
        tasks: components.spawner(),
    };
    let (started, has_started) = watch::channel(false);
    let lease_state = lease.state();
    let start = Start {
        options: options.clone(),
        identity,
        changed_acls,
        renewals,
        has_started,
        lease_state,
        lease_health,
    };
    let keeper = tokio::spawn(keeper);
    let parts = Parts { context, components, start, started, link, lease, keeper, stop, stage };
    let end = shell::run(parts, options.windows).await;
    connection.close(CLOSE_WITHIN).await;
    Ok(end)
}
