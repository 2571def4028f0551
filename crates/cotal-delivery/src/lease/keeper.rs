//! The lease of a space: performs what the keeper of `cotal-rules` decides (LSE-1 to LSE-9).
//!
//! One bucket operation is in flight at a time. The watch is bound only after the claim is won,
//! because a refused daemon must bind nothing, not even a consumer of the lease bucket. The row
//! says `ready` only while it is watched.

use std::pin::Pin;
use std::time::Duration;

use cotal_nats::{Bucket as Kv, ConnState, Connection, NatsError, WatchEvent};
use cotal_rules::lease::{Effect, Exit, Found, Input, LeaseKeeper};
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::{Principal, Space};
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::bucket::{LeaseBucket, failure, found, perform};
use super::error::LeaseError;
use super::handle::{Desk, Lease, LeaseState, handle};
use super::row_watch::{LeaseWatch, News};
use crate::clock::{BootInstant, now_ms};
use crate::lane::wait_for_broker::ask;
use crate::lease::gate::GateKeeper;
use crate::sidecar::Health;

/// What a stop left of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// No row of this run is left.
    Proven,
    /// A row may be left; it expires by itself.
    Unproven,
}

/// The keeper's side.
struct Keeper {
    space: Space,
    kv: Kv,
    rules: LeaseKeeper,
    gate: GateKeeper,
    started: BootInstant,
    desk: Desk,
    /// Whether the rules last said to serve.
    serves: bool,
    /// Whether the rules were told, since they serve, that everything is bound.
    told_bound: bool,
    told_release: bool,
    /// Whether the broker has confirmed since then that the row says `ready`.
    confirmed: bool,
    link: watch::Receiver<ConnState>,
    /// The state of the connection that the rules were told last. A redial may be over before they
    /// are told of it.
    connected: bool,
    watch: LeaseWatch,
    /// Whether the broker refused the last write; that was logged.
    refused: bool,
    /// The same, in the form that a status shows.
    health: Health,
}

/// A bucket operation in flight. It is kept until it is answered, and never started twice.
type Operation = Pin<Box<dyn Future<Output = (Input, Option<NatsError>)> + Send>>;

/// What the keeper waits for.
enum Event {
    Wanted,
    Answered(Input, Option<NatsError>),
    Watched(News),
    Link(bool),
    Due,
}

/// Who claims the lease, and the longest time for which the gate may stay open after a write.
pub(crate) struct Claim {
    pub(crate) space: Space,
    pub(crate) holder: Principal,
    pub(crate) incarnation: String,
    pub(crate) ttl: Duration,
    /// Shows whether the broker stores the row. The renewals prove every few seconds that it stores
    /// at all.
    pub(crate) health: Health,
}

/// A keeper that has claimed nothing yet. It ends when the lease is released, or lost for good.
pub(crate) fn lease(
    connection: &Connection,
    claim: Claim,
    gate: GateKeeper,
) -> (Lease, impl Future<Output = Result<Release, LeaseError>> + Send + 'static) {
    let (lease, desk) = handle();
    let kv = Kv::new(connection, &claim.space.bucket(Bucket::Delivery));
    (lease, keep(kv, claim, gate, desk))
}

async fn keep(
    kv: Kv,
    claim: Claim,
    gate: GateKeeper,
    mut desk: Desk,
) -> Result<Release, LeaseError> {
    let Claim { space, holder, incarnation, ttl, health } = claim;
    let read = ask(kv.connection(), ttl, || LeaseBucket::read(&kv, ttl));
    let bucket = tokio::select! {
        read = read => match read {
            Ok(bucket) => bucket,
            Err(error) => return Err(LeaseError::Refused { space, source: failure(&error) }),
        },
        // Nothing is claimed yet.
        Ok(_) = desk.wanted.wait_for(|wanted| wanted.release) => return Ok(Release::Proven),
    };
    let ttl_ms = i64::try_from(bucket.ttl.as_millis()).unwrap_or(i64::MAX);
    let keeper = Keeper {
        rules: LeaseKeeper::new(holder, incarnation, now_ms(), ttl_ms, bucket.created),
        gate,
        started: BootInstant::now(),
        desk,
        serves: false,
        told_bound: false,
        told_release: false,
        confirmed: false,
        link: kv.connection().state(),
        connected: true,
        watch: LeaseWatch::new(&space, &kv),
        kv,
        refused: false,
        health,
        space,
    };
    keeper.run().await
}

impl Keeper {
    /// Claims, keeps and releases the lease. Ends when it is released, or lost for good.
    async fn run(mut self) -> Result<Release, LeaseError> {
        let mut input = Input::Start;
        let mut asked = None;
        loop {
            let effects = self.rules.on(input, self.started.elapsed_ms());
            for effect in effects {
                match effect {
                    Effect::Serve => self.serve(),
                    Effect::StopServing => self.stop_serving(),
                    Effect::Exit(exit) => return self.end(exit),
                    operation => asked = Some(Box::pin(perform(self.kv.clone(), operation)) as _),
                }
            }
            self.show();
            input = self.next(&mut asked).await;
        }
    }

