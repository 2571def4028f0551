//! The shell of a lane's life: reads the current levels, lets `cotal_rules::lifecycle` decide, and
//! carries out the orders.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cotal_rules::lifecycle::{self, Cause, Levels, Lifecycle, Orders};
use cotal_rules::watchdog::{WatchdogVerdict, Windows};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::context::LaneContext;
use super::error::LaneError;
use super::link::LinkLevels;
use super::stage::Stage;
use super::start::Start;
use super::tasks::Tasks;
use crate::clock::BootInstant;
use crate::lease::error::LeaseError;
use crate::lease::handle::{Lease, LeaseState};
use crate::lease::keeper::Release;
use crate::state::view::Feed;

/// The result of the lease keeper.
type Kept = Result<Release, LeaseError>;

/// What the life of a lane needs.
pub(super) struct Parts<'a> {
    pub(super) context: LaneContext,
    pub(super) components: Tasks,
    pub(super) start: Start,
    pub(super) started: watch::Sender<bool>,
    pub(super) link: LinkLevels,
    pub(super) lease: Lease,
    pub(super) keeper: JoinHandle<Kept>,
    pub(super) stop: &'a CancellationToken,
    pub(super) stage: &'a watch::Sender<Stage>,
}

/// How a lane ended, and whether it provably left no lease row of its own.
pub(super) struct End {
    pub(super) outcome: Result<(), LaneError>,
    pub(super) released: bool,
}

/// Runs a lane from its claim to its release.
pub(super) async fn run(parts: Parts<'_>, windows: Windows) -> End {
    Shell::new(parts, windows).run().await
}

struct Shell<'a> {
    rules: Lifecycle,
    began: BootInstant,
    tick: Interval,
    levels: Levels,
    orders: Orders,
    context: LaneContext,
    components: Tasks,
    /// The tasks that keep the view current. They run until the last component has finished, so
    /// they are not among the components.
    followers: Option<Tasks>,
    start: Option<Start>,
    scanning: Step<()>,
    binding: Step<Result<(), LaneError>>,
    started: watch::Sender<bool>,
    link: LinkLevels,
    lease: Lease,
    lease_state: watch::Receiver<LeaseState>,
    keeper: AbortOnDrop<Kept>,
    kept: Option<Kept>,
    failure: Option<LaneError>,
    stop: &'a CancellationToken,
    stage: &'a watch::Sender<Stage>,
}

/// What the shell waits for.
enum Event {
    Stop,
    /// Some level has changed; the next look reads which.
    Changed,
    Kept(Kept),
    Failed(LaneError),
    Scanned,
    Bound(Result<(), LaneError>),
    Drained,
}

