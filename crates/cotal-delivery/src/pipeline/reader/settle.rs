//! How an entry ends, or waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cotal_nats::{Delivery, NatsError};
use cotal_rules::waiting::Wait;
use cotal_wire::Lifecycle;
use cotal_wire::control::WaitingEntry;
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use tracing::{error, warn};

use super::{HandOff, Read, Reader, discarded};
use crate::clock::now_ms;
use crate::consumer::answers::log_failure;
use crate::counters::{Counters, add};
use crate::pipeline::parked::{self, About};

/// Records of entries that leave the reader, under way at once.
const RECORDS: usize = 64;
/// Removals for retired lifecycles under way at once.
const REMOVALS: usize = 64;
/// When an entry comes again that the dead bucket did not take.
const RECORD_AGAIN: Duration = Duration::from_secs(2);

/// An entry that leaves the reader, and whether the dead bucket holds it.
pub(super) struct Recorded {
    delivery: Delivery,
    state: DeadState,
    outcome: Result<(), NatsError>,
}

/// An entry and what became of its removal.
pub(super) type Removed = (Read, Result<(), NatsError>);

impl Reader {
    /// Settles a batch whose copies are confirmed or refused.
    pub(super) async fn settle(&mut self, done: HandOff) {
        let HandOff { entries, outcome, in_flight } = done;
        let failed = outcome.err().map(|error| error.failed).unwrap_or_default();
        self.count_hand_offs(&entries, &failed);
        let mut failures = failed.into_iter().peekable();
        for (index, read) in entries.into_iter().enumerate() {
            match failures.next_if(|(failed, _)| *failed == index) {
                None => self.delivered(read).await,
                Some((_, NatsError::TooLarge { .. })) => {
                    self.give_up(read, DeadReason::TooLarge).await;
                }
                Some((_, error)) => {
                    warn!(space = %self.parts.space, %error, seq = read.entry.seq, "a hand-off failed");
                    self.wait(read, DeadReason::HandoffFailed).await;
                }
            }
        }
        drop(in_flight);
        self.count_waiting();
    }

    fn count_hand_offs(&self, entries: &[Read], failed: &[(usize, NatsError)]) {
        let stored = |index: &usize| !failed.iter().any(|(at, _)| at == index);
        let members =
            entries.iter().enumerate().filter(|(index, _)| failed.is_empty() || stored(index));
        self.parts.overflow.handed_off(members.map(|(_, read)| &read.member));
    }

    async fn delivered(&mut self, read: Read) {
        if read.delivery.delivered > 1 {
            self.no_longer_waits(&read.member, read.delivery.stream_seq);
        }
        self.end(read.delivery, |counters| &counters.delivered).await;
    }

    /// Acks an entry whose end is proven.
    pub(super) async fn end(
        &mut self,
        delivery: Delivery,
        count: impl Fn(&Counters) -> &AtomicU64,
    ) {
        if !self.parts.gate.is_open() {
            return;
        }
        add(count(&self.parts.counters), 1);
        self.parts.tracker.dealt_with(delivery.stream_seq);
        log_failure(&self.parts.space, "ack an entry", delivery.ack().await);
    }

    /// Starts the removal of an entry of a retired lifecycle (RDR-4).
    pub(super) async fn remove(&mut self, read: Read) {
        if self.removals.len() >= REMOVALS
            && let Some(Ok(removed)) = self.removals.join_next().await
        {
            self.removed(removed).await;
        }
        let remover = self.parts.remover.clone();
        self.removals.spawn(async move {
            let seq = read.delivery.stream_seq;
            let outcome = remover.remove(&read.member, &read.entry, seq).await;
            (read, outcome)
        });
    }

    /// Acks a removed entry. One whose removal was under way when serving stopped is left as it is,
    /// so that the daemon that serves next meets it again (RDR-6).
    pub(super) async fn removed(&mut self, (read, outcome): Removed) {
        if !self.parts.gate.is_open() {
            return;
        }
        match outcome {
            Ok(()) => {
                self.no_longer_waits(&read.member, read.delivery.stream_seq);
                self.end(read.delivery, |counters| &counters.denied).await;
            }
            Err(error) => {
                warn!(
                    space = %self.parts.space, %error, seq = read.delivery.stream_seq,
                    "an entry of a retired lifecycle could not be removed and is retried"
                );
                self.wait(read, DeadReason::DeleteFailed).await;
            }
        }
    }

