//! The single-flight lease: performs what the keeper of `cotal-rules` decides (LSE-1 to LSE-9).
//!
//! One bucket operation is in flight at a time. The watch is bound only once the claim is won,
//! because a refused daemon binds nothing, not even a consumer of the lease bucket.

use std::pin::Pin;
use std::time::{Duration, Instant};

use cotal_nats::{
    Bucket as Kv, Bytes, ConnState, Connection, Entry, NatsError, Watch, WatchEvent, WatchOptions,
};
use cotal_rules::lease::{Effect, Exit, Failure, Found, Input, LeaseKeeper};
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Principal, Space};
use tokio::sync::{mpsc, watch};
use tracing::{debug, error, info, warn};

use crate::clock::now_ms;
use crate::lease::gate::GateKeeper;

/// Renewals that fit into the row's lifetime.
const RENEWALS: i64 = 3;
/// Inputs that the lane may have given and the keeper not yet taken.
const INPUTS: usize = 16;

/// Why this process does not, or no longer, serve.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another daemon holds the lease.
    #[error(
        "{space} is served by another daemon: {holder} holds its lease; stop that one, or wait \
         until its lease expires (30 s after a crash)"
    )]
    Held {
        /// The space.
        space: Space,
        /// Who holds it.
        holder: Principal,
    },
    /// The lease row is not a lease.
    #[error("the lease row of {0} is garbled: somebody tampered with it; it expires within 30 s")]
    Tampered(Space),
    /// The claim was not possible.
    #[error("could not claim the lease of {space}: {source}")]
    Refused {
        /// The space.
        space: Space,
        /// What the broker said.
        source: Failure,
    },
    /// Another daemon took the lease while this one served.
    #[error("another daemon has taken the shard: {holder} holds the lease of {space}")]
    Taken {
        /// The space.
        space: Space,
        /// Who holds it.
        holder: Principal,
    },
    /// The row was lost and could not be written again.
    #[error("could not re-acquire the lease of {space}: {source}")]
    NotReacquired {
        /// The space.
        space: Space,
        /// What the broker said.
        source: Failure,
    },
}

impl LeaseError {
    /// Whether a row that this process wrote may still stand. Whoever read another's row, or what is
    /// no lease at all, knows that its own is gone.
    pub(crate) fn may_leave_a_row(&self) -> bool {
        match self {
            Self::Held { .. } | Self::Tampered(_) | Self::Taken { .. } => false,
            Self::Refused { .. } | Self::NotReacquired { .. } => true,
        }
    }
}

/// What became of the row at a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// No row of this run is left.
    Proven,
    /// One may stand, and expires by itself.
    Unproven,
}

/// What the keeper tells the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// The claim is not decided.
    Claiming,
    /// The lease is held: bind, and say so.
    Serve,
    /// Serving has stopped until the row is proven.
    Quiet,
}

/// The lane's side of the keeper.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    inputs: mpsc::Sender<Input>,
    standing: watch::Receiver<LeaseState>,
    ready: watch::Receiver<bool>,
}