    /// Opens the gate while the row provably has not expired, and publishes the lease's state.
    fn show(&mut self) {
        let until = self
            .rules
            .serving_until()
            .map(|until| self.started + Duration::from_millis(until.max(0).unsigned_abs()));
        self.gate.set(until);
        // Once confirmed, it stays confirmed until serving stops: a row that is read again still
        // says so.
        self.confirmed = self.told_bound && (self.confirmed || self.rules.is_ready());
        let state = LeaseState {
            is_held: self.serves,
            is_ready: self.confirmed,
            may_say_ready: self.rules.may_say_ready(),
            is_refused: self.refused,
        };
        self.desk.state.send_if_modified(|shown| std::mem::replace(shown, state) != state);
    }

    fn serve(&mut self) {
        self.watch.begin();
        self.serves = true;
        info!(space = %self.space, "the lease is held");
    }

    fn stop_serving(&mut self) {
        self.gate.set(None);
        self.told_bound = false;
        if std::mem::take(&mut self.serves) && !self.rules.is_stopping() {
            warn!(space = %self.space, "serving stops until the lease is proven to be held");
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
            Exit::Replaced { released } => Err(LeaseError::Replaced { space, released }),
        }
    }

    /// The next input for the rules. Drives the operation in flight in the meantime.
    async fn next(&mut self, asked: &mut Option<Operation>) -> Input {
        loop {
            if let Some(input) = self.untold() {
                return input;
            }
            match self.event(asked).await {
                Event::Wanted => {}
                Event::Answered(input, failed) => {
                    *asked = None;
                    self.note(&input, failed.as_ref());
                    return input;
                }
                Event::Link(connected) => {
                    self.connected = connected;
                    return if connected { Input::Connected } else { Input::Disconnected };
                }
                Event::Due => return Input::Tick,
                Event::Watched(news) => {
                    if let Some(input) = self.watched(news) {
                        return input;
                    }
                }
            }
        }
    }

    /// What the lane wants, or the watch allows, and the rules were not told yet.
    fn untold(&mut self) -> Option<Input> {
        let wanted = *self.desk.wanted.borrow_and_update();
        if wanted.release && !std::mem::replace(&mut self.told_release, true) {
            return Some(Input::Stop);
        }
        let bound = self.serves && wanted.ready && self.watch.is_bound();
        if std::mem::replace(&mut self.told_bound, bound) == bound {
            return None;
        }
        Some(if bound { Input::Bound } else { Input::Quieted })
    }

    async fn event(&mut self, asked: &mut Option<Operation>) -> Event {
        let now = self.started.elapsed_ms();
        let due = self.rules.deadline();
        let due = due.map(|at| Duration::from_millis(at.saturating_sub(now).max(0).unsigned_abs()));
        let told = self.connected;
        tokio::select! {
            biased;
            Ok(()) = self.desk.wanted.changed() => Event::Wanted,
            (input, failed) = answer_of(asked) => Event::Answered(input, failed),
            Ok(link) = self.link.wait_for(|link| link.is_connected() != told) => {
                Event::Link(link.is_connected())
            }
            news = self.watch.next() => Event::Watched(news),
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => Event::Due,
        }
    }

    /// Logs that the broker refuses a write, once until it accepts one again; a refused operation
    /// is repeated.
    fn note(&mut self, input: &Input, failed: Option<&NatsError>) {
        let refusal = failed
            .filter(|error| matches!(error, NatsError::Denied { .. } | NatsError::Refused { .. }));
        match (input, refusal, failed) {
            (Input::Written(_), Some(why), _) if self.told_release => {
                error!(space = %self.space, %why, "the broker refuses the release of the lease");
            }
            (Input::Written(_), Some(why), _) if !std::mem::replace(&mut self.refused, true) => {
                error!(space = %self.space, %why, "the broker refuses to store the lease");
                self.health.fails(why.to_string());
            }
            (Input::Written(Ok(_)), ..) => {
                self.health.runs();
                if std::mem::take(&mut self.refused) {
                    info!(space = %self.space, "the broker stores the lease again");
                }
            }
            (_, _, Some(error)) => debug!(space = %self.space, %error, "a lease operation failed"),
            _ => {}
        }
    }

    fn watched(&self, news: News) -> Option<Input> {
        match news {
            News::Event(WatchEvent::Put { key, value, revision }) if key.as_str() == LEASE_KEY => {
                Some(Input::Watch(found(&value, revision, &self.space)))
            }
            News::Event(WatchEvent::Delete { key, revision, .. }) if key.as_str() == LEASE_KEY => {
                Some(Input::Watch(Found::Absent { revision }))
            }
            News::Event(WatchEvent::Reset { bucket_recreated: true }) => Some(Input::Recreated),
            News::Event(WatchEvent::Reset { bucket_recreated: false }) | News::Lost => {
                Some(Input::Doubt)
            }
            // Whether the watch is bound affects what the row may say; `untold` tells the rules.
            News::Bound | News::Event(_) => None,
        }
    }
}

async fn answer_of(asked: &mut Option<Operation>) -> (Input, Option<NatsError>) {
    match asked {
        Some(operation) => operation.await,
        None => std::future::pending().await,
    }
}
