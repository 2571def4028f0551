//! The components of a lane: how they are built, bound and finished.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cotal_nats::js::{ConsumerAction, ConsumerInfo};
use cotal_nats::{Bucket as Kv, ConnectOptions, Connection, Engine, Writer, WriterOptions};
use cotal_rules::waiting::Waiting;
use cotal_rules::watchdog::Windows;
use cotal_wire::accounts::Topology;
use cotal_wire::names::{ANYCAST_TAKE, Bucket, DELIVERY, DELIVERY_ADMIN, FANOUT, READER};
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Lifecycle, Space};
use tokio::sync::{RwLock, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::census::Scanner;
use crate::clock::now_ms;
use crate::consumer::ack_wait::{ACK_WAIT_NS, ShortAckWait};
use crate::consumer::pull_source::PullSource;
use crate::control::admin_api::AdminApi;
use crate::control::agent_api::{AgentApi, UnfinishedJoin};
use crate::control::rail::Rail;
use crate::counters::Counters;
use crate::credentials::Identity;
use crate::credentials::adoption::Renewal;
use crate::lane::broker_watch::{BrokerWatch, Renewed};
use crate::lease::gate::Gate;
use crate::lease::keeper::Lease;
use crate::loop_progress::{LeaseWitness, Progress};
use crate::pipeline::fanout::Fanout;
use crate::pipeline::join_barrier::JoinBarrier;
use crate::pipeline::overflow::{self, OverflowReports};
use crate::pipeline::parked::{DeadStore, Retrier, Rows};
use crate::pipeline::progress::{Batches, ReaderProgress};
use crate::pipeline::reader::Reader;
use crate::pipeline::reader::discarded::DiscardScan;
use crate::pipeline::reader::retired::Remover;
use crate::pipeline::reader::waiting::WaitingList;
use crate::pipeline::recall::{Recall, Recaller};
use crate::registry::{self, Inventories, Registry, RowLocks};
use crate::role_requests::{RequestKeeper, Takes};
use crate::state::changes;
use crate::state::view::{Feed, View};

use super::error::{LaneError, broker};
use super::{FINISH_WITHIN, LaneOptions, Stage};

/// Posts pulled ahead of routing; small, because each may cost a copy per member.
const PULL_POSTS: usize = 128;
/// Entries pulled ahead of judging.
const PULL_ENTRIES: usize = 2_000;

/// As whom and under which lease a lane runs.
pub(super) struct Claim {
    pub(super) identity: Identity,
    pub(super) incarnation: String,
    pub(super) gate: Gate,
    pub(super) progress: Progress,
}

/// What the components of a lane share.
pub(super) struct Parts {
    space: Space,
    windows: Windows,
    sweep_every: Duration,
    gate: Gate,
    scanner: Scanner,
    connection: Connection,
    connect: ConnectOptions,
    identity: Identity,
    incarnation: String,
    /// Called on by whoever wants to know whether the lane gets on.
    alive: Progress,
    /// Whether start-up is finished (CRD-3).
    started: watch::Sender<bool>,
    /// Whether the connection is about to move (ADM-8).
    moving: Arc<watch::Sender<bool>>,
    view: Arc<View>,
    counters: Arc<Counters>,
    progress: Arc<watch::Sender<ReaderProgress>>,
    batches: Arc<watch::Sender<Batches>>,
    handing_off: Arc<RwLock<()>>,
    waiting_list: WaitingList,
    joins: JoinBarrier,
    recall: Mutex<Option<mpsc::Receiver<Lifecycle>>>,
}

/// The tasks of a lane: each ends with the lane, or ends it.
type Tasks = JoinSet<Result<(), LaneError>>;

impl Parts {
    pub(super) fn new(
        options: &LaneOptions,
        connection: &Connection,
        connect: ConnectOptions,
        claim: Claim,
    ) -> Self {
        let Claim { identity, incarnation, gate, progress: alive } = claim;
        let (changes, recall) = changes::changes();
        let scanner = Scanner {
            space: options.space.clone(),
            accounts: identity.accounts.clone(),
            server: options.server.clone(),
            tls: options.tls.clone(),
            store: Arc::clone(&options.store),
        };
        Self {
            space: options.space.clone(),
            windows: options.windows,
            sweep_every: options.sweep_every,
            scanner,
            connection: connection.clone(),
            connect,
            identity,
            view: View::new(connection, &options.space, &incarnation, gate.clone(), changes),
            gate,
            incarnation,
            alive,
            batches: Arc::default(),
            handing_off: Arc::default(),
            waiting_list: WaitingList::default(),
            joins: JoinBarrier::default(),
            recall: Mutex::new(Some(recall)),
            counters: Arc::default(),
            progress: Arc::new(watch::Sender::new(ReaderProgress::default())),
            started: watch::Sender::new(false),
            moving: Arc::new(watch::Sender::new(false)),
        }
    }

    pub(super) async fn serve(
        &self,
        lease: &mut Lease,
        stop: &CancellationToken,
        stage: &watch::Sender<Stage>,
    ) -> Result<(), LaneError> {
        let finish = CancellationToken::new();
        let (watchdog, renewed) = BrokerWatch::new(&self.space, &self.connection, self.windows);
        let mut tasks = Tasks::new();
        let mut followers = Tasks::new();
        for feed in Feed::ALL {
            let following = Arc::clone(&self.view).follow(feed);
            followers.spawn(async move { Ok(following.await?) });
        }
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = first_end(&mut followers) => ended,
            gone = watchdog.run() => Err(gone),
            served = async {
                self.view.scanned().await;
                self.start_all(&mut tasks, &finish, renewed).await?;
                tokio::select! {
                    () = self.stay_bound(lease, stage) => Ok(()),
                    ended = first_end(&mut tasks) => ended,
                }
            } => served,
        };
        finish.cancel();
        // Without a broker nothing can be finished.
        let gone = matches!(
            outcome,
            Err(LaneError::BrokerGone | LaneError::BrokerGonePastBackstop | LaneError::NotRenewed)
        );
        let within = if gone { Duration::ZERO } else { FINISH_WITHIN };
        if tokio::time::timeout(within, drain(&mut tasks)).await.is_err() {
            warn!(space = %self.space, "not everything was finished in time; it comes again");
        }
        outcome
    }

    /// Says that everything is bound, again after each time that serving had to stop.
    async fn stay_bound(&self, lease: &mut Lease, stage: &watch::Sender<Stage>) {
        loop {
            lease.granted().await;
            lease.bound().await;
            if !lease.confirmed().await {
                continue;
            }
            self.started.send_replace(true);
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
        renewed: Renewed,
    ) -> Result<(), LaneError> {
        let inbox = self.writer(&self.space.inbox_stream()).await?;
        let dlv = self.writer(&self.space.dlv_stream()).await?;
        let book = DeadStore::new(&self.connection, &self.space);
        let overflow = self.start_caps(tasks, stop).await?;
        let backlog = self.start_reader(tasks, stop, dlv, book.clone(), overflow.clone()).await?;
        // Before fan-out, which would write to their members first.
        let unfinished_joins = UnfinishedJoin::all(&self.view, &self.joins);
        self.start_fanout(tasks, stop, inbox.clone(), backlog).await?;
        let retrier = Retrier {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            gate: self.gate.clone(),
            counters: Arc::clone(&self.counters),
            book,
            rows: Rows::default(),
            remover: self.remover(),
            overflow: overflow.clone(),
            losing: HashSet::new(),
            handing_off: Arc::clone(&self.handing_off),
            beat: self.alive.beat("the retrier"),
        };
        let token = stop.clone();
        tasks.spawn(async move { Ok(retrier.run(token).await?) });
        let recaller = self.recaller(overflow);
        self.start_recall(tasks, stop, recaller.clone());
        self.start_witness(tasks, stop);
        let renewal = self.start_renewal(tasks, stop, renewed);
        self.start_rails(tasks, stop, inbox, (renewal, recaller), unfinished_joins).await?;
        Ok(())
    }

    fn start_renewal(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        renewed: Renewed,
    ) -> Arc<Renewal> {
        let renewal = Arc::new(Renewal {
            space: self.space.clone(),
            connection: self.connection.clone(),
            connect: self.connect.clone(),
            store: Arc::clone(&self.scanner.store),
            principal: self.identity.principal.clone(),
            renewed,
            held: tokio::sync::Mutex::new(self.identity.creds.clone()),
            started: self.started.subscribe(),
            moving: Arc::clone(&self.moving),
            ordered: tokio::sync::Notify::new(),
        });
        let (running, token) = (Arc::clone(&renewal), stop.clone());
        tasks.spawn(async move {
            running.run(token).await;
            Ok(())
        });
        renewal
    }

    fn start_witness(&self, tasks: &mut Tasks, stop: &CancellationToken) {
        let witness = LeaseWitness {
            kv: Kv::new(&self.connection, &self.space.bucket(Bucket::Delivery)),
            incarnation: self.incarnation.clone(),
            beat: self.alive.beat("the lease"),
        };
        let token = stop.clone();
        tasks.spawn(async move {
            witness.run(token).await;
            Ok(())
        });
    }

    fn start_recall(&self, tasks: &mut Tasks, stop: &CancellationToken, recaller: Recaller) {
        let taken = self.recall.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(changes) = taken else { return };
        let recall = Recall { recaller, changes };
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
        dead: DeadStore,
        overflow: OverflowReports,
    ) -> Result<u64, LaneError> {
        let stream = self.space.inbox_stream();
        let info = self.ensure(&stream, &self.space.reader_config()).await?;
        self.shorten_ack_wait(tasks, stop, &stream, &info, Some(Arc::clone(&self.counters)));
        if info.num_pending == 0 && info.num_ack_pending == 0 {
            self.progress.send_replace(ReaderProgress::idle());
        }
        let backlog =
            self.connection.last_seq(&stream).await.map_err(broker("cannot read INBOX"))?;
        let pulls = self.pulls(&stream, READER, PULL_ENTRIES).await?;
        let reader = Reader {
            space: self.space.clone(),
            view: Arc::clone(&self.view),
            writer,
            pulls,
            gate: self.gate.clone(),
            counters: Arc::clone(&self.counters),
            progress: Arc::clone(&self.progress),
            batches: Arc::clone(&self.batches),
            dead,
            overflow,
            waiting: Waiting::default(),
            waiting_list: self.waiting_list.clone(),
            remover: self.remover(),
            removals: JoinSet::new(),
            records: JoinSet::new(),
            discard_scan: DiscardScan::new(&self.space, &self.connection),
            floor: info.ack_floor.stream_seq,
            beat: self.alive.beat("the reader"),
        };
        let token = stop.clone();
        tasks.spawn(async move { Ok(reader.run(token).await?) });
        Ok(backlog)
    }

    /// Starts the meter of what the store's cap takes, before anything is handed over.
    async fn start_caps(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
    ) -> Result<OverflowReports, LaneError> {
        let (overflow, meter) = overflow::overflow(&self.space, &self.connection, &self.counters);
        meter.seed().await.map_err(broker("cannot read DLV"))?;
        let token = stop.clone();
        tasks.spawn(async move {
            meter.run(token).await;
            Ok(())
        });
        Ok(overflow)
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
        self.shorten_ack_wait(tasks, stop, &stream, &info, None);
        let fanout = Fanout {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            writer,
            pulls: self.pulls(&stream, FANOUT, PULL_POSTS).await?,
            gate: self.gate.clone(),
            counters: Arc::clone(&self.counters),
            reader: self.progress.subscribe(),
            backlog,
            open: BTreeSet::new(),
            floor: info.ack_floor.stream_seq,
            beat: self.alive.beat("fan-out"),
            joins: self.joins.clone(),
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
        (renewal, recaller): (Arc<Renewal>, Recaller),
        unfinished_joins: Vec<UnfinishedJoin>,
    ) -> Result<(), LaneError> {
        let rail = Rail {
            space: self.space.clone(),
            topology: Topology::of(&self.identity.creds.claims),
            connection: self.connection.clone(),
            gate: self.gate.clone(),
            moving: self.moving.subscribe(),
        };
        let cannot = "cannot bind the control rails";
        let agents =
            rail.bind(self.space.ctl_all(DELIVERY), DELIVERY).await.map_err(broker(cannot))?;
        let admins = rail.bind(self.space.ctl_all(DELIVERY_ADMIN), DELIVERY_ADMIN);
        let admins = admins.await.map_err(broker(cannot))?;
        let probes =
            rail.bind(self.space.live_all(DELIVERY), DELIVERY).await.map_err(broker(cannot))?;
        let keeper = self.start_keeper(tasks, stop, &rail).await?;
        let (inventories, reader) = registry::inventories(&self.view);
        let registry = Arc::new(self.registry(writer, inventories));
        let members = AgentApi {
            rail: rail.clone(),
            registry: Arc::clone(&registry),
            keeper: Arc::clone(&keeper),
        };
        let admin = AdminApi {
            rail: rail.clone(),
            view: Arc::clone(&self.view),
            registry,
            counters: Arc::clone(&self.counters),
            incarnation: self.incarnation.clone(),
            since: now_ms(),
            scanner: self.scanner.clone(),
            waiting_list: self.waiting_list.clone(),
            renewal,
            keeper,
            recaller,
        };
        let failed = "a control rail failed";
        let token = stop.clone();
        let beat = self.alive.beat("the control rail");
        tasks.spawn(async move {
            members.run(agents, unfinished_joins, beat, token).await.map_err(broker(failed))
        });
        let token = stop.clone();
        let beat = self.alive.beat("the admin rail");
        tasks.spawn(async move { admin.run(admins, beat, token).await.map_err(broker(failed)) });
        let token = stop.clone();
        let beat = self.alive.beat("the probes");
        tasks.spawn(async move {
            rail.answer_probes(probes, beat, token).await.map_err(broker(failed))
        });
        let token = stop.clone();
        tasks.spawn(async move {
            reader.run(token).await;
            Ok(())
        });
        Ok(())
    }

    /// Starts the keeper of role requests and binds the rail of takes.
    async fn start_keeper(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        rail: &Rail,
    ) -> Result<Arc<RequestKeeper>, LaneError> {
        let own = &self.identity.principal;
        let (space, connection) = (&self.space, &self.connection);
        let keeper = Arc::new(RequestKeeper::new(
            space,
            connection,
            own,
            &self.view,
            &self.gate,
            &self.scanner,
        ));
        let takes = rail.bind(self.space.ctl_all(ANYCAST_TAKE), ANYCAST_TAKE).await;
        let takes = takes.map_err(broker("cannot bind the control rails"))?;
        let service = Takes { rail: rail.clone(), keeper: Arc::clone(&keeper) };
        let beat = self.alive.beat("the rail of takes");
        let token = stop.clone();
        tasks.spawn(async move {
            service.run(takes, beat, token).await.map_err(broker("a control rail failed"))
        });
        let (kept, token) = (Arc::clone(&keeper), stop.clone());
        let every = self.sweep_every;
        tasks.spawn(async move { Ok(Box::pin(kept.run(every, token)).await?) });
        Ok(keeper)
    }

    fn registry(&self, writer: Writer, inventories: Inventories) -> Registry {
        Registry {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            gate: self.gate.clone(),
            writer,
            counters: Arc::clone(&self.counters),
            reader: self.progress.subscribe(),
            writer_identity: self.incarnation.clone(),
            turns: RowLocks::default(),
            joins: self.joins.clone(),
            inventories,
        }
    }

    async fn writer(&self, stream: &str) -> Result<Writer, LaneError> {
        let info =
            self.connection.stream_info(stream).await.map_err(broker("cannot read a stream"))?;
        let engine = Engine::best(&self.connection, info.config.allow_batched);
        let (options, gate) = (WriterOptions::new(engine), self.gate.clone());
        let started = Writer::start_while(&self.connection, options, move || gate.is_open()).await;
        let (writer, _task) = started.map_err(broker("cannot start a writer"))?;
        Ok(writer)
    }

    fn recaller(&self, overflow: OverflowReports) -> Recaller {
        Recaller {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            gate: self.gate.clone(),
            batches: self.batches.subscribe(),
            handing_off: Arc::clone(&self.handing_off),
            overflow,
        }
    }

    fn remover(&self) -> Remover {
        Remover {
            space: self.space.clone(),
            connection: self.connection.clone(),
            view: Arc::clone(&self.view),
            gate: self.gate.clone(),
        }
    }

    async fn pulls(
        &self,
        stream: &str,
        consumer: &str,
        ahead: usize,
    ) -> Result<PullSource, LaneError> {
        Ok(PullSource::open(&self.space, &self.connection, stream, consumer, ahead).await?)
    }

    /// Brings back what a crashed daemon had pulled: the lease proves that nobody works on it any more.
    fn shorten_ack_wait(
        &self,
        tasks: &mut Tasks,
        stop: &CancellationToken,
        stream: &str,
        info: &ConsumerInfo,
        waiting: Option<Arc<Counters>>,
    ) {
        let lost = info.num_ack_pending > 0 || info.config.ack_wait != ACK_WAIT_NS;
        let shorten_ack_wait = ShortAckWait {
            space: self.space.clone(),
            connection: self.connection.clone(),
            stream: stream.to_owned(),
            config: info.config.clone(),
            gate: self.gate.clone(),
            waiting,
        };
        let stop = stop.clone();
        tasks.spawn(async move {
            shorten_ack_wait.run(lost, stop).await;
            Ok(())
        });
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