impl Lease {
    /// Waits until the lane may bind and serve.
    pub(crate) async fn granted(&mut self) {
        if self.standing.wait_for(|standing| *standing == LeaseState::Serve).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until serving stops.
    pub(crate) async fn withdrawn(&mut self) {
        if self.standing.wait_for(|standing| *standing == LeaseState::Quiet).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the broker confirmed a row that says `ready`; false when serving stopped instead.
    pub(crate) async fn confirmed(&mut self) -> bool {
        let Self { ready, standing, .. } = self;
        let told = tokio::select! {
            biased;
            told = ready.wait_for(|ready| *ready) => told.map(|_| true).ok(),
            told = standing.wait_for(|standing| *standing == LeaseState::Quiet) => {
                told.map(|_| false).ok()
            }
        };
        match told {
            Some(told) => told,
            None => std::future::pending().await,
        }
    }

    /// Says that the rails are bound and both loops run; only then the row says `ready` (LSE-8).
    pub(crate) async fn bound(&self) {
        self.tell(Input::Bound).await;
    }

    /// Asks for the release.
    pub(crate) async fn release(&self) {
        self.tell(Input::Stop).await;
    }

    async fn tell(&self, input: Input) {
        // A keeper that has ended has said why; the lane learns it from there.
        let _ = self.inputs.send(input).await;
    }
}

/// The keeper's side.
pub(crate) struct Keeper {
    space: Space,
    kv: Kv,
    rules: LeaseKeeper,
    gate: GateKeeper,
    started: Instant,
    inputs: mpsc::Receiver<Input>,
    standing: watch::Sender<LeaseState>,
    ready: watch::Sender<bool>,
    state: watch::Receiver<ConnState>,
    /// What the rules were told of the connection last; a redial may be over before they hear of it.
    connected: bool,
    watch: Option<Watch>,
}

/// A bucket operation in flight; it is kept until it is answered, never begun twice.
type Operation = Pin<Box<dyn Future<Output = Input> + Send>>;

/// What the keeper waits for.
enum Event {
    Input(Input),
    Answered(Input),
    Watched(Result<WatchEvent, NatsError>),
    Connection(bool),
    Due,
}

/// How long the broker keeps the row, at most `most`. The gate is open for no longer, so a bucket with
/// a shorter life must not be overrated.
pub(crate) async fn lifetime(connection: &Connection, space: &Space, most: Duration) -> Duration {
    match connection.stream_info(&space.kv_stream(Bucket::Delivery)).await {
        Ok(info) if info.config.max_age > 0 => {
            Duration::from_nanos(info.config.max_age.unsigned_abs()).min(most)
        }
        Ok(_) => most,
        // The claim that follows says what is wrong.
        Err(error) => {
            debug!(%space, %error, "the lease bucket's age limit was not read");
            most
        }
    }
}

/// A keeper that has claimed nothing yet; its row lives for `ttl`.
pub(crate) fn lease(
    connection: &Connection,
    space: &Space,
    holder: Principal,
    incarnation: String,
    ttl: Duration,
    gate: GateKeeper,
) -> (Lease, Keeper) {
    let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    let (sender, inputs) = mpsc::channel(INPUTS);
    let (standing, seen) = watch::channel(LeaseState::Claiming);
    let (ready, is_ready) = watch::channel(false);
    let keeper = Keeper {
        space: space.clone(),
        kv: Kv::new(connection, &space.bucket(Bucket::Delivery)),
        rules: LeaseKeeper::new(holder, incarnation, now_ms(), ttl_ms, ttl_ms / RENEWALS),
        gate,
        started: Instant::now(),
        inputs,
        standing,
        ready,
        state: connection.state(),
        connected: true,
        watch: None,
    };
    (Lease { inputs: sender, standing: seen, ready: is_ready }, keeper)
}

impl Keeper {
    /// Claims, keeps and releases the lease. Ends when it is released, or lost for good.
    pub(crate) async fn run(mut self) -> Result<Release, LeaseError> {
        let mut input = Input::Start;
        let mut asked = None;
        loop {
            let effects = self.rules.on(input, self.now());
            for effect in effects {
                match effect {
                    Effect::Serve => self.serve().await,
                    Effect::StopServing => self.stop_serving(),
                    Effect::Exit(exit) => return self.end(exit),
                    operation => asked = Some(Box::pin(perform(self.kv.clone(), operation)) as _),
                }
            }
            self.show();
            input = self.next(&mut asked).await;
        }
    }

    fn now(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Opens the gate for as long as the row provably stands.
    fn show(&self) {
        let until = self
            .rules
            .serving_until()
            .map(|until| self.started + Duration::from_millis(until.max(0).unsigned_abs()));
        self.gate.set(until);
        let is_ready = self.rules.is_ready();
        self.ready.send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
    }

    async fn serve(&mut self) {
        if self.watch.is_none() {
            let options = WatchOptions { filter: LEASE_KEY.to_owned(), ..WatchOptions::default() };
            match self.kv.watch(options).await {
                Ok(watch) => self.watch = Some(watch),
                // The keeper renews and reads without it; it only learns of a loss later.
                Err(error) => warn!(space = %self.space, %error, "the lease is not watched"),
            }
        }
        info!(space = %self.space, "the lease is held");
        self.standing.send_replace(LeaseState::Serve);
    }

    fn stop_serving(&self) {
        self.gate.set(None);
        let served = self.standing.send_replace(LeaseState::Quiet) == LeaseState::Serve;
        if served && !self.rules.is_stopping() {
            warn!(space = %self.space, "serving stops until the lease is proven");
        }
    }

    fn end(&self, exit: Exit) -> Result<Release, LeaseError> {
        self.gate.set(None);
        let space = self.space.clone();
        match exit {
            Exit::Stopped { released: true } => {
                info!(%space, "the lease is released");
                Ok(Release::Proven)
            }
            Exit::Stopped { released: false } => {
                warn!(%space, "the lease was not released; it expires within 30 s");
                Ok(Release::Unproven)
            }
            Exit::Held { holder, .. } => Err(LeaseError::Held { space, holder }),
            Exit::Tampered => Err(LeaseError::Tampered(space)),
            Exit::Claim(failure) => Err(LeaseError::Refused { space, source: failure }),
            Exit::Taken { holder } => Err(LeaseError::Taken { space, holder }),
            Exit::Lost(failure) => Err(LeaseError::NotReacquired { space, source: failure }),
        }
    }

    /// The next input for the rules; performs the operation that was asked meanwhile.
    async fn next(&mut self, asked: &mut Option<Operation>) -> Input {
        loop {
            match self.event(asked).await {
                Event::Input(input) => return input,
                Event::Answered(input) => {
                    *asked = None;
                    return input;
                }
                Event::Connection(connected) => {
                    self.connected = connected;
                    return if connected { Input::Connected } else { Input::Disconnected };
                }
                Event::Due => return Input::Tick,
                Event::Watched(event) => {
                    if let Some(input) = self.watched(event) {
                        return input;
                    }
                }
            }
        }
    }

    async fn event(&mut self, asked: &mut Option<Operation>) -> Event {
        let due = self
            .rules
            .deadline()
            .map(|at| Duration::from_millis(at.saturating_sub(self.now()).max(0).unsigned_abs()));
        let told = self.connected;
        tokio::select! {
            biased;
            Some(input) = self.inputs.recv() => Event::Input(input),
            input = answer_of(asked) => Event::Answered(input),
            Ok(state) = self.state.wait_for(|s| s.is_connected() != told) => {
                Event::Connection(state.is_connected())
            }
            event = next_of(&mut self.watch) => Event::Watched(event),
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => Event::Due,
        }
    }

    fn watched(&mut self, event: Result<WatchEvent, NatsError>) -> Option<Input> {
        match event {
            Ok(WatchEvent::Put { key, value, revision }) if key.as_str() == LEASE_KEY => {
                Some(Input::Watch(found(&value, revision, &self.space)))
            }
            Ok(WatchEvent::Delete { key, revision, .. }) if key.as_str() == LEASE_KEY => {
                Some(Input::Watch(Found::Absent { revision }))
            }
            Ok(WatchEvent::Reset { .. }) => Some(Input::Doubt),
            Ok(_) => None,
            Err(error) => {
                warn!(space = %self.space, %error, "the lease is not watched any more");
                self.watch = None;
                Some(Input::Doubt)
            }
        }
    }
}

async fn next_of(watch: &mut Option<Watch>) -> Result<WatchEvent, NatsError> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn answer_of(asked: &mut Option<Operation>) -> Input {
    match asked {
        Some(operation) => operation.await,
        None => std::future::pending().await,
    }
}

/// Performs one bucket operation and gives its answer.
async fn perform(kv: Kv, operation: Effect) -> Input {
    let written = match operation {
        Effect::Create(row) => kv.create(LEASE_KEY, encoded(&row)).await,
        Effect::Update { row, revision } => kv.update(LEASE_KEY, encoded(&row), revision).await,
        Effect::Delete { revision } => kv.delete(LEASE_KEY, Some(revision)).await,
        Effect::Read => return Input::Read(answer(read(&kv).await)),
        Effect::Serve | Effect::StopServing | Effect::Exit(_) => return Input::Tick,
    };
    Input::Written(answer(written))
}

async fn read(kv: &Kv) -> Result<Found, NatsError> {
    let entry = kv.get(LEASE_KEY).await?;
    Ok(match entry.as_ref().map(|entry| (entry, Entry::live(entry))) {
        None => Found::Absent { revision: 0 },
        Some((entry, None)) => Found::Absent { revision: entry.revision },
        Some((entry, Some(value))) => match LeaseRow::parse(value) {
            Ok(row) => Found::Row { row, revision: entry.revision },
            Err(_) => Found::Garbled { revision: entry.revision },
        },
    })
}

fn found(value: &[u8], revision: u64, space: &Space) -> Found {
    match LeaseRow::parse(value) {
        Ok(row) => Found::Row { row, revision },
        Err(why) => {
            error!(%space, revision, %why, "the lease row is garbled: somebody tampered with it");
            Found::Garbled { revision }
        }
    }
}

fn encoded(row: &LeaseRow) -> Bytes {
    serde_json::to_vec(row).unwrap_or_default().into()
}

fn answer<T>(outcome: Result<T, NatsError>) -> Result<T, Failure> {
    outcome.map_err(|error| {
        debug!(%error, "a lease operation failed");
        match error {
            NatsError::Conflict { .. } => Failure::Conflict,
            NatsError::Denied { .. } => Failure::Denied(error.to_string()),
            NatsError::NoResponders { .. } => Failure::NoResponders(error.to_string()),
            NatsError::Timeout { .. } | NatsError::Disconnected { .. } => Failure::Unanswered,
            other => Failure::Refused(other.to_string()),
        }
    })
}

#[cfg(test)]
mod tests {
    use cotal_nats::Operation;

    use super::*;

    #[test]
    fn lse_4_each_answer_of_the_broker_keeps_its_kind() {
        let text = || "x".to_owned();
        let denied = NatsError::Denied { operation: Operation::Publish, subject: text() };
        let conflict = NatsError::Conflict { what: text(), description: text(), err_code: 10_071 };
        let full = NatsError::Refused {
            what: text(),
            description: "insufficient storage resources available".to_owned(),
            code: 500,
            err_code: 10_047,
        };
        let silent = NatsError::Timeout { what: text(), after: Duration::from_secs(5) };
        let cut = NatsError::Disconnected { what: text() };
        let nobody = NatsError::NoResponders { subject: text() };
        let told = |error: NatsError| answer::<()>(Err(error)).unwrap_err();
        assert_eq!(
            told(denied),
            Failure::Denied(
                "denied: the broker forbids this credential to publish to x".to_owned(),
            )
        );
        assert_eq!(told(conflict), Failure::Conflict);
        assert!(matches!(told(full), Failure::Refused(said) if said.contains("insufficient")));
        assert_eq!(told(silent), Failure::Unanswered);
        assert_eq!(told(cut), Failure::Unanswered);
        assert_eq!(told(nobody), Failure::NoResponders("nobody answers on x".to_owned()));
    }
}
