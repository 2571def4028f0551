//! The trusted reader: judges each entry by what the member may read now, and hands the authorized
//! copy off to the member's part of DLV.
//!
//! Invariant: an entry is acked only when its end is proven: its copy is confirmed in DLV, or the
//! member may not read it, or it is recorded in the dead bucket (`docs/wire.md` §3). A lane that no
//! longer serves releases nothing and answers no entry: the daemon that serves next gets them.

pub(crate) mod discarded;
mod entry;
pub(crate) mod judge;
pub(crate) mod retired;
mod settle;
mod share;
pub(crate) mod start;
mod store_room;
pub(crate) mod waiting;

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Connection, Delivery, Gather, Outgoing, PullError, Writer};
use cotal_rules::authorize::{DenyReason, Verdict};
use cotal_rules::backoff::Backoff;
use cotal_wire::Space;
use cotal_wire::envelope;
use cotal_wire::names::SEQ_HEADER;
use cotal_wire::rows::DeadReason;
use cotal_wire::streams::ConsumerConfig;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::consumer::answers::log_failure;
use crate::consumer::pull_schedule::{Load, PullSchedule};
use crate::consumer::pull_source::{PullSource, Pulled};
use crate::consumer::tracker::Tracker;
use crate::counters::{Counters, add};
use crate::lease::gate::Gate;
use crate::loop_progress::LoopReporter;
use crate::pipeline::in_flight::{HandOffInFlight, InFlightFence};
use crate::pipeline::overflow::OverflowReports;
use crate::pipeline::parked::store::DeadStore;
use crate::pipeline::progress::ProgressPublisher;
use crate::state::view::{Feed, View};
use discarded::{DISCARD_SCAN_EVERY, DiscardScan, FirstHeld};
use entry::{Batch, HandOff, Read, Recorded, Removed};
use judge::judge;
use retired::Remover;
use store_room::Room;
use waiting::SharedWaiting;

/// Most entries pulled at once.
const BATCH: usize = 1_000;
/// Six batches are proven fresh or handed off at once, so that the round trips overlap. Six times
/// [`BATCH`] is below the consumer's 10,000 unacknowledged entries.
const SCHEDULE: PullSchedule =
    PullSchedule { batches: 6, gather: Gather { enough: 256, within: Duration::from_millis(5) } };

/// How often the broker is told that an entry is still in progress.
const EXTEND_EVERY: Duration = Duration::from_secs(15);

/// What the reader works with.
pub(crate) struct ReaderParts {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) writer: Writer,
    pub(crate) pulls: PullSource,
    pub(crate) tracker: Tracker,
    pub(crate) progress: ProgressPublisher,
    pub(crate) gate: Gate,
    pub(crate) counters: Arc<Counters>,
    pub(crate) in_flight: Arc<InFlightFence>,
    pub(crate) dead: DeadStore,
    pub(crate) overflow: OverflowReports,
    /// Entries that wait.
    pub(crate) waiting: SharedWaiting,
    pub(crate) remover: Remover,
    pub(crate) discard_scan: DiscardScan,
    pub(crate) reporter: LoopReporter,
}

/// The trusted reader.
pub(crate) struct Reader {
    parts: ReaderParts,
    /// Batches that wait until the view is proven current, in the order in which they were pulled.
    checking: FuturesOrdered<Soon<(Batch, bool)>>,
    /// Batches whose copies are in flight, in the same order.
    handing_off: FuturesOrdered<Soon<HandOff>>,
    /// Entries that DLV did not accept, until they are judged and handed off again. While DLV
    /// accepts nothing at all they stay here, unanswered. Then fan-out waits too, and CHAT keeps
    /// the posts.
    kept: Batch,
    try_again_at: Instant,
    backoff: Backoff,
    extend_due: Interval,
    /// Removals for retired lifecycles in progress.
    removals: JoinSet<Removed>,
    /// Writes to the dead bucket in progress.
    records: JoinSet<Recorded>,
    scan_due: Interval,
    /// What is known of members' stores.
    room: Room,
}

