//! A lane: one space's daemon, from the claim of its lease to its release.
//!
//! Order is the safety here: credentials are checked before a dial, the lease is held before any
//! consumer or rail is bound, the rails are bound before `ready` is said, and everything that was
//! taken in is finished before the lease goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cotal_nats::js::{ConsumerAction, ConsumerInfo};
use cotal_nats::{
    ConnectOptions, Connection, Engine, NatsError, PullError, TlsMode, Writer, WriterOptions,
};
use cotal_rules::waiting::Waiting;
use cotal_wire::names::{DELIVERY, DELIVERY_ADMIN, FANOUT, READER};
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Lifecycle, Space};
use cotal_workspace::SecretStore;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::Admin;
use crate::caps;
use crate::clock::now_ms;
use crate::counters::Counters;
use crate::credentials::{self, CredentialError};
use crate::dead::{DeadBook, Retrier};
use crate::fanout::Fanout;
use crate::gate::{self, Gate};
use crate::intake::Intake;
use crate::lease::{self, Keeper, Lease, LeaseError};
use crate::members::Members;
use crate::rail::Rail;
use crate::reader::{Reader, ReaderProgress};
use crate::recall::{self, Batches, Recall};
use crate::registry::{self, Inventories, Registry, Turns};
use crate::retired::Remover;
use crate::returned::Returned;
use crate::scan::Scanner;
use crate::view::{Feed, View, ViewError};

/// How long what was taken in may take to finish at a stop.
const FINISH_WITHIN: Duration = Duration::from_secs(5);
/// Posts pulled ahead of routing; small, because each may cost a copy per member.
const PULL_POSTS: usize = 128;
/// Entries pulled ahead of judging.
const PULL_ENTRIES: usize = 2_000;

/// How to run a lane.
#[derive(Clone)]
pub struct LaneOptions {
    /// The space.
    pub space: Space,
    /// The broker, such as `nats://127.0.0.1:4222`.
    pub server: String,
    /// The transport demanded.
    pub tls: TlsMode,
    /// Where the lane's credentials are kept.
    pub store: Arc<dyn SecretStore>,
    /// How long the broker may be away before the lane ends (LIF-3).
    pub broker_gone: Duration,
}

impl LaneOptions {
    /// Plaintext, and the default window of 15 s.
    pub fn new(space: Space, server: impl Into<String>, store: Arc<dyn SecretStore>) -> Self {
        Self {
            space,
            server: server.into(),
            tls: TlsMode::Plain,
            store,
            broker_gone: Duration::from_secs(15),
        }
    }
}

/// How far a lane has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is claimed yet.
    Starting,
    /// The lease is held; this is the space's daemon now.
    Claimed,
    /// The rails are bound and the row says `ready`.
    Ready,
    /// The lane has ended.
    Ended,
}

/// Why a lane ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// It has nothing to present.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// It does not hold the lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The broker could not be reached, or refused something that the lane needs.
    #[error("{what}: {source}")]
    Broker {
        /// What was being done.
        what: &'static str,
        /// What the broker said.
        source: NatsError,
    },
    /// Its picture of the space cannot be kept.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A consumer cannot be read.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The broker is away for longer than the window.
    #[error("broker connection unavailable (broker unreachable), exiting (coupled to the broker)")]
    BrokerGone,
    /// A part of the lane panicked; that is a defect.
    #[error("a part of the lane failed: {0}")]
    Defect(String),
}

fn broker(what: &'static str) -> impl Fn(NatsError) -> LaneError {
    move |source| LaneError::Broker { what, source }
}

/// A running lane. Dropping it aborts it without a release; call [`Lane::stop`] and await
/// [`Lane::ended`] instead.
#[derive(Debug)]
pub struct Lane {
    stop: CancellationToken,
    stage: watch::Receiver<Stage>,
    task: JoinHandle<Result<(), LaneError>>,
}

impl Lane {
    /// Starts a lane in the background.
    #[must_use]
    pub fn start(options: LaneOptions) -> Self {
        let stop = CancellationToken::new();
        let (sender, stage) = watch::channel(Stage::Starting);
        let task = tokio::spawn(run(options, stop.clone(), sender));
        Self { stop, stage, task }
    }

    /// How far it has come, and when that changes.
    #[must_use]
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.clone()
    }

    /// Tells it to finish what it took in, release the lease and end.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Why it ended, unless it was stopped.
    pub async fn ended(&mut self) -> Result<(), LaneError> {
        (&mut self.task).await.unwrap_or_else(|e| Err(LaneError::Defect(e.to_string())))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    options: LaneOptions,
    stop: CancellationToken,
    stage: watch::Sender<Stage>,
) -> Result<(), LaneError> {
    let outcome = claim_and_serve(&options, &stop, &stage).await;
    stage.send_replace(Stage::Ended);
    outcome
}

