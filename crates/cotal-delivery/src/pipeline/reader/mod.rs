//! The trusted reader: re-authorizes each entry against what the member may read now, and hands the
//! authorized copy to the member's own delivery stream.
//!
//! Invariant: an entry is acked only when its end is proven: its copy is confirmed in DLV, or the
//! member may not read it, or it is recorded in the dead bucket (`docs/wire.md` §3). A lane that does
//! not serve any more releases nothing and answers for no entry: the daemon that serves next gets it.

pub(crate) mod discarded;
pub(crate) mod judge;
pub(crate) mod retired;
pub(crate) mod start;
pub(crate) mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cotal_nats::{BatchError, Delivery, Gather, NatsError, Outgoing, PullError, Ticket, Writer};
use cotal_rules::authorize::{DenyReason, Verdict};
use cotal_rules::waiting::{Wait, Waiting};
use cotal_wire::control::WaitingEntry;
use cotal_wire::envelope::{self, InboxEntry};
use cotal_wire::names::SEQ_HEADER;
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Lifecycle, Space};
use futures_util::stream::FuturesOrdered;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::clock::now_ms;
use crate::consumer::answers::log_failure;
use crate::consumer::pull_source::PullSource;
use crate::counters::{Counters, add};
use crate::lease::gate::Gate;
use crate::loop_progress::LoopReporter;
use crate::pipeline::overflow::OverflowReports;
use crate::pipeline::parked::{self, About, DeadStore};
use crate::pipeline::progress::{Batches, ReaderProgress};
use crate::pipeline::reader::retired::Remover;
use crate::pipeline::reader::waiting::WaitingList;
use crate::state::view::{Feed, View};
use discarded::DiscardScan;
use judge::judge;

/// Most entries taken at once.
const BATCH: usize = 1_000;
/// While batches are under way, a batch this large does not wait for more: each costs a round trip.
const GATHER: Gather = Gather { enough: 256, within: Duration::from_millis(5) };
/// Batches being proven fresh or handed off at once, so that nobody waits for a round trip; with
/// [`BATCH`] it stays below the consumer's 10,000 unacknowledged entries.
const BATCHES: usize = 6;
/// Records of entries that leave the reader, under way at once.
const RECORDS: usize = 64;
/// Removals for retired lifecycles under way at once.
const REMOVALS: usize = 64;

/// Everything the reader needs.
pub(crate) struct Reader {
    pub(crate) space: Space,
    pub(crate) view: Arc<View>,
    pub(crate) writer: Writer,
    pub(crate) pulls: PullSource,
    pub(crate) gate: Gate,
    pub(crate) counters: Arc<Counters>,
    pub(crate) progress: Arc<watch::Sender<ReaderProgress>>,
    pub(crate) batches: Arc<watch::Sender<Batches>>,
    pub(crate) dead: DeadStore,
    pub(crate) overflow: OverflowReports,
    pub(crate) waiting: Waiting,
    /// Entries that were waiting_list to the consumer; where to go on if it vanishes.
    pub(crate) waiting_list: WaitingList,
    /// The last entry settled before this lane.
    pub(crate) floor: u64,
    pub(crate) remover: Remover,
    /// Removals under way.
    pub(crate) removals: JoinSet<Removed>,
    /// Records of the dead bucket under way.
    pub(crate) records: JoinSet<Recorded>,
    /// DiscardScan for waiting entries that the store's cap took.
    pub(crate) discard_scan: DiscardScan,
    pub(crate) beat: LoopReporter,
}

/// An entry that leaves the reader, and whether the dead bucket holds it.
pub(crate) struct Recorded {
    delivery: Delivery,
    state: DeadState,
    recorded: Result<(), NatsError>,
}

/// An entry and what became of its removal.
pub(crate) type Removed = (Read, Result<(), NatsError>);

/// An entry that has been read.
pub(crate) struct Read {
    delivery: Delivery,
    member: Lifecycle,
    entry: InboxEntry,
}

/// A batch as it was taken: the last sequence it was taken with, and what was left behind it.
struct Batch {
    entries: Vec<Read>,
    last: u64,
    pending: u64,
}

