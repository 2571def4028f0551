//! The fan-out writer: copies each post into the private store of every member it is for.
//!
//! Invariant: a post is acked only when every copy it needs is confirmed by the broker. What is
//! retried or redelivered is harmless, because a copy's message id is the same every time. A lane that
//! does not serve any more routes nothing and answers for no post.

pub(crate) mod admission_window;
pub(crate) mod copies;

use std::time::Duration;

use cotal_nats::{BatchError, Connection, Delivery, Gather, NatsError, PullError, Ticket, Writer};
use cotal_rules::fanout::{Plan, Post};
use cotal_wire::envelope::{self, PostHead};
use cotal_wire::names::FANOUT;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Principal, Space};
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use futures_util::{Stream, StreamExt as _};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::consumer::ack_wait::ShortAckWait;
use crate::consumer::answers::log_failure;
use crate::consumer::pull_source::{PullSource, Pulled, bind};
use crate::consumer::tracker::Tracker;
use crate::counters::{Counters, add};
use crate::lane::context::LaneContext;
use crate::lane::error::{LaneError, broker};
use crate::lease::gate::Gate;
use crate::loop_progress::LoopReporter;
use crate::pipeline::join_barrier::{BarrierPolicy, JoinBarrier};
use crate::pipeline::progress::ReaderProgress;
use crate::state::view::{Feed, View};
use admission_window::AdmissionWindow;
use copies::make_copies;

/// Most posts taken at once.
const BATCH: usize = 256;
/// While posts are under way, as many are not kept waiting for more: each batch costs a round trip.
const GATHER: Gather = Gather { enough: 64, within: Duration::from_millis(2) };
/// Copies wanted in one batch, so that a batch is settled well inside the ack wait of 60 s.
const COPIES_PER_BATCH: usize = 65_536;
/// Batches whose freshness is being proven at once, so that nobody waits for a round trip.
const CHECKS: usize = 4;
/// How often the broker is told that a post is still being worked on.
const PROGRESS_EVERY: Duration = Duration::from_secs(15);
/// Between two attempts to read how far INBOX has come.
const MARK_AGAIN: Duration = Duration::from_millis(200);
/// When a post comes again after a copy could not be confirmed.
const RETRY: Duration = Duration::from_secs(2);

/// Posts pulled ahead of routing; small, because each may cost a copy per member.
const PULL_POSTS: usize = 128;

/// Starts the fan-out writer; INBOX held nothing beyond `backlog` before it.
pub(crate) async fn spawn(
    context: &LaneContext,
    writer: Writer,
    joins: &JoinBarrier,
    reader: ReaderProgress,
    backlog: u64,
) -> Result<(), LaneError> {
    let LaneContext { space, connection, view, gate, counters, .. } = context;
    let stream = space.chat_stream();
    // Before the consumer is looked at, so that what the look shows is true of all up to it.
    let last = connection.last_seq(&stream).await.map_err(broker("cannot read CHAT"))?;
    let info = bind(context, &stream, &space.fanout_config(None)).await?;
    let tracker = Tracker::new(connection, &info, last);
    ShortAckWait::spawn(context, &info, None, tracker.is_proven_watch());
    let fanout = Fanout {
        space: space.clone(),
        connection: connection.clone(),
        view: Arc::clone(view),
        writer,
        pulls: PullSource::open(space, connection, &stream, FANOUT, PULL_POSTS).await?,
        tracker,
        gate: gate.clone(),
        counters: Arc::clone(counters),
        reader,
        backlog,
        beat: context.reporter("fan-out"),
        joins: joins.clone(),
    };
    context.spawn("fan-out", fanout.run(context.stop.clone()));
    Ok(())
}

/// Everything the writer needs.
pub(crate) struct Fanout {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) writer: Writer,
    pub(crate) pulls: PullSource,
    /// Up to which post everything is settled; where to go on if the consumer vanishes.
    pub(crate) tracker: Tracker,
    pub(crate) gate: Gate,
    pub(crate) counters: Arc<Counters>,
    pub(crate) reader: ReaderProgress,
    /// The last entry that stood in INBOX before this lane wrote any.
    pub(crate) backlog: u64,
    pub(crate) beat: LoopReporter,
    /// JoinBarrier that go first.
    pub(crate) joins: JoinBarrier,
}

/// A post that has been read and awaits its plan.
struct Routable {
    delivery: Delivery,
    sender: Principal,
    channel: Channel,
    head: PostHead,
}

/// A post whose copies are under way.
struct Routed {
    delivery: Delivery,
    copies: usize,
    outcome: Result<(), BatchError>,
}