async fn claim_and_serve(
    options: &LaneOptions,
    stop: &CancellationToken,
    stage: &watch::Sender<Stage>,
) -> Result<(), LaneError> {
    let identity = credentials::load(&*options.store, &options.space)?;
    let name = format!("cotal-delivery {}", options.space);
    let connect = ConnectOptions::new(options.server.as_str(), name, identity.source)
        .tls(options.tls.clone());
    let connection = Connection::connect(connect).await.map_err(broker("cannot connect"))?;
    let incarnation = connection.conn_id().to_owned()
        + "-"
        + &std::process::id().to_string()
        + "-"
        + &now_ms().to_string();
    let (gate_keeper, gate) = gate::gate();
    let (lease, keeper) = lease::lease(
        &connection,
        &options.space,
        identity.principal,
        incarnation.clone(),
        gate_keeper,
    );
    let scanner = Scanner {
        space: options.space.clone(),
        account: identity.account,
        server: options.server.clone(),
        tls: options.tls.clone(),
        store: Arc::clone(&options.store),
    };
    let parts = Parts::new(options, &connection, &incarnation, gate, scanner);
    let outcome = under_lease(&parts, lease, keeper, stop, stage).await;
    connection.close(FINISH_WITHIN).await;
    outcome
}

/// Runs the keeper beside the lane, and releases the lease last of all.
async fn under_lease(
    parts: &Parts,
    mut lease: Lease,
    keeper: Keeper,
    stop: &CancellationToken,
    stage: &watch::Sender<Stage>,
) -> Result<(), LaneError> {
    let mut keeper = AbortOnDrop(tokio::spawn(keeper.run()));
    let served = tokio::select! {
        lost = &mut keeper.0 => return Ok(joined(lost)?),
        served = async {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = lease.granted() => {}
            }
            stage.send_replace(Stage::Claimed);
            parts.serve(&mut lease, stop, stage).await
        } => served,
    };
    lease.release().await;
    let released = joined((&mut keeper.0).await);
    served.and(released.map_err(LaneError::from))
}

/// A task that does not outlive its owner.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn joined(ended: Result<Result<(), LeaseError>, JoinError>) -> Result<(), LeaseError> {
    // A panic of the keeper is a defect of this process; its row expires by itself.
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// What the components of a lane share.
struct Parts {
    space: Space,
    broker_gone: Duration,
    gate: Gate,
    scanner: Scanner,
    connection: Connection,
    incarnation: String,
    view: Arc<View>,
    counters: Arc<Counters>,
    progress: Arc<watch::Sender<ReaderProgress>>,
    batches: Arc<watch::Sender<Batches>>,
    returned: Returned,
    recall: Mutex<Option<mpsc::Receiver<Lifecycle>>>,
}

/// The tasks of a lane: each ends with the lane, or ends it.
type Tasks = JoinSet<Result<(), LaneError>>;

impl Parts {
    fn new(
        options: &LaneOptions,
        connection: &Connection,
        incarnation: &str,
        gate: Gate,
        scanner: Scanner,
    ) -> Self {
        let (changes, recall) = recall::changes();
        Self {
            space: options.space.clone(),
            broker_gone: options.broker_gone,
            gate,
            scanner,
            connection: connection.clone(),
            incarnation: incarnation.to_owned(),
            view: View::new(connection, &options.space, incarnation, changes),
            batches: Arc::default(),
            returned: Returned::default(),
            recall: Mutex::new(Some(recall)),
            counters: Arc::default(),
            progress: Arc::new(watch::Sender::new(ReaderProgress::default())),
        }
    }