/// A batch whose copies are under way; `entries` and `copies` run in parallel.
struct HandOff {
    entries: Vec<Read>,
    outcome: Result<(), BatchError>,
    last: u64,
    pending: u64,
}

impl Reader {
    /// Reads entries until told to stop; then finishes what is under way.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), PullError> {
        let mut checking = FuturesOrdered::new();
        let mut under_way = FuturesOrdered::new();
        let mut untouched = Vec::new();
        let mut look = tokio::time::interval(discarded::DISCARD_SCAN_EVERY);
        loop {
            let batches = checking.len() + under_way.len();
            let gather = if batches == 0 { Gather::default() } else { GATHER };
            let batch = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.beat.answered() => continue,
                Some(done) = under_way.next(), if !under_way.is_empty() => {
                    self.settle(done, batches == 1).await;
                    continue;
                }
                Some(checked) = checking.next(), if !checking.is_empty() => match checked {
                    // It was fresh when it was proven; meanwhile the process may have been paused.
                    (batch, true) if !self.gate.is_open() => {
                        checking.push_front(self.check(batch, &stop));
                        continue;
                    }
                    (batch, true) => {
                        under_way.extend(self.hand_off(batch).await);
                        continue;
                    }
                    (batch, false) => {
                        untouched.extend(batch.entries);
                        break;
                    }
                },
                Some(Ok(recorded_in_dead)) = self.records.join_next(), if !self.records.is_empty() => {
                    self.recorded_in_dead(recorded_in_dead).await;
                    continue;
                }
                Some(Ok(removed)) = self.removals.join_next(), if !self.removals.is_empty() => {
                    self.removed(removed).await;
                    continue;
                }
                _ = look.tick(), if self.discard_scan.is_idle() && !self.waiting.is_empty() => {
                    self.discard_scan.begin(self.waiting.lowest());
                    continue;
                }
                found = self.discard_scan.found(), if !self.discard_scan.is_idle() => {
                    self.forget_evicted(found);
                    continue;
                }
                batch = self.pulls.next(&mut self.gate, BATCH, gather, || {
                    let settled = self.floor.max(self.progress.borrow().taken);
                    resume_at(&self.space, &self.waiting_list, settled)
                }), if batches < BATCHES => batch?,
            };
            let Some(last) = batch.last() else { continue };
            let (last, pending) = (last.stream_seq, last.pending);
            self.progress.send_modify(|p| p.idle = false);
            let batch = Batch { entries: self.read_all(batch).await, last, pending };
            checking.push_back(self.check(batch, &stop));
        }
        self.wind_up(untouched, checking, under_way).await;
        Ok(())
    }

    /// Takes nothing more, settles what is under way, and returns the rest.
    async fn wind_up(
        mut self,
        mut untouched: Vec<Read>,
        mut checking: impl Stream<Item = (Batch, bool)> + Unpin,
        mut under_way: impl Stream<Item = HandOff> + Unpin,
    ) {
        let mut left = self.pulls.end(&self.gate).await;
        while let Some((batch, _)) = checking.next().await {
            untouched.extend(batch.entries);
        }
        left.add(untouched.into_iter().map(|read| read.delivery));
        while let Some(done) = under_way.next().await {
            self.settle(done, false).await;
        }
        self.pulls.give_back(left, &self.gate).await;
        while let Some(Ok(recorded_in_dead)) = self.records.join_next().await {
            self.recorded_in_dead(recorded_in_dead).await;
        }
        while let Some(Ok(removed)) = self.removals.join_next().await {
            self.removed(removed).await;
        }
    }

    fn check(
        &self,
        batch: Batch,
        stop: &CancellationToken,
    ) -> impl Future<Output = (Batch, bool)> + use<> {
        let (gate, view) = (self.gate.clone(), Arc::clone(&self.view));
        check(gate, view, self.space.clone(), batch, stop.clone())
    }

    /// Judges a batch and hands its copies to the writer. `None` when it is settled already.
    async fn hand_off(&mut self, batch: Batch) -> Option<impl Future<Output = HandOff> + use<>> {
        let Batch { entries, last, pending } = batch;
        let (entries, copies) = self.judge_all(entries).await;
        match self.writer.submit(copies).await {
            Ok(ticket) => Some(finish(entries, ticket, last, pending)),
            Err(error) => {
                self.all_wait(entries, &error).await;
                self.batches.send_modify(|batches| batches.settled += 1);
                None
            }
        }
    }

    async fn read_all(&self, batch: Vec<Delivery>) -> Vec<Read> {
        let mut entries = Vec::with_capacity(batch.len());
        for delivery in batch {
            entries.extend(self.read(delivery).await);
        }
        entries
    }

    /// Reads an entry, or ends what is none: only the daemon writes INBOX, so this is a forgery that
    /// a broker reply put there.
    async fn read(&self, delivery: Delivery) -> Option<Read> {
        let member = self.space.parse_dinbox(&delivery.subject);
        match (member, envelope::parse_entry(&delivery.payload)) {
            (Some(member), Ok(entry)) => {
                return Some(Read { delivery, member, entry });
            }
            (member, entry) => {
                let why = entry.err().map(|e| e.to_string());
                warn!(
                    space = %self.space, seq = delivery.stream_seq, ?member, why,
                    "an entry that the daemon did not write is ended"
                );
            }
        }
        add(&self.counters.denied, 1);
        log_failure(&self.space, "end an entry", delivery.term().await);
        None
    }

    /// Judges a batch; where a rejoin hides an earlier interval, the bucket's history is read and
    /// the entry is judged once more. An entry whose history cannot be read waits.
    async fn verdicts(&self, entries: &[Read]) -> Vec<Option<Verdict>> {
        let mut verdicts: Vec<_> = {
            let directory = self.view.directory();
            // Counted under the lock: an ACL that changes after it is judged by a later batch.
            self.batches.send_modify(|batches| batches.judged += 1);
            entries.iter().map(|it| Some(judge(&it.member, &it.entry, &directory))).collect()
        };
        let unsure = Some(Verdict::Deny(DenyReason::EarlierGeneration));
        for (read, verdict) in entries.iter().zip(&mut verdicts) {
            if *verdict == unsure {
                *verdict = match self.view.learn(&read.entry.channel, &read.member).await {
                    Ok(()) => Some(judge(&read.member, &read.entry, &self.view.directory())),
                    Err(error) => {
                        warn!(space = %self.space, %error, "an entry waits: its membership is unknown");
                        None
                    }
                };
            }
        }
        verdicts
    }

    /// Decides every entry of a batch against one state of the view.
    async fn judge_all(&mut self, entries: Vec<Read>) -> (Vec<Read>, Vec<Outgoing>) {
        let verdicts = self.verdicts(&entries).await;
        let mut released = Vec::with_capacity(entries.len());
        let mut copies = Vec::with_capacity(entries.len());
        for (read, verdict) in entries.into_iter().zip(verdicts) {
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
                    let Read { delivery, member, entry } = read;
                    self.no_longer_waits(&member, delivery.stream_seq);
                    debug!(
                        space = %self.space, %member.principal, channel = %entry.channel,
                        seq = entry.seq, ?reason, "an entry is not released"
                    );
                    self.end(delivery, &self.counters.denied).await;
                }
                Verdict::Retired => self.remove(read).await,
                Verdict::NoAclRow => self.wait(read, DeadReason::NoAclRow).await,
                // Its leave takes longer than a batch is held for.
                Verdict::Leaving => self.wait(read, DeadReason::HandoffFailed).await,
            }
        }
        (released, copies)
    }

    /// Starts the removal of an entry of a retired lifecycle (RDR-4).
    async fn remove(&mut self, read: Read) {
        if self.removals.len() >= REMOVALS
            && let Some(Ok(removed)) = self.removals.join_next().await
        {
            self.removed(removed).await;
        }
        let remover = self.remover.clone();
        self.removals.spawn(async move {
            let seq = read.delivery.stream_seq;
            let outcome = remover.remove(&read.member, &read.entry, seq).await;
            (read, outcome)
        });
    }

    /// Acks a removed entry. One whose removal was under way when serving stopped is left as it is,
    /// so that the daemon that serves next meets it again (RDR-6).
    async fn removed(&mut self, (read, outcome): Removed) {
        if !self.gate.is_open() {
            return;
        }
        match outcome {
            Ok(()) => {
                self.no_longer_waits(&read.member, read.delivery.stream_seq);
                self.end(read.delivery, &self.counters.denied).await;
            }
            Err(error) => {
                warn!(
                    space = %self.space, %error, seq = read.delivery.stream_seq,
                    "an entry of a retired lifecycle could not be removed and is retried"
                );
                self.wait(read, DeadReason::DeleteFailed).await;
            }
        }
    }

    fn copy(&self, read: &Read) -> Outgoing {
        Outgoing {
            subject: self.space.dlv(&read.member).into(),
            msg_id: read.delivery.msg_id().map(str::to_owned),
            number: Some((SEQ_HEADER, read.entry.seq)),
            payload: read.entry.msg.clone(),
        }
    }

    async fn end(&self, delivery: Delivery, count: &AtomicU64) {
        if !self.gate.is_open() {
            return;
        }
        add(count, 1);
        log_failure(&self.space, "ack an entry", delivery.ack().await);
    }

    async fn settle(&mut self, done: HandOff, last_one: bool) {
        let HandOff { entries, outcome, last, pending } = done;
        let failed = outcome.err().map(|error| error.failed).unwrap_or_default();
        self.hand_offs(&entries, &failed);
        let mut failures = failed.into_iter().peekable();
        for (index, read) in entries.into_iter().enumerate() {
            match failures.next_if(|(failed, _)| *failed == index) {
                None => self.delivered(read).await,
                Some((_, NatsError::TooLarge { .. })) => {
                    self.give_up(read, DeadReason::TooLarge).await;
                }
                Some((_, error)) => {
                    warn!(space = %self.space, %error, seq = read.entry.seq, "a hand-off failed");
                    self.wait(read, DeadReason::HandoffFailed).await;
                }
            }
        }
        self.batches.send_modify(|batches| batches.settled += 1);
        self.count_waiting();
        self.progress.send_modify(|progress| {
            progress.taken = progress.taken.max(last);
            progress.idle = pending == 0 && last_one;
        });
    }

    fn hand_offs(&self, entries: &[Read], failed: &[(usize, NatsError)]) {
        let stored = |index: &usize| !failed.iter().any(|(at, _)| at == index);
        let members =
            entries.iter().enumerate().filter(|(index, _)| failed.is_empty() || stored(index));
        self.overflow.handed_off(members.map(|(_, read)| &read.member));
    }

    async fn delivered(&mut self, read: Read) {
        if read.delivery.delivered > 1 {
            self.no_longer_waits(&read.member, read.delivery.stream_seq);
        }
        self.end(read.delivery, &self.counters.delivered).await;
    }

    fn forget_evicted(&mut self, found: Vec<(Lifecycle, u64)>) {
        for (owner, first_held) in found {
            let lost = self.waiting.release_below(&owner, first_held);
            lost.iter().for_each(|seq| self.waiting_list.forget(*seq));
            if !lost.is_empty() {
                discarded::tell(&self.space, &self.counters, &owner, lost.len());
            }
        }
        self.count_waiting();
    }

    fn count_waiting(&self) {
        let waiting = self.waiting.len() as u64;
        self.counters.waiting.store(waiting, Ordering::Relaxed);
    }

    fn no_longer_waits(&mut self, member: &Lifecycle, seq: u64) {
        if self.waiting.release(member, seq) {
            self.waiting_list.forget(seq);
        }
    }

    async fn all_wait(&mut self, entries: Vec<Read>, error: &NatsError) {
        warn!(space = %self.space, %error, "hand-offs wait");
        for read in entries {
            self.wait(read, DeadReason::HandoffFailed).await;
        }
    }

    /// Retries later, parks, or gives up: by the rules, and never at another owner's cost.
    async fn wait(&mut self, read: Read, reason: DeadReason) {
        if !self.gate.is_open() {
            return;
        }
        let Read { delivery, member, entry } = read;
        let (seq, attempt) = (delivery.stream_seq, delivery.delivered);
        let now = now_ms();
        match self.waiting.on_wait(&member, seq, attempt, now) {
            Wait::Retry { delay_ms } => {
                self.waiting_list.note(WaitingEntry {
                    seq,
                    member: member.principal.clone(),
                    channel: entry.channel.clone(),
                    chat_seq: entry.seq,
                    reason,
                    attempts: attempt,
                    first_at: now,
                });
                let delay = Duration::from_millis(delay_ms.unsigned_abs());
                log_failure(&self.space, "return an entry", delivery.nak(Some(delay)).await);
            }
            Wait::Park { next_at } => {
                self.waiting_list.forget(seq);
                let about =
                    About { seq, member: &member, entry: &entry, reason, attempts: attempt };
                self.book(delivery, parked::parked(&about, now, next_at)).await;
            }
            Wait::GiveUp => self.give_up(Read { delivery, member, entry }, reason).await,
        }
    }

    async fn give_up(&mut self, read: Read, reason: DeadReason) {
        if !self.gate.is_open() {
            return;
        }
        let Read { delivery, member, entry } = read;
        let (seq, attempts) = (delivery.stream_seq, delivery.delivered);
        error!(
            space = %self.space, %member.principal, channel = %entry.channel, seq = entry.seq,
            ?reason, attempts, "an entry is given up; `cotal dead` lists it"
        );
        self.no_longer_waits(&member, seq);
        let about = About { seq, member: &member, entry: &entry, reason, attempts };
        self.book(delivery, parked::given_up(&about, now_ms())).await;
    }

    /// Starts to record an entry that leaves the reader; what comes behind it does not wait for that.
    async fn book(&mut self, delivery: Delivery, row: DeadRow) {
        if self.records.len() >= RECORDS
            && let Some(Ok(recorded_in_dead)) = self.records.join_next().await
        {
            self.recorded_in_dead(recorded_in_dead).await;
        }
        let dead = self.dead.clone();
        self.records.spawn(async move {
            let recorded = dead.record(&row).await;
            Recorded { delivery, state: row.state, recorded }
        });
    }

    /// Acks an entry that the dead bucket now holds; one that it does not hold comes again.
    async fn recorded_in_dead(&self, recorded_in_dead: Recorded) {
        let Recorded { delivery, state, recorded } = recorded_in_dead;
        if !self.gate.is_open() {
            return;
        }
        match recorded {
            Ok(()) => {
                add(&self.counters.given_up, u64::from(state == DeadState::GivenUp));
                log_failure(&self.space, "ack an entry", delivery.ack().await);
            }
            Err(error) => {
                warn!(space = %self.space, %error, "an entry could not be recorded and comes again");
                let again = delivery.nak(Some(Duration::from_secs(2))).await;
                log_failure(&self.space, "return an entry", again);
            }
        }
    }
}

/// Waits until the lane serves and the view is as current as the newest entry of a batch; `false`
/// when told to stop instead.
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
                let entries = batch.entries.iter();
                view.leaves_passed(entries.map(|read| (&read.member, &read.entry))).await
            } => match fresh {
                Ok(()) => return (batch, true),
                Err(error) => {
                    warn!(%space, %error, "entries wait: the view is not current");
                    for read in &batch.entries {
                        let extended = read.delivery.progress().await;
                        log_failure(&space, "extend an entry", extended);
                    }
                }
            },
        }
    }
}

/// A consumer that begins with the first entry that is not settled.
fn resume_at(space: &Space, waiting_list: &WaitingList, settled: u64) -> ConsumerConfig {
    ConsumerConfig {
        deliver_policy: "by_start_sequence".into(),
        opt_start_seq: Some(waiting_list.first().unwrap_or(settled + 1)),
        ..space.reader_config()
    }
}

async fn finish(entries: Vec<Read>, ticket: Ticket, last: u64, pending: u64) -> HandOff {
    HandOff { entries, outcome: ticket.await, last, pending }
}
