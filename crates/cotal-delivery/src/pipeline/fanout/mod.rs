//! The fan-out writer: copies each post into the INBOX of every member it is for.
//!
//! Invariant: a post is acked only after the broker has confirmed every copy it needs. Retries and
//! redeliveries do no harm, because a copy's message id is the same every time. A post whose copies
//! cannot be confirmed stays here until they are: if it were returned to the broker, CHAT's cap
//! could discard it. A lane that no longer serves routes nothing and answers no post.

pub(crate) mod admission_window;
pub(crate) mod copies;
mod lost_posts;
pub(crate) mod refusals;
mod route;
pub(crate) mod start;
mod trimmer;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{BatchError, Connection, Delivery, Gather, NatsError, PullError, Writer};
use cotal_rules::backoff::Backoff;
use cotal_wire::envelope::PostHead;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Principal, Space};
use futures_util::StreamExt as _;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use tokio::time::{Instant, Interval, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::consumer::answers::log_failure;
use crate::consumer::pull_schedule::{Load, PullSchedule};
use crate::consumer::pull_source::{PullSource, Pulled};
use crate::consumer::tracker::Tracker;
use crate::counters::Counters;
use crate::lease::gate::Gate;
use crate::loop_progress::LoopReporter;
use crate::pipeline::join_barrier::{BarrierPolicy, JoinBarrier};
use crate::pipeline::progress::ReaderProgress;
use crate::state::view::{Feed, View};
use admission_window::AdmissionWindow;
use lost_posts::LostPosts;
use refusals::RefusalReports;
use trimmer::Trimmer;

/// Most posts pulled at once.
const BATCH: usize = 256;
/// Copies per batch, so that a batch is settled well within the ack wait of 60 s.
const COPIES_PER_BATCH: usize = 65_536;
/// To prove one batch fresh costs a round trip. Four are proven at once, so that the round trips
/// overlap.
const SCHEDULE: PullSchedule =
    PullSchedule { batches: 4, gather: Gather { enough: 64, within: Duration::from_millis(2) } };
/// How often the broker is told that a post is still in progress.
const EXTEND_EVERY: Duration = Duration::from_secs(15);
/// Between two attempts to read the last sequence of INBOX.
const MARK_RETRY_AFTER: Duration = Duration::from_millis(200);

/// What the writer works with.
pub(crate) struct FanoutParts {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) writer: Writer,
    pub(crate) pulls: PullSource,
    /// Up to which post everything is settled: the position to resume at if the consumer is
    /// re-created.
    pub(crate) tracker: Tracker,
    pub(crate) gate: Gate,
    pub(crate) counters: Arc<Counters>,
    pub(crate) refusals: RefusalReports,
    pub(crate) reader: ReaderProgress,
    /// The last entry in INBOX before this lane wrote any.
    pub(crate) backlog: u64,
    pub(crate) lost_posts: LostPosts,
    pub(crate) reporter: LoopReporter,
    /// The joins in progress, for which routing waits.
    pub(crate) joins: JoinBarrier,
}

/// The fan-out writer.
pub(crate) struct Fanout {
    parts: FanoutParts,
    window: AdmissionWindow,
    barrier_policy: BarrierPolicy,
    trimmer: Trimmer,
    /// Batches that wait until the view is proven current, in the order in which they were pulled.
    checking: FuturesOrdered<Soon<(Vec<Routable>, bool)>>,
    /// Posts that are proven current and wait for the admission window or for a join.
    ready: VecDeque<Routable>,
    /// Whether `ready` must be proven current again.
    is_stale: bool,
    /// Posts whose copies are in flight.
    under_way: FuturesUnordered<Soon<Routed>>,
    /// Posts whose copies could not be confirmed; they are retried.
    failed: Vec<Delivery>,
    try_again_at: Instant,
    backoff: Backoff,
    /// The mark that is being read, if any.
    marking: FuturesUnordered<Soon<(u64, u64)>>,
    extend_due: Interval,
    /// How many posts to pull at once, computed from the number of copies of the last one.
    want: usize,
}

/// Work in progress.
type Soon<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A post that was parsed and has no plan yet.
struct Routable {
    delivery: Delivery,
    sender: Principal,
    channel: Channel,
    head: PostHead,
}

/// A post whose copies are settled.
struct Routed {
    delivery: Delivery,
    copies: usize,
    outcome: Result<(), BatchError>,
}

/// What happened next.
enum Event {
    Stop,
    /// Something that every turn of the loop takes care of.
    Nothing,
    Routed(Routed),
    /// INBOX's last sequence (second), read after this many posts (first) were confirmed.
    Marked(u64, u64),
    Checked(Vec<Routable>),
    TryAgain,
    ExtendDue,
    LostPosts(lost_posts::LostPost),
    Pulled(Pulled),
}