impl<'a> Shell<'a> {
    fn new(parts: Parts<'a>, windows: Windows) -> Self {
        let Parts { context, components, start, started, link, lease, keeper, stop, stage } = parts;
        let rules = Lifecycle::new(windows, 0);
        let mut tick = tokio::time::interval(Duration::from_millis(rules.tick_ms().unsigned_abs()));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            rules,
            began: BootInstant::now(),
            tick,
            levels: Levels::default(),
            orders: Orders::default(),
            context,
            components,
            followers: None,
            start: Some(start),
            scanning: Step::default(),
            binding: Step::default(),
            started,
            link,
            lease_state: lease.state(),
            lease,
            keeper: AbortOnDrop(keeper),
            kept: None,
            failure: None,
            stop,
            stage,
        }
    }

    async fn run(mut self) -> End {
        loop {
            self.read_levels();
            let orders = self.rules.look(&self.levels, self.began.elapsed_ms());
            self.link.say(self.levels.link);
            self.obey(orders);
            if let Some(cause) = self.rules.ended() {
                return self.end(cause);
            }
            let event = self.event().await;
            self.take(event);
        }
    }

    fn read_levels(&mut self) {
        let state = *self.lease_state.borrow_and_update();
        let ended = self.kept.is_some();
        self.levels.lease = match self.levels.lease {
            _ if ended => lifecycle::Lease::Ended,
            _ if state.is_held => lifecycle::Lease::Held,
            lifecycle::Lease::Claiming => lifecycle::Lease::Claiming,
            _ => lifecycle::Lease::Doubtful,
        };
        self.levels.is_ready = state.is_ready && !ended;
        self.levels.may_say_ready = state.may_say_ready && !ended;
        self.levels.link = self.link.now();
    }

    fn obey(&mut self, orders: Orders) {
        if orders.say_expired {
            let space = &self.context.space;
            error!(%space, "! delivery: credential expired, awaiting proved renewal");
        }
        if orders.follow && self.followers.is_none() {
            self.follow();
        }
        if orders.bind
            && let Some(start) = self.start.take()
        {
            self.binding = Step::new(start.all(self.context.clone()));
        }
        self.lease.want_ready(orders.want_ready);
        self.started.send_if_modified(|started| {
            let has = self.rules.has_served();
            std::mem::replace(started, has) != has
        });
        self.show(orders);
        if orders.finish && !self.orders.finish {
            self.binding = Step::default();
            self.context.stop.cancel();
        }
        if orders.release && !self.orders.release {
            if !self.levels.is_drained && self.levels.link.connected {
                let space = &self.context.space;
                warn!(%space, "some work was not finished in time; the broker will redeliver it");
            }
            self.lease.release();
        }
        self.orders = orders;
    }

    fn follow(&mut self) {
        let followers = Tasks::default();
        let spawner = followers.spawner();
        for feed in Feed::ALL {
            spawner.spawn("the view", Arc::clone(&self.context.view).follow(feed));
        }
        self.followers = Some(followers);
        let view = Arc::clone(&self.context.view);
        self.scanning = Step::new(async move { view.scanned().await });
    }

    fn show(&self, orders: Orders) {
        let stage = match self.levels.lease {
            lifecycle::Lease::Claiming | lifecycle::Lease::Ended => return,
            _ if orders.want_ready && self.levels.is_ready => Stage::Ready,
            _ => Stage::Claimed,
        };
        let changed = self.stage.send_if_modified(|shown| std::mem::replace(shown, stage) != stage);
        if changed && stage == Stage::Ready {
            info!(space = %self.context.space, "serving");
        }
    }

    async fn event(&mut self) -> Event {
        let Self { stop, levels, link, lease_state, followers, components, .. } = self;
        let finishing = self.orders.finish;
        tokio::select! {
            biased;
            () = stop.cancelled(), if !levels.is_told_to_stop => Event::Stop,
            kept = &mut self.keeper.0, if self.kept.is_none() => Event::Kept(joined(kept)),
            () = link.changed() => Event::Changed,
            Ok(()) = lease_state.changed() => Event::Changed,
            error = first_end(followers.as_ref()) => Event::Failed(error),
            error = components.first_end(), if !finishing => Event::Failed(error),
            () = components.drained(), if finishing && !levels.is_drained => Event::Drained,
            () = self.scanning.done() => Event::Scanned,
            bound = self.binding.done() => Event::Bound(bound),
            _ = self.tick.tick() => Event::Changed,
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Stop => self.levels.is_told_to_stop = true,
            Event::Changed => {}
            Event::Kept(kept) => self.kept = Some(kept),
            Event::Scanned => self.levels.is_scanned = true,
            Event::Bound(Ok(())) => self.levels.is_bound = true,
            Event::Failed(error) | Event::Bound(Err(error)) => {
                self.levels.has_failed = true;
                if self.failure.is_none() {
                    self.failure = Some(error);
                } else {
                    warn!(space = %self.context.space, %error, "another component failed too");
                }
            }
            Event::Drained => self.levels.is_drained = true,
        }
    }

    fn end(self, cause: Cause) -> End {
        let (kept, released) = match self.kept {
            Some(Ok(release)) => (Ok(()), release == Release::Proven),
            Some(Err(error)) => {
                let released = !error.may_leave_a_row();
                (Err(LaneError::from(error)), released)
            }
            None => (Ok(()), false),
        };
        let outcome = match (cause, self.failure) {
            (Cause::Failed, Some(error)) => Err(error),
            (Cause::Link(verdict), _) => Err(given_up(verdict)),
            (Cause::Stopped | Cause::Lease | Cause::Failed, _) => kept,
        };
        End { outcome, released }
    }
}

fn given_up(verdict: WatchdogVerdict) -> LaneError {
    match verdict {
        WatchdogVerdict::Unreachable => LaneError::BrokerGone,
        WatchdogVerdict::PastBackstop => LaneError::BrokerGonePastBackstop,
        // An expiry that was only reported never ends a lane.
        WatchdogVerdict::NotRenewed | WatchdogVerdict::AwaitRenewal => LaneError::NotRenewed,
    }
}

async fn first_end(tasks: Option<&Tasks>) -> LaneError {
    match tasks {
        Some(tasks) => tasks.first_end().await,
        None => std::future::pending().await,
    }
}

/// A step that is in progress, or not.
struct Step<T>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T> Default for Step<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Step<T> {
    fn new(step: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(step)))
    }

    /// The result of the step, once; pends while none is in progress. Cancel-safe.
    async fn done(&mut self) -> T {
        let Some(step) = &mut self.0 else { return std::future::pending().await };
        let done = step.await;
        self.0 = None;
        done
    }
}

/// A task that is aborted when its owner is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn joined(ended: Result<Kept, JoinError>) -> Kept {
    // A panic of the keeper is a defect of this process; the lease row expires by itself.
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
