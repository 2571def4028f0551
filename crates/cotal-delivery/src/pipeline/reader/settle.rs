//! How an entry is settled, or waits.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cotal_nats::{Delivery, NatsError};
use cotal_rules::waiting::Wait;
use cotal_wire::Lifecycle;
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use tokio::time::Instant;
use tracing::{error, warn};

use super::entry::{HandOff, Read, Recorded, Removed};
use super::{Reader, discarded};
use crate::clock::now_ms;
use crate::consumer::answers::log_failure;
use crate::counters::{Counters, add};
use crate::pipeline::parked::store;

/// Most writes to the dead bucket in progress at once.
const RECORDS_AT_ONCE: usize = 64;
/// Most removals for retired lifecycles in progress at once.
const REMOVALS_AT_ONCE: usize = 64;
/// Delay before the redelivery of an entry that the dead bucket did not record.
const RECORD_RETRY_AFTER: Duration = Duration::from_secs(2);

impl Reader {
    /// Settles a batch whose copies are confirmed or refused.
    pub(super) async fn settle(&mut self, done: HandOff) {
        let HandOff { entries, outcome, in_flight } = done;
        let failed = outcome.err().map(|error| error.failed).unwrap_or_default();
        self.count_hand_offs(&entries, &failed);
        let takes_some = failed.len() < entries.len();
        let mut kept = Vec::new();
        let mut why = None;
        let mut failures = failed.into_iter().peekable();
        for (index, read) in entries.into_iter().enumerate() {
            match failures.next_if(|(failed, _)| *failed == index) {
                None => self.delivered(read).await,
                Some((_, NatsError::TooLarge { .. })) => {
                    self.give_up(read, DeadReason::TooLarge).await;
                }
                // DLV accepts other copies, so this entry waits alone and holds up no other.
                Some((_, error)) if takes_some => {
                    warn!(space = %self.parts.space, %error, seq = read.entry.seq, "a hand-off failed");
                    self.wait(read, DeadReason::HandoffFailed).await;
                }
                Some((_, error)) => {
                    kept.push(read);
                    why.get_or_insert(error);
                }
            }
        }
        drop(in_flight);
        if takes_some && self.backoff.failures() > 0 {
            self.backoff.reset();
            self.try_again_at = Instant::now();
        }
        if let Some(error) = why {
            self.keep(kept, &error);
        }
    }

    /// Keeps entries that DLV does not accept, until they are judged and handed off again.
    pub(super) fn keep(&mut self, entries: Vec<Read>, error: &NatsError) {
        if !self.parts.gate.is_open() {
            return;
        }
        if self.kept.is_empty() {
            let delay = self.backoff.next_delay();
            self.try_again_at = Instant::now() + delay;
            error!(
                space = %self.parts.space, %error, entries = entries.len(), ?delay,
                "copies could not be handed off; they wait, and nothing is delivered to any member"
            );
        }
        let now = now_ms();
        let mut waiting = self.parts.waiting.lock();
        for mut read in entries {
            read.is_kept = true;
            waiting.note(read.waits(DeadReason::HandoffFailed, now));
            self.kept.push(read);
        }
    }

    /// Tells the broker that the kept entries are still in progress.
    pub(super) async fn extend(&mut self) {
        for read in &self.kept {
            if !self.parts.gate.is_open() {
                return;
            }
            log_failure(
                &self.parts.space,
                "extend the ack wait of an entry",
                read.delivery.progress().await,
            );
        }
    }

    fn count_hand_offs(&self, entries: &[Read], failed: &[(usize, NatsError)]) {
        let stored = |index: &usize| !failed.iter().any(|(at, _)| at == index);
        let members =
            entries.iter().enumerate().filter(|(index, _)| failed.is_empty() || stored(index));
        self.parts.overflow.handed_off(members.map(|(_, read)| &read.member));
    }

    async fn delivered(&mut self, read: Read) {
        if read.delivery.delivered > 1 || read.is_kept {
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
        if self.removals.len() >= REMOVALS_AT_ONCE
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

    /// Acks a removed entry. If serving stopped during the removal, the entry is not answered, so
    /// that the daemon that serves next gets it again (RDR-6).
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

    /// Frees the slots of waiting entries that INBOX no longer holds.
    pub(super) fn forget_evicted(&mut self, found: Vec<(Lifecycle, u64)>) {
        for (owner, first_held) in found {
            let gone = self.parts.waiting.lock().release_below(&owner, first_held);
            add(&self.parts.counters.denied, gone.removed as u64);
            if gone.evicted > 0 {
                discarded::tell(&self.parts.space, &self.parts.counters, &owner, gone.evicted);
            }
        }
    }

    pub(super) fn no_longer_waits(&mut self, member: &Lifecycle, seq: u64) {
        self.parts.waiting.lock().release(member, seq);
    }

    /// Returns an entry for a later retry, parks it, or gives it up, by the rules, so that no
    /// owner's entries hold up another's. While progress is not proven the reader holds no entry,
    /// because the ack floor could not pass it.
    pub(super) async fn wait(&mut self, read: Read, reason: DeadReason) {
        if !self.parts.gate.is_open() {
            return;
        }
        let now = now_ms();
        let may_hold = self.parts.tracker.is_proven();
        let waits = read.waits(reason, now);
        let decided = self.parts.waiting.lock().on_wait(&read.member, waits, may_hold);
        match decided {
            Wait::Retry { delay } => {
                self.parts.tracker.dealt_with(read.delivery.stream_seq);
                let returned = read.delivery.nak(Some(delay)).await;
                log_failure(&self.parts.space, "return an entry", returned);
            }
            Wait::Park { next_at } => {
                let row = store::parked(&read.about(reason), now, next_at);
                self.record(read.delivery, row).await;
            }
            Wait::GiveUp => self.give_up(read, reason).await,
        }
    }

    async fn give_up(&mut self, read: Read, reason: DeadReason) {
        if !self.parts.gate.is_open() {
            return;
        }
        let Read { delivery, member, entry, .. } = &read;
        error!(
            space = %self.parts.space, %member.principal, channel = %entry.channel,
            seq = entry.seq, ?reason, attempts = delivery.delivered,
            "an entry is given up; `cotal dead` lists it"
        );
        self.no_longer_waits(&read.member, read.delivery.stream_seq);
        let row = store::given_up(&read.about(reason), now_ms());
        self.record(read.delivery, row).await;
    }

    /// Starts to record an entry that leaves the reader; the entries after it do not wait for that.
    async fn record(&mut self, delivery: Delivery, row: DeadRow) {
        if self.records.len() >= RECORDS_AT_ONCE
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

    /// Acks an entry that the dead bucket has recorded; any other is redelivered.
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
                    "an entry could not be recorded; it will be redelivered"
                );
                let again = delivery.nak(Some(RECORD_RETRY_AFTER)).await;
                log_failure(&self.parts.space, "return an entry", again);
            }
        }
    }
}