impl Fanout {
    pub(crate) fn new(parts: FanoutParts) -> Self {
        parts.reader.announce(parts.backlog);
        Self {
            window: AdmissionWindow::new(parts.backlog),
            barrier_policy: BarrierPolicy::default(),
            trimmer: Trimmer::new(&parts.space, &parts.connection, &parts.gate, &parts.tracker),
            checking: FuturesOrdered::new(),
            ready: VecDeque::new(),
            is_stale: false,
            under_way: FuturesUnordered::new(),
            failed: Vec::new(),
            try_again_at: Instant::now(),
            backoff: Backoff::default(),
            marking: FuturesUnordered::new(),
            extend_due: interval(EXTEND_EVERY),
            want: BATCH,
            parts,
        }
    }

    /// Routes posts until told to stop; then finishes the posts in progress.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), PullError> {
        loop {
            let hold = self.advance(&stop).await;
            let event = self.next_event(&stop, hold).await?;
            if self.take(event, &stop).await.is_break() {
                break;
            }
        }
        self.wind_up().await;
        Ok(())
    }

    /// Routes as much as possible. If joins hold up the rest, returns until when.
    async fn advance(&mut self, stop: &CancellationToken) -> Option<Instant> {
        self.window.reader_passed(self.parts.reader.done());
        let mut hold = None;
        while !self.ready.is_empty() && self.window.has_space() && self.parts.gate.is_open() {
            hold = self.barrier_policy.until(self.parts.joins.any(), Instant::now());
            self.is_stale |= hold.is_some();
            if self.is_stale {
                break;
            }
            let Some(post) = self.ready.pop_front() else { break };
            self.route(post).await;
        }
        // The posts were current when that was proven. Since then the process may have been paused,
        // or a join was waited for, so it is proven again.
        if hold.is_none() && self.window.has_space() && !self.ready.is_empty() {
            self.is_stale = false;
            let posts = self.ready.drain(..).collect();
            self.checking.push_front(self.check(posts, stop));
        }
        if self.marking.is_empty()
            && let Some(posts) = self.window.ask()
        {
            let (space, connection) = (self.parts.space.clone(), self.parts.connection.clone());
            self.marking.push(Box::pin(mark(space, connection, posts)));
        }
        let done = self.parts.tracker.done();
        self.parts.lost_posts.passed(done);
        if self.parts.lost_posts.is_idle() && !self.parts.joins.any() {
            self.trimmer.begin(done);
        }
        hold
    }

    /// The next event. Every branch is cancel-safe, so no event is lost when another comes first.
    async fn next_event(
        &mut self,
        stop: &CancellationToken,
        hold: Option<Instant>,
    ) -> Result<Event, PullError> {
        let pull = self.pull();
        let (want, is_full) = (self.want, !self.window.has_space());
        let parts = &mut self.parts;
        let settled = parts.tracker.done();
        Ok(tokio::select! {
            biased;
            () = stop.cancelled() => Event::Stop,
            () = parts.reporter.answered() => Event::Nothing,
            () = parts.tracker.look(0) => Event::Nothing,
            Some(routed) = self.under_way.next() => Event::Routed(routed),
            Some((posts, seq)) = self.marking.next() => Event::Marked(posts, seq),
            () = parts.reader.changed(), if is_full => Event::Nothing,
            () = parts.joins.passed(hold.unwrap_or_else(Instant::now)), if hold.is_some() => {
                Event::Nothing
            }
            Some((posts, _)) = self.checking.next() => Event::Checked(posts),
            () = self.trimmer.ended() => Event::Nothing,
            found = parts.lost_posts.found() => Event::LostPosts(found),
            () = sleep_until(self.try_again_at), if !self.failed.is_empty() => Event::TryAgain,
            _ = self.extend_due.tick() => Event::ExtendDue,
            pulled = parts.pulls.next(&mut parts.gate, want, pull.unwrap_or_default(), || {
                parts.space.fanout_config(Some(settled + 1))
            }), if pull.is_some() => Event::Pulled(pulled?),
        })
    }

    /// How to pull posts now; `None` if none must be pulled.
    fn pull(&self) -> Option<Gather> {
        if !self.ready.is_empty() || self.under_way.len() + self.failed.len() >= BATCH {
            return None;
        }
        let is_busy = !self.under_way.is_empty() || !self.checking.is_empty();
        SCHEDULE.next(Load { batches: self.checking.len(), is_busy })
    }

    /// Handles an event.
    async fn take(&mut self, event: Event, stop: &CancellationToken) -> ControlFlow<()> {
        match event {
            Event::Stop => return ControlFlow::Break(()),
            Event::Nothing => {}
            Event::Routed(routed) => {
                self.settle(routed).await;
                self.window.confirmed();
            }
            Event::Marked(posts, seq) => {
                self.parts.reader.announce(seq);
                self.window.mark(posts, seq);
            }
            Event::Checked(posts) => self.ready.extend(posts),
            Event::TryAgain => {
                let failed = std::mem::take(&mut self.failed);
                let posts = self.read_all(failed).await;
                self.checking.push_front(self.check(posts, stop));
            }
            Event::ExtendDue => self.extend().await,
            Event::LostPosts(found) => self.parts.lost_posts.take(found),
            Event::Pulled(Pulled { recreated, deliveries }) => {
                if let Some(first) = recreated {
                    self.parts.tracker.recreated(first);
                }
                self.parts.tracker.arrived(&deliveries);
                for delivery in &deliveries {
                    self.parts.lost_posts.arrived(delivery.stream_seq);
                    self.trimmer.arrived(delivery);
                }
                let posts = self.read_all(deliveries).await;
                self.checking.push_back(self.check(posts, stop));
            }
        }
        ControlFlow::Continue(())
    }

    /// Tells the broker that the posts which wait here are still in progress.
    async fn extend(&mut self) {
        if !self.parts.gate.is_open() {
            return;
        }
        for delivery in self.ready.iter().map(|post| &post.delivery).chain(&self.failed) {
            log_failure(
                &self.parts.space,
                "extend the ack wait of a post",
                delivery.progress().await,
            );
        }
    }

    /// Pulls no more posts, settles those in progress, and returns the rest to the broker.
    async fn wind_up(mut self) {
        let mut left = self.parts.pulls.end(&self.parts.gate).await;
        while let Some((posts, _)) = self.checking.next().await {
            self.ready.extend(posts);
        }
        left.add(self.ready.drain(..).map(|post| post.delivery));
        while let Some(routed) = self.under_way.next().await {
            self.settle(routed).await;
        }
        left.add(self.failed.drain(..));
        self.parts.pulls.give_back(left, &self.parts.gate).await;
    }

    fn check(&self, posts: Vec<Routable>, stop: &CancellationToken) -> Soon<(Vec<Routable>, bool)> {
        let (gate, view) = (self.parts.gate.clone(), Arc::clone(&self.parts.view));
        Box::pin(check(gate, view, self.parts.space.clone(), posts, stop.clone()))
    }
}