impl Fanout {
    /// Routes posts until told to stop; then finishes what is under way.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), PullError> {
        let mut checking = FuturesOrdered::new();
        let mut ready = VecDeque::new();
        let mut under_way = FuturesUnordered::new();
        let mut marks = FuturesUnordered::new();
        let mut window = AdmissionWindow::new(self.backlog);
        self.reader.announce(self.backlog);
        let mut barrier_policy = BarrierPolicy::default();
        let mut stale = false;
        let mut want = BATCH;
        loop {
            window.reader_passed(self.reader.done());
            let mut hold = None;
            while let Some(post) = ready.pop_front_if(|_| {
                if !window.has_space() || !self.gate.is_open() {
                    return false;
                }
                hold = barrier_policy.until(self.joins.any(), Instant::now());
                stale |= hold.is_some();
                !stale
            }) {
                if let Some(routed) = self.route(post).await {
                    want = batch_size(routed.1);
                    window.routed();
                    under_way.push(finish(routed));
                }
            }
            // They were fresh when it was proven; meanwhile the process may have been paused, or a join
            // went first.
            if hold.is_none() && window.has_space() && !ready.is_empty() {
                stale = false;
                checking.push_front(self.check(ready.drain(..).collect(), &stop));
            }
            if marks.is_empty()
                && let Some(posts) = window.ask()
            {
                marks.push(mark(self.space.clone(), self.connection.clone(), posts));
            }
            let busy = !under_way.is_empty() || !checking.is_empty();
            let gather = if busy { GATHER } else { Gather::default() };
            let settled = self.tracker.done();
            let takes = ready.is_empty() && under_way.len() < BATCH && checking.len() < CHECKS;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.beat.answered() => {}
                () = self.tracker.look(0) => {}
                Some(routed) = under_way.next(), if !under_way.is_empty() => {
                    self.settle(routed).await;
                    window.confirmed();
                }
                Some((posts, seq)) = marks.next(), if !marks.is_empty() => {
                    self.reader.announce(seq);
                    window.mark(posts, seq);
                }
                () = self.reader.changed(), if !window.has_space() => {}
                () = self.joins.passed(hold.unwrap_or_else(Instant::now)), if hold.is_some() => {}
                Some((posts, _)) = checking.next(), if !checking.is_empty() => ready.extend(posts),
                pulled = self.pulls.next(&mut self.gate, want, gather, || {
                    self.space.fanout_config(Some(settled + 1))
                }), if takes => {
                    let Pulled { recreated, deliveries } = pulled?;
                    if let Some(first) = recreated {
                        self.tracker.recreated(first);
                    }
                    self.tracker.arrived(&deliveries);
                    let posts = self.read_all(deliveries).await;
                    checking.push_back(self.check(posts, &stop));
                }
            }
        }
        self.wind_up(ready, checking, under_way).await;
        Ok(())
    }

    /// Takes nothing more, settles what is under way, and returns the rest.
    async fn wind_up(
        mut self,
        mut ready: VecDeque<Routable>,
        mut checking: impl Stream<Item = (Vec<Routable>, bool)> + Unpin,
        mut under_way: impl Stream<Item = Routed> + Unpin,
    ) {
        let mut left = self.pulls.end(&self.gate).await;
        while let Some((posts, _)) = checking.next().await {
            ready.extend(posts);
        }
        left.add(ready.into_iter().map(|post| post.delivery));
        while let Some(routed) = under_way.next().await {
            self.settle(routed).await;
        }
        self.pulls.give_back(left, &self.gate).await;
    }

    fn check(
        &self,
        posts: Vec<Routable>,
        stop: &CancellationToken,
    ) -> impl Future<Output = (Vec<Routable>, bool)> + use<> {
        let (gate, view) = (self.gate.clone(), Arc::clone(&self.view));
        check(gate, view, self.space.clone(), posts, stop.clone())
    }

    async fn read_all(&mut self, batch: Vec<Delivery>) -> Vec<Routable> {
        let mut posts = Vec::with_capacity(batch.len());
        for delivery in batch {
            posts.extend(self.read(delivery).await);
        }
        posts
    }

    /// Reads a post, or ends one that can never be routed (FAN-6).
    async fn read(&mut self, delivery: Delivery) -> Option<Routable> {
        let why = match self.space.parse_chat(&delivery.subject) {
            Some((sender, channel)) if sender.has_real_owner() => {
                match envelope::parse_post(&delivery.payload, &sender, &channel) {
                    Ok(head) => {
                        return Some(Routable { delivery, sender, channel, head });
                    }
                    Err(error) => error.to_string(),
                }
            }
            _ => "its subject names no sender and channel".to_owned(),
        };
        let seq = delivery.stream_seq;
        warn!(space = %self.space, seq, why, "a post is refused for good");
        add(&self.counters.refused_posts, 1);
        self.tracker.dealt_with(seq);
        log_failure(&self.space, "end a post", delivery.term().await);
        None
    }

    /// Plans a post and hands its copies to the writer. `None` when it is settled already.
    async fn route(&mut self, post: Routable) -> Option<(Delivery, usize, Ticket)> {
        let Routable { delivery, sender, channel, head } = post;
        let seq = delivery.stream_seq;
        let post = Post { seq, sender: &sender, channel: &channel, mentions: &head.mentions };
        let plan = match self.plan(&post).await {
            Ok(plan) => plan,
            Err(error) => {
                warn!(space = %self.space, seq, %error, "a post waits: a membership is unknown");
                log_failure(&self.space, "return a post", delivery.nak(Some(RETRY)).await);
                return None;
            }
        };
        add(&self.counters.posts, 1);
        if plan.copies.is_empty() {
            self.tracker.dealt_with(seq);
            log_failure(&self.space, "ack a post", delivery.ack().await);
            return None;
        }
        let copies = plan.copies.len();
        let made =
            make_copies(&self.space, &delivery.payload, seq, &channel, &sender, &head, &plan);
        match self.writer.submit(made).await {
            Ok(ticket) => Some((delivery, copies, ticket)),
            Err(error) => {
                warn!(space = %self.space, seq, %error, "a post's copies wait");
                log_failure(&self.space, "return a post", delivery.nak(Some(RETRY)).await);
                None
            }
        }
    }

    /// Plans a post; where a rejoin hides an earlier interval, the bucket's history is read first.
    async fn plan(&mut self, post: &Post<'_>) -> Result<Plan, NatsError> {
        let plan = self.view.plan(post);
        if plan.unsure.is_empty() {
            return Ok(plan);
        }
        for member in &plan.unsure {
            self.view.learn(post.channel, member).await?;
        }
        Ok(self.view.plan(post))
    }

    async fn settle(&mut self, routed: Routed) {
        let Routed { delivery, copies, outcome } = routed;
        let seq = delivery.stream_seq;
        if !self.gate.is_open() {
            return;
        }
        let failed = outcome.err().map(|error| error.failed).unwrap_or_default();
        add(&self.counters.copies, (copies - failed.len().min(copies)) as u64);
        let (too_large, other): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|(_, error)| matches!(error, NatsError::TooLarge { .. }));
        if !too_large.is_empty() {
            let lost = too_large.len();
            add(&self.counters.given_up, lost as u64);
            tracing::error!(space = %self.space, seq, lost, "copies are too large for INBOX and given up");
        }
        let answer = if let Some((_, error)) = other.first() {
            let failed = other.len();
            warn!(space = %self.space, seq, failed, %error, "copies are unconfirmed; the post is retried");
            delivery.nak(Some(RETRY)).await
        } else {
            self.tracker.dealt_with(seq);
            delivery.ack().await
        };
        log_failure(&self.space, "settle a post", answer);
    }
}