    async fn serve(
        &self,
        lease: &mut Lease,
        stop: &CancellationToken,
        stage: &watch::Sender<Stage>,
    ) -> Result<(), LaneError> {
        let finish = CancellationToken::new();
        let mut tasks = Tasks::new();
        let mut followers = Tasks::new();
        for feed in Feed::ALL {
            let following = Arc::clone(&self.view).follow(feed);
            followers.spawn(async move { Ok(following.await?) });
        }
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = first_end(&mut followers) => ended,
            gone = self.broker_gone() => gone,
            served = async {
                self.view.scanned().await;
                self.start_all(&mut tasks, &finish).await?;
                tokio::select! {
                    () = self.stay_bound(lease, stage) => Ok(()),
                    ended = first_end(&mut tasks) => ended,
                }
            } => served,
        };
        finish.cancel();
        if tokio::time::timeout(FINISH_WITHIN, drain(&mut tasks)).await.is_err() {
            warn!(space = %self.space, "not everything was finished in time; it comes again");
        }
        outcome
    }

    /// Says that everything is bound, again after each time that serving had to stop.
    async fn stay_bound(&self, lease: &mut Lease, stage: &watch::Sender<Stage>) {
        loop {
            lease.granted().await;
            lease.bound().await;
            stage.send_replace(Stage::Ready);
            info!(space = %self.space, "serving");
            lease.withdrawn().await;
            stage.send_replace(Stage::Claimed);
        }
    }

    /// Binds consumers and rails, and starts what works on them.
    async fn start_all(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) -> Result<(), LaneError> {
        let inbox = self.writer(&self.space.inbox_stream()).await?;
        let dlv = self.writer(&self.space.dlv_stream()).await?;
        let book = DeadBook::new(&self.connection, &self.space);
        let backlog = self.start_reader(tasks, stop, dlv, book.clone()).await?;
        self.start_fanout(tasks, stop, inbox.clone(), backlog).await?;
        let retrier = Retrier {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            gate: self.gate.clone(),
            counters: Arc::clone(&self.counters),
            book,
            parked: BTreeMap::new(),
            remover: self.remover(),
        };
        let token = stop.clone();
        tasks.spawn(async move { Ok(retrier.run(token).await?) });
        self.start_recall(tasks, stop);
        self.start_rails(tasks, stop, inbox).await?;
        Ok(())
    }

    fn start_recall(&self, tasks: &mut Tasks, stop: &CancellationToken) {
        let taken = self.recall.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(changes) = taken else { return };
        let recall = Recall::new(
            &self.space,
            &self.connection,
            &self.view,
            &self.gate,
            self.batches.subscribe(),
            changes,
        );
        let token = stop.clone();
        tasks.spawn(async move {
            recall.run(token).await;
            Ok(())
        });
    }

    /// Starts the reader; returns the last entry that stood before it.
    async fn start_reader(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        writer: Writer,
        dead: DeadBook,
    ) -> Result<u64, LaneError> {
        let stream = self.space.inbox_stream();
        let info = self.ensure(&stream, &self.space.reader_config()).await?;
        if info.num_pending == 0 && info.num_ack_pending == 0 {
            self.progress.send_replace(ReaderProgress::idle());
        }
        let backlog =
            self.connection.last_seq(&stream).await.map_err(broker("cannot read INBOX"))?;
        let intake = self.intake(&stream, READER, PULL_ENTRIES).await?;
        let (caps, meter) = caps::caps(&self.space, &self.connection, &self.counters);
        let reader = Reader {
            space: self.space.clone(),
            view: Arc::clone(&self.view),
            writer,
            intake,
            gate: self.gate.clone(),
            counters: Arc::clone(&self.counters),
            progress: Arc::clone(&self.progress),
            batches: Arc::clone(&self.batches),
            dead,
            caps,
            waiting: Waiting::default(),
            returned: self.returned.clone(),
            remover: self.remover(),
            removals: JoinSet::new(),
            floor: info.ack_floor.stream_seq,
        };
        let token = stop.clone();
        tasks.spawn(async move { Ok(reader.run(token).await?) });
        let token = stop.clone();
        tasks.spawn(async move {
            meter.run(token).await;
            Ok(())
        });
        Ok(backlog)
    }

    async fn start_fanout(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        writer: Writer,
        backlog: u64,
    ) -> Result<(), LaneError> {
        let stream = self.space.chat_stream();
        let info = self.ensure(&stream, &self.space.fanout_config(None)).await?;
        let fanout = Fanout {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            writer,
            intake: self.intake(&stream, FANOUT, PULL_POSTS).await?,
            gate: self.gate.clone(),
            counters: Arc::clone(&self.counters),
            reader: self.progress.subscribe(),
            backlog,
            open: BTreeSet::new(),
            floor: info.ack_floor.stream_seq,
        };
        let token = stop.clone();
        tasks.spawn(async move { Ok(fanout.run(token).await?) });
        Ok(())
    }

    /// Binds every rail, then answers on them.
    async fn start_rails(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        writer: Writer,
    ) -> Result<(), LaneError> {
        let rail = Rail {
            space: self.space.clone(),
            connection: self.connection.clone(),
            gate: self.gate.clone(),
        };
        let cannot = "cannot bind the control rails";
        let agents =
            rail.bind(self.space.ctl_all(DELIVERY), DELIVERY).await.map_err(broker(cannot))?;
        let admins = rail.bind(self.space.ctl_all(DELIVERY_ADMIN), DELIVERY_ADMIN);
        let admins = admins.await.map_err(broker(cannot))?;
        let probes =
            rail.bind(self.space.live_all(DELIVERY), DELIVERY).await.map_err(broker(cannot))?;
        let (inventories, reader) = registry::inventories(&self.view);
        let registry = Arc::new(self.registry(writer, inventories));
        let members = Members {
            rail: rail.clone(),
            view: Arc::clone(&self.view),
            registry: Arc::clone(&registry),
        };
        let admin = Admin {
            rail: rail.clone(),
            view: Arc::clone(&self.view),
            registry,
            counters: Arc::clone(&self.counters),
            incarnation: self.incarnation.clone(),
            since: now_ms(),
            scanner: self.scanner.clone(),
            returned: self.returned.clone(),
        };
        let failed = "a control rail failed";
        let token = stop.clone();
        tasks.spawn(async move { members.run(agents, token).await.map_err(broker(failed)) });
        let token = stop.clone();
        tasks.spawn(async move { admin.run(admins, token).await.map_err(broker(failed)) });
        let token = stop.clone();
        tasks.spawn(async move { rail.answer_probes(probes, token).await.map_err(broker(failed)) });
        let token = stop.clone();
        tasks.spawn(async move {
            reader.run(token).await;
            Ok(())
        });
        Ok(())
    }

    fn registry(&self, writer: Writer, inventories: Inventories) -> Registry {
        Registry {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            writer,
            counters: Arc::clone(&self.counters),
            reader: self.progress.subscribe(),
            writer_identity: self.incarnation.clone(),
            turns: Turns::default(),
            inventories,
        }
    }

    async fn writer(&self, stream: &str) -> Result<Writer, LaneError> {
        let info =
            self.connection.stream_info(stream).await.map_err(broker("cannot read a stream"))?;
        let engine = Engine::best(&self.connection, info.config.allow_batched);
        let started = Writer::start(&self.connection, WriterOptions::new(engine)).await;
        let (writer, _task) = started.map_err(broker("cannot start a writer"))?;
        Ok(writer)
    }

    fn remover(&self) -> Remover {
        Remover {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
        }
    }

    async fn intake(
        &self,
        stream: &str,
        consumer: &str,
        ahead: usize,
    ) -> Result<Intake, LaneError> {
        Ok(Intake::open(&self.space, &self.connection, stream, consumer, ahead).await?)
    }

    /// Binds a consumer; one that is missing is made, and that is said loudly, because what it had
    /// read is forgotten.
    async fn ensure(
        &self,
        stream: &str,
        config: &ConsumerConfig,
    ) -> Result<ConsumerInfo, LaneError> {
        match self.connection.consumer_info(stream, &config.name).await {
            Err(error) if error.is_absent() => {
                error!(space = %self.space, stream, consumer = config.name, "a consumer is missing; it is created anew");
                let filter = config.filter_subject.as_deref();
                let create = ConsumerAction::Create;
                let made =
                    self.connection.create_consumer(stream, &config.name, filter, config, create);
                made.await.map_err(broker("cannot create a consumer"))
            }
            other => other.map_err(broker("cannot read a consumer")),
        }
    }

    /// Ends when the connection has been down for the whole window.
    async fn broker_gone(&self) -> Result<(), LaneError> {
        let mut state = self.connection.state();
        loop {
            if state.wait_for(|s| !s.is_connected()).await.is_err() {
                return Err(LaneError::BrokerGone);
            }
            let back = state.wait_for(|s| s.is_connected());
            match tokio::time::timeout(self.broker_gone, back).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return Err(LaneError::BrokerGone),
            }
        }
    }
}

/// Waits for the first task that ends by itself, which ends the lane.
async fn first_end(tasks: &mut Tasks) -> Result<(), LaneError> {
    match tasks.join_next().await {
        None => std::future::pending().await,
        Some(Ok(Ok(()))) => Err(LaneError::Defect("a component ended without a reason".to_owned())),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(error)) => Err(LaneError::Defect(error.to_string())),
    }
}

async fn drain(tasks: &mut Tasks) {
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "a component failed while it finished"),
            Err(error) => warn!(%error, "a component failed while it finished"),
        }
    }
}