    /// Frees the slots of waiting entries that INBOX holds no more.
    pub(super) fn forget_evicted(&mut self, found: Vec<(Lifecycle, u64)>) {
        for (owner, first_held) in found {
            let lost = self.waiting.release_below(&owner, first_held);
            lost.iter().for_each(|seq| self.parts.waiting_list.forget(*seq));
            if !lost.is_empty() {
                discarded::tell(&self.parts.space, &self.parts.counters, &owner, lost.len());
            }
        }
        self.count_waiting();
    }

    fn count_waiting(&self) {
        let waiting = self.waiting.len() as u64;
        self.parts.counters.waiting.store(waiting, Ordering::Relaxed);
    }

    pub(super) fn no_longer_waits(&mut self, member: &Lifecycle, seq: u64) {
        if self.waiting.release(member, seq) {
            self.parts.waiting_list.forget(seq);
        }
    }

    pub(super) async fn all_wait(&mut self, entries: Vec<Read>, error: &NatsError) {
        warn!(space = %self.parts.space, %error, "hand-offs wait");
        for read in entries {
            self.wait(read, DeadReason::HandoffFailed).await;
        }
    }

    /// Retries later, parks, or gives up: by the rules, and never at another owner's cost. While
    /// progress is not proven nothing is held here: the ack floor could not pass it.
    pub(super) async fn wait(&mut self, read: Read, reason: DeadReason) {
        if !self.parts.gate.is_open() {
            return;
        }
        let Read { delivery, member, entry } = read;
        let (seq, attempt) = (delivery.stream_seq, delivery.delivered);
        let now = now_ms();
        let may_hold = self.parts.tracker.is_proven();
        match self.waiting.on_wait(&member, seq, attempt, may_hold, now) {
            Wait::Retry { delay_ms } => {
                self.parts.waiting_list.note(WaitingEntry {
                    seq,
                    member: member.principal.clone(),
                    channel: entry.channel.clone(),
                    chat_seq: entry.seq,
                    reason,
                    attempts: attempt,
                    first_at: now,
                });
                self.parts.tracker.dealt_with(seq);
                let delay = Duration::from_millis(delay_ms.unsigned_abs());
                log_failure(&self.parts.space, "return an entry", delivery.nak(Some(delay)).await);
            }
            Wait::Park { next_at } => {
                self.parts.waiting_list.forget(seq);
                let about =
                    About { seq, member: &member, entry: &entry, reason, attempts: attempt };
                self.record(delivery, parked::parked(&about, now, next_at)).await;
            }
            Wait::GiveUp => self.give_up(Read { delivery, member, entry }, reason).await,
        }
    }

    async fn give_up(&mut self, read: Read, reason: DeadReason) {
        if !self.parts.gate.is_open() {
            return;
        }
        let Read { delivery, member, entry } = read;
        let (seq, attempts) = (delivery.stream_seq, delivery.delivered);
        error!(
            space = %self.parts.space, %member.principal, channel = %entry.channel,
            seq = entry.seq, ?reason, attempts, "an entry is given up; `cotal dead` lists it"
        );
        self.no_longer_waits(&member, seq);
        let about = About { seq, member: &member, entry: &entry, reason, attempts };
        self.record(delivery, parked::given_up(&about, now_ms())).await;
    }

    /// Starts to record an entry that leaves the reader; what comes behind it does not wait for that.
    async fn record(&mut self, delivery: Delivery, row: DeadRow) {
        if self.records.len() >= RECORDS
            && let Some(Ok(recorded)) = self.records.join_next().await
        {
            self.recorded(recorded).await;
        }
        let dead = self.parts.dead.clone();
        self.records.spawn(async move {
            let outcome = dead.record(&row).await;
            Recorded { delivery, state: row.state, outcome }
        });
    }

    /// Acks an entry that the dead bucket now holds; one that it does not hold comes again.
    pub(super) async fn recorded(&mut self, recorded: Recorded) {
        let Recorded { delivery, state, outcome } = recorded;
        if !self.parts.gate.is_open() {
            return;
        }
        match outcome {
            Ok(()) => {
                add(&self.parts.counters.given_up, u64::from(state == DeadState::GivenUp));
                self.parts.tracker.dealt_with(delivery.stream_seq);
                log_failure(&self.parts.space, "ack an entry", delivery.ack().await);
            }
            Err(error) => {
                warn!(
                    space = %self.parts.space, %error,
                    "an entry could not be recorded and comes again"
                );
                let again = delivery.nak(Some(RECORD_AGAIN)).await;
                log_failure(&self.parts.space, "return an entry", again);
            }
        }
    }
}