/// Waits until the lane serves and the view is as current as the newest of `posts`; `false` when told
/// to stop instead.
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
                        log_failure(&space, "extend a post", post.delivery.progress().await);
                    }
                }
            },
        }
    }
}

/// Presence is asked only when a mention may need it, because it changes all the time.
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

/// Reads the last sequence of INBOX, for the `posts` that were confirmed before.
async fn mark(space: Space, connection: Connection, posts: u64) -> (u64, u64) {
    let inbox = space.inbox_stream();
    loop {
        match connection.last_seq(&inbox).await {
            Ok(seq) => return (posts, seq),
            Err(error) => {
                warn!(%space, %error, "posts wait: INBOX does not answer");
                tokio::time::sleep(MARK_AGAIN).await;
            }
        }
    }
}

/// Waits for a post's copies, telling the broker now and then that it is still worked on.
async fn finish((delivery, copies, mut ticket): (Delivery, usize, Ticket)) -> Routed {
    loop {
        tokio::select! {
            outcome = &mut ticket => return Routed { delivery, copies, outcome },
            () = tokio::time::sleep(PROGRESS_EVERY) => {
                if let Err(error) = delivery.progress().await {
                    debug!(%error, "a post could not be extended");
                }
            }
        }
    }
}

/// Follows the cost of posts: as many as give about [`COPIES_PER_BATCH`] copies.
fn batch_size(copies_per_post: usize) -> usize {
    (COPIES_PER_BATCH / copies_per_post.max(1)).clamp(1, BATCH)
}