/// Waits until the lane serves and the view is as current as the newest of `posts`. The flag is
/// `false` if the writer was told to stop instead.
async fn check(
    mut gate: Gate,
    view: Arc<View>,
    space: Space,
    posts: Vec<Routable>,
    stop: CancellationToken,
) -> (Vec<Routable>, bool) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return (posts, false),
            current = async {
                gate.open().await;
                fresh(&view, &posts).await
            } => match current {
                Ok(()) => return (posts, true),
                Err(error) => {
                    warn!(%space, %error, "posts wait: the view is not current");
                    for post in &posts {
                        log_failure(&space, "extend the ack wait of a post", post.delivery.progress().await);
                    }
                }
            },
        }
    }
}

/// Presence is read only when a mention may need it, because it changes all the time.
async fn fresh(view: &View, posts: &[Routable]) -> Result<(), NatsError> {
    if posts.is_empty() {
        return Ok(());
    }
    view.fresh(&[Feed::Channels, Feed::Members, Feed::Acl]).await?;
    let by_presence = {
        let directory = view.directory();
        posts.iter().any(|post| {
            !post.head.mentions.is_empty() && directory.class(&post.channel) == DeliveryClass::Live
        })
    };
    if by_presence { view.fresh(&[Feed::Presence]).await } else { Ok(()) }
}

/// Reads the last sequence of INBOX, after `posts` posts were confirmed.
async fn mark(space: Space, connection: Connection, posts: u64) -> (u64, u64) {
    let inbox = space.inbox_stream();
    loop {
        match connection.last_seq(&inbox).await {
            Ok(seq) => return (posts, seq),
            Err(error) => {
                warn!(%space, %error, "posts wait: INBOX does not answer");
                tokio::time::sleep(MARK_RETRY_AFTER).await;
            }
        }
    }
}

/// How many posts to pull at once: as many as make about [`COPIES_PER_BATCH`] copies.
fn batch_size(copies_per_post: usize) -> usize {
    (COPIES_PER_BATCH / copies_per_post.max(1)).clamp(1, BATCH)
}