/// Work in progress.
type Soon<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What happened next.
enum Event {
    Stop,
    /// Nothing to decide: a call was answered, or the progress was updated.
    Nothing,
    HandedOff(HandOff),
    /// A batch, and whether the view is current enough to judge it.
    Checked(Batch, bool),
    Recorded(Recorded),
    Removed(Removed),
    ScanDue,
    Scanned(Vec<FirstHeld>),
    TryAgain,
    ExtendDue,
    Pulled(Pulled),
}

impl Reader {
    pub(crate) fn new(parts: ReaderParts) -> Self {
        Self {
            parts,
            checking: FuturesOrdered::new(),
            handing_off: FuturesOrdered::new(),
            kept: Vec::new(),
            try_again_at: Instant::now(),
            backoff: Backoff::default(),
            extend_due: interval(EXTEND_EVERY),
            removals: JoinSet::new(),
            records: JoinSet::new(),
            scan_due: interval(DISCARD_SCAN_EVERY),
            room: Room::default(),
        }
    }

    /// Reads entries until told to stop; then finishes those in progress.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), PullError> {
        let untouched = loop {
            self.parts.progress.publish(self.parts.tracker.done());
            let event = self.next_event(&stop).await?;
            if let ControlFlow::Break(untouched) = self.take(event, &stop).await {
                break untouched;
            }
        };
        self.wind_up(untouched).await;
        Ok(())
    }

    /// The next event. Every branch is cancel-safe, so no event is lost when another comes first.
    async fn next_event(&mut self, stop: &CancellationToken) -> Result<Event, PullError> {
        let under_way = self.checking.len() + self.handing_off.len();
        let batches = under_way + self.kept.len().div_ceil(BATCH);
        let pull = SCHEDULE.next(Load { batches, is_busy: under_way > 0 });
        let parts = &mut self.parts;
        let scan_is_idle = parts.discard_scan.is_idle();
        let (settled, awaited) = (parts.tracker.done(), parts.progress.awaited());
        let waits = !parts.waiting.lock().is_empty();
        Ok(tokio::select! {
            biased;
            () = stop.cancelled() => Event::Stop,
            () = parts.reporter.answered() => Event::Nothing,
            Some(done) = self.handing_off.next() => Event::HandedOff(done),
            Some((batch, is_fresh)) = self.checking.next() => Event::Checked(batch, is_fresh),
            Some(Ok(recorded)) = self.records.join_next() => Event::Recorded(recorded),
            Some(Ok(removed)) = self.removals.join_next() => Event::Removed(removed),
            () = parts.tracker.look(awaited) => Event::Nothing,
            () = parts.progress.awaited_changed() => Event::Nothing,
            _ = self.scan_due.tick(), if scan_is_idle && waits => Event::ScanDue,
            found = parts.discard_scan.found(), if !scan_is_idle => Event::Scanned(found),
            () = sleep_until(self.try_again_at), if !self.kept.is_empty() => Event::TryAgain,
            _ = self.extend_due.tick() => Event::ExtendDue,
            pulled = parts.pulls.next(&mut parts.gate, BATCH, pull.unwrap_or_default(), || {
                resume_at(&parts.space, &parts.waiting, settled)
            }), if pull.is_some() => Event::Pulled(pulled?),
        })
    }

    /// Handles an event. Breaks with the entries that were not judged.
    async fn take(&mut self, event: Event, stop: &CancellationToken) -> ControlFlow<Batch> {
        match event {
            Event::Stop => return ControlFlow::Break(Vec::new()),
            Event::Nothing => {}
            Event::HandedOff(done) => self.settle(done).await,
            Event::Checked(batch, false) => return ControlFlow::Break(batch),
            // The batch was current when that was proven. Since then the process may have been
            // paused.
            Event::Checked(batch, true) if !self.parts.gate.is_open() => {
                self.checking.push_front(self.check(batch, stop));
            }
            Event::Checked(batch, true) => self.hand_off(batch).await,
            Event::Recorded(recorded) => self.recorded(recorded).await,
            Event::Removed(removed) => self.removed(removed).await,
            Event::ScanDue => {
                let lowest = self.parts.waiting.lock().lowest();
                self.parts.discard_scan.begin(lowest);
            }
            Event::TryAgain => {
                let mut kept = std::mem::take(&mut self.kept);
                kept.sort_unstable_by_key(|read| read.delivery.stream_seq);
                self.checking.push_front(self.check(kept, stop));
            }
            Event::ExtendDue => self.extend().await,
            Event::Scanned(found) => self.forget_evicted(found),
            Event::Pulled(Pulled { recreated, deliveries }) => {
                if let Some(first) = recreated {
                    self.parts.tracker.recreated(first);
                }
                self.parts.tracker.arrived(&deliveries);
                let batch = self.read_all(deliveries).await;
                if !batch.is_empty() {
                    self.checking.push_back(self.check(batch, stop));
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Pulls no more entries, settles those in progress, and returns the rest to the broker.
    async fn wind_up(mut self, mut untouched: Batch) {
        let mut left = self.parts.pulls.end(&self.parts.gate).await;
        while let Some((batch, _)) = self.checking.next().await {
            untouched.extend(batch);
        }
        while let Some(done) = self.handing_off.next().await {
            self.settle(done).await;
        }
        untouched.append(&mut self.kept);
        left.add(untouched.into_iter().map(|read| read.delivery));
        self.parts.pulls.give_back(left, &self.parts.gate).await;
        while let Some(Ok(recorded)) = self.records.join_next().await {
            self.recorded(recorded).await;
        }
        while let Some(Ok(removed)) = self.removals.join_next().await {
            self.removed(removed).await;
        }
    }

    fn check(&self, batch: Batch, stop: &CancellationToken) -> Soon<(Batch, bool)> {
        let parts = &self.parts;
        let (gate, view) = (parts.gate.clone(), Arc::clone(&parts.view));
        Box::pin(check(gate, view, parts.space.clone(), batch, stop.clone()))
    }

    /// Judges a batch and gives its copies to the writer.
    async fn hand_off(&mut self, batch: Batch) {
        let (entries, copies, in_flight) = self.judge_all(batch).await;
        let (entries, copies) = self.make_room(entries, copies).await;
        if entries.is_empty() {
            return;
        }
        match self.parts.writer.submit(copies).await {
            Ok(ticket) => self.handing_off.push_back(Box::pin(async move {
                HandOff { entries, outcome: ticket.await, in_flight }
            })),
            Err(error) => self.keep(entries, &error),
        }
    }

    async fn read_all(&mut self, batch: Vec<Delivery>) -> Batch {
        let mut entries = Vec::with_capacity(batch.len());
        for delivery in batch {
            entries.extend(self.read(delivery).await);
        }
        entries
    }

    /// Parses an entry. One that cannot be parsed is terminated: only the daemon writes INBOX, so
    /// it is a forgery that came in through a broker reply.
    async fn read(&mut self, delivery: Delivery) -> Option<Read> {
        let parts = &mut self.parts;
        let member = parts.space.parse_dinbox(&delivery.subject);
        match (member, envelope::parse_entry(&delivery.payload)) {
            (Some(member), Ok(entry)) => {
                return Some(Read { delivery, member, entry, is_kept: false });
            }
            (member, entry) => {
                let why = entry.err().map(|e| e.to_string());
                warn!(
                    space = %parts.space, seq = delivery.stream_seq, ?member, why,
                    "an entry that the daemon did not write is terminated"
                );
            }
        }
        add(&parts.counters.denied, 1);
        parts.tracker.dealt_with(delivery.stream_seq);
        log_failure(&parts.space, "terminate an entry", delivery.term().await);
        None
    }

    /// Judges a batch. If a rejoin hides an earlier interval, the bucket's history is read and the
    /// entry is judged again. An entry whose history cannot be read waits.
    async fn verdicts(&mut self, entries: &[Read]) -> (Vec<Option<Verdict>>, HandOffInFlight) {
        let parts = &mut self.parts;
        let (mut verdicts, in_flight): (Vec<_>, _) = {
            let directory = parts.view.directory();
            // Begun under the lock, so an ACL that changes later is judged by a later batch.
            let in_flight = parts.in_flight.begin();
            let judged = entries.iter().map(|it| Some(judge(&it.member, &it.entry, &directory)));
            (judged.collect(), in_flight)
        };
        let unsure = Some(Verdict::Deny(DenyReason::EarlierGeneration));
        for (read, verdict) in entries.iter().zip(&mut verdicts) {
            if *verdict == unsure {
                *verdict = match parts.view.learn(&read.entry.channel, &read.member).await {
                    Ok(()) => Some(judge(&read.member, &read.entry, &parts.view.directory())),
                    Err(error) => {
                        warn!(space = %parts.space, %error, "an entry waits: its membership could not be read");
                        None
                    }
                };
            }
        }
        (verdicts, in_flight)
    }

    /// Judges every entry of a batch against one state of the view.
    async fn judge_all(&mut self, batch: Batch) -> (Vec<Read>, Vec<Outgoing>, HandOffInFlight) {
        let (verdicts, in_flight) = self.verdicts(&batch).await;
        let mut released = Vec::with_capacity(batch.len());
        let mut copies = Vec::with_capacity(batch.len());
        for (read, verdict) in batch.into_iter().zip(verdicts) {
            let Some(verdict) = verdict else {
                self.wait(read, DeadReason::HandoffFailed).await;
                continue;
            };
            match verdict {
                Verdict::Release => {
                    copies.push(self.copy(&read));
                    released.push(read);
                }
                Verdict::Deny(reason) => {
                    let Read { delivery, member, entry, .. } = read;
                    self.no_longer_waits(&member, delivery.stream_seq);
                    debug!(
                        space = %self.parts.space, %member.principal, channel = %entry.channel,
                        seq = entry.seq, ?reason, "an entry is not released"
                    );
                    self.end(delivery, |counters| &counters.denied).await;
                }
                Verdict::Retired => self.remove(read).await,
                Verdict::NoAclRow => self.wait(read, DeadReason::NoAclRow).await,
                // Its leave takes longer than the batch was held for it.
                Verdict::Leaving => self.wait(read, DeadReason::HandoffFailed).await,
            }
        }
        (released, copies, in_flight)
    }

    fn copy(&self, read: &Read) -> Outgoing {
        Outgoing {
            subject: self.parts.space.dlv(&read.member).into(),
            msg_id: read.delivery.msg_id().map(str::to_owned),
            number: Some((SEQ_HEADER, read.entry.seq)),
            payload: read.entry.msg.clone(),
        }
    }
}

/// Waits until the lane serves and the view is as current as the newest entry of the batch. The
/// flag is `false` if the reader was told to stop instead.
async fn check(
    mut gate: Gate,
    view: Arc<View>,
    space: Space,
    batch: Batch,
    stop: CancellationToken,
) -> (Batch, bool) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return (batch, false),
            fresh = async {
                gate.open().await;
                view.fresh(&[Feed::Members, Feed::Acl]).await?;
                let entries = batch.iter();
                view.leaves_passed(entries.map(|read| (&read.member, &read.entry))).await
            } => match fresh {
                Ok(()) => return (batch, true),
                Err(error) => {
                    warn!(%space, %error, "entries wait: the view is not current");
                    for read in &batch {
                        let extended = read.delivery.progress().await;
                        log_failure(&space, "extend the ack wait of an entry", extended);
                    }
                }
            },
        }
    }
}

/// The configuration of a consumer that begins with the first entry that is not settled.
fn resume_at(space: &Space, waiting: &SharedWaiting, settled: u64) -> ConsumerConfig {
    ConsumerConfig {
        deliver_policy: "by_start_sequence".into(),
        opt_start_seq: Some(waiting.lock().first().unwrap_or(settled + 1).min(settled + 1)),
        ..space.reader_config()
    }
}
