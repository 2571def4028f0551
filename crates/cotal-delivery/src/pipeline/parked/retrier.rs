//! Retries parked entries, and clears what cannot be parsed from the dead bucket.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cotal_nats::{Connection, Get, HeaderMap, NatsError, StoredMessage, WatchEvent, to_json};
use cotal_rules::authorize::{DenyReason, Verdict};
use cotal_rules::waiting::{self, Again};
use cotal_wire::envelope::{self, InboxEntry};
use cotal_wire::names::{Bucket, SEQ_HEADER, dead_key, parse_dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use cotal_wire::{Principal, Space};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::clock::now_ms;
use crate::counters::{Counters, add};
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::loop_progress::LoopReporter;
use crate::pipeline::in_flight::InFlightFence;
use crate::pipeline::overflow::OverflowReports;
use crate::pipeline::parked::store::DeadStore;
use crate::pipeline::reader::judge::judge;
use crate::pipeline::reader::retired::Remover;
use crate::state::bucket_watch::watch_all;
use crate::state::view::{Feed, View, ViewError};

/// The retrier checks for due entries at least this often, so that a missed wake-up costs little.
const DUE_CHECK_EVERY: Duration = Duration::from_secs(30);

/// How long an entry waits for a leave in progress. A leave needs a few round trips.
const LEAVE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// How often an entry was put back after it was given up; then its copy needs another message id.
fn again_after_end(row: &DeadRow) -> u64 {
    row.attempts.saturating_sub(waiting::MAX_REDELIVERIES)
}

/// A parked row as last seen.
#[derive(Debug, Clone)]
struct ParkedEntry {
    row: DeadRow,
    revision: u64,
    /// When it is retried, by a clock that nobody sets.
    due: Instant,
}

impl ParkedEntry {
    fn new(row: DeadRow, revision: u64) -> Self {
        let wait = waiting::due_in(row.next_at, row.attempts, now_ms());
        Self { row, revision, due: Instant::now() + wait }
    }
}

/// Retries parked entries.
pub(crate) struct Retrier {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) gate: Gate,
    pub(crate) counters: Arc<Counters>,
    pub(crate) store: DeadStore,
    pub(crate) rows: Rows,
    pub(crate) remover: Remover,
    pub(crate) overflow: OverflowReports,
    /// Members that are losing parked entries, each logged once.
    pub(crate) losing: HashSet<Principal>,
    pub(crate) in_flight: Arc<InFlightFence>,
    pub(crate) reporter: LoopReporter,
}

/// The bucket as last seen, by sequence. The bucket keeps no history, so only this memory has the
/// row that garbage replaced.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    parked: BTreeMap<u64, ParkedEntry>,
    given_up: BTreeMap<u64, DeadRow>,
    garbage: BTreeMap<u64, Garbage>,
}

/// A garbled value with no parked row to write over it.
#[derive(Debug)]
struct Garbage {
    revision: u64,
    /// When it is cleared.
    due: Instant,
}

/// Starts the retrier.
pub(crate) fn spawn(
    context: &LaneContext,
    store: DeadStore,
    overflow: OverflowReports,
    in_flight: Arc<InFlightFence>,
) {
    let retrier = Retrier {
        space: context.space.clone(),
        connection: context.connection.clone(),
        view: Arc::clone(&context.view),
        gate: context.gate.clone(),
        counters: Arc::clone(&context.counters),
        store,
        rows: Rows::default(),
        remover: Remover::new(context),
        overflow,
        losing: HashSet::new(),
        in_flight,
        reporter: context.reporter("the retrier"),
    };
    context.spawn("the retrier", retrier.run(context.stop.clone()));
}

impl Retrier {
    /// Watches the dead bucket and retries due entries, until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), ViewError> {
        let mut watch = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            watch = watch_all(&self.store.kv) => watch?,
        };
        loop {
            let retries = self.rows.parked.values().map(|known| known.due);
            let due = retries.chain(self.rows.garbage.values().map(|garbage| garbage.due)).min();
            let wait = due.map_or(DUE_CHECK_EVERY, |at| {
                at.saturating_duration_since(Instant::now()).min(DUE_CHECK_EVERY)
            });
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.reporter.answered() => {}
                event = watch.next() => {
                    self.note(event.map_err(|error| ViewError::of_watch(error, &self.store.kv))?)?;
                }
                () = tokio::time::sleep(wait) => {
                    self.gate.open().await;
                    self.clear_garbage().await;
                    self.retry_due().await;
                }
            }
        }
    }

    fn note(&mut self, event: WatchEvent) -> Result<(), ViewError> {
        if let WatchEvent::Reset { bucket_recreated: true } = event {
            // Rows of the bucket that is gone must not be retried from memory.
            return Err(ViewError::Recreated { bucket: self.space.bucket(Bucket::Dead) });
        }
        self.apply(event);
        self.counters.parked.store(self.rows.parked.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Put { key, value, revision } => {
                let Some(seq) = parse_dead_key(&key) else {
                    return;
                };
                match DeadRow::parse(&value, seq) {
                    Ok(row) => {
                        self.forget(seq);
                        self.know(row, revision);
                    }
                    Err(error) => {
                        error!(space = %self.space, seq, %error, "a dead row cannot be parsed");
                        self.repair(seq, revision);
                    }
                }
            }
            WatchEvent::Delete { key, .. } => {
                if let Some(seq) = parse_dead_key(&key) {
                    self.forget(seq);
                }
            }
            _ => {}
        }
    }

    fn know(&mut self, row: DeadRow, revision: u64) {
        match row.state {
            DeadState::Parked => {
                drop(self.rows.parked.insert(row.seq, ParkedEntry::new(row, revision)));
            }
            DeadState::GivenUp => drop(self.rows.given_up.insert(row.seq, row)),
        }
    }

    fn forget(&mut self, seq: u64) {
        self.rows.parked.remove(&seq);
        self.rows.given_up.remove(&seq);
        self.rows.garbage.remove(&seq);
    }

    /// Keeps the last valid row. The next retry writes a parked row over the garbage.
    fn repair(&mut self, seq: u64, revision: u64) {
        let due = Instant::now();
        if let Some(known) = self.rows.parked.get_mut(&seq) {
            (known.revision, known.due) = (revision, due);
        } else {
            self.rows.garbage.insert(seq, Garbage { revision, due });
        }
    }

    /// Writes given-up rows over garbage. Deletes garbage for which no row is known, because it
    /// says nothing about its entry and must not stay for ever.
    async fn clear_garbage(&mut self) {
        let now = Instant::now();
        let due = self.rows.garbage.iter().filter(|(_, garbage)| garbage.due <= now);
        let due: Vec<_> = due.map(|(seq, garbage)| (*seq, garbage.revision)).collect();
        for (seq, revision) in due {
            if !self.gate.is_open() {
                return;
            }
            let (kv, key) = (&self.store.kv, dead_key(seq));
            let cleared = match self.rows.given_up.get(&seq) {
                Some(row) => match to_json(row) {
                    Ok(value) => kv.update(&key, value, revision).await,
                    Err(error) => Err(error),
                },
                None => kv.delete(&key, Some(revision)).await,
            };
            match cleared {
                Ok(_) => {
                    warn!(space = %self.space, seq, "a dead row that could not be parsed was cleared");
                }
                // The watch shows the value that has replaced it.
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    warn!(space = %self.space, seq, %error, "could not clear a dead row that cannot be parsed; retrying later");
                    let due = now + DUE_CHECK_EVERY;
                    self.rows.garbage.insert(seq, Garbage { revision, due });
                    continue;
                }
            }
            self.rows.garbage.remove(&seq);
        }
    }

    async fn retry_due(&mut self) {
        let now = Instant::now();
        let due = self.rows.parked.values().filter(|known| known.due <= now);
        let due: Vec<ParkedEntry> = due.cloned().collect();
        if due.is_empty() {
            return;
        }
        if let Err(error) = self.view.fresh(&[Feed::Members, Feed::Acl]).await {
            warn!(space = %self.space, %error, "parked entries wait: the view is not current");
            tokio::time::sleep(Duration::from_secs(1)).await;
            return;
        }
        for known in due {
            if !self.gate.is_open() {
                return;
            }
            let seq = known.row.seq;
            if let Err(error) = self.retry(known).await {
                debug!(space = %self.space, seq, %error, "a parked entry could not be retried");
            }
        }
    }

    async fn retry(&mut self, known: ParkedEntry) -> Result<(), NatsError> {
        let seq = known.row.seq;
        let stored = self.connection.get_message(&self.space.inbox_stream(), Get::Seq(seq)).await?;
        let Some(stored) = stored.filter(|m| self.is_of(m, &known.row)) else {
            return self.lost(known).await;
        };
        let Ok(entry) = envelope::parse_entry(&stored.payload) else {
            return self.lost(known).await;
        };
        let member = known.row.member();
        // A recall waits until every hand-off that was judged before it has ended.
        let _in_flight = self.in_flight.begin();
        let mut verdict = judge(&member, &entry, &self.view.directory());
        if verdict == Verdict::Deny(DenyReason::EarlierGeneration) {
            self.view.learn(&entry.channel, &member).await?;
            verdict = judge(&member, &entry, &self.view.directory());
        }
        // The process may have been paused since the view was current; then another daemon decides.
        if !self.gate.is_open() {
            return Ok(());
        }
        match verdict {
            Verdict::Release => match self.hand_off(&known.row, &entry, &stored).await {
                Ok(()) => {
                    add(&self.counters.delivered, 1);
                    self.losing.remove(&known.row.owner);
                    self.overflow.handed_off(std::iter::once(&known.row.member()));
                    self.close(known).await
                }
                Err(error @ NatsError::TooLarge { .. }) => {
                    self.again(known, DeadReason::TooLarge).await?;
                    Err(error)
                }
                Err(error) => {
                    self.again(known, DeadReason::HandoffFailed).await?;
                    Err(error)
                }
            },
            Verdict::Deny(_) => {
                add(&self.counters.denied, 1);
                self.close(known).await
            }
            Verdict::Retired => match self.remover.remove(&member, &entry, seq).await {
                Ok(()) => {
                    add(&self.counters.denied, 1);
                    self.close(known).await
                }
                Err(error) => {
                    self.again(known, DeadReason::DeleteFailed).await?;
                    Err(error)
                }
            },
            Verdict::NoAclRow => self.again(known, DeadReason::NoAclRow).await,
            Verdict::Leaving => {
                self.put_off(known);
                Ok(())
            }
        }
    }

    /// Retries it soon, without a write to the broker.
    fn put_off(&mut self, mut known: ParkedEntry) {
        known.due = Instant::now() + LEAVE_RETRY_AFTER;
        self.rows.parked.insert(known.row.seq, known);
    }

    fn is_of(&self, stored: &StoredMessage, row: &DeadRow) -> bool {
        self.space.parse_dinbox(&stored.subject) == Some(row.member())
    }

    async fn hand_off(
        &self,
        row: &DeadRow,
        entry: &InboxEntry,
        stored: &StoredMessage,
    ) -> Result<(), NatsError> {
        let mut headers = HeaderMap::new();
        headers.insert(SEQ_HEADER, entry.seq.to_string());
        let msg_id = stored.headers.as_ref().and_then(|h| h.get(cotal_nats::headers::MSG_ID));
        let id = msg_id.map(|value| envelope::redelivery_key(value.as_str(), again_after_end(row)));
        let subject = self.space.dlv(&row.member());
        let sent = self.connection.publish_confirmed(
            subject,
            Some(headers),
            entry.msg.clone(),
            id.as_deref(),
        );
        sent.await.map(drop)
    }

    async fn close(&mut self, known: ParkedEntry) -> Result<(), NatsError> {
        if !self.gate.is_open() {
            return Ok(());
        }
        self.store.kv.delete(&dead_key(known.row.seq), Some(known.revision)).await?;
        self.rows.parked.remove(&known.row.seq);
        Ok(())
    }

    /// INBOX's cap discarded a parked entry before its owner could read it: that is a miss. (If the
    /// entry was to be deleted, an unanswered delete has removed it, and that is no miss.) The loss
    /// is logged once per member and episode; the episode ends when one of the member's parked
    /// entries is delivered.
    async fn lost(&mut self, known: ParkedEntry) -> Result<(), NatsError> {
        let row = &known.row;
        if waiting::is_removed(row.reason) {
            add(&self.counters.denied, 1);
            return self.close(known).await;
        }
        if self.losing.insert(row.owner.clone()) {
            error!(
                space = %self.space, member = %row.owner, channel = %row.channel,
                seq = row.chat_seq, "INBOX's cap discarded parked entries before they could be \
                 delivered"
            );
        }
        let owner = row.owner.clone();
        self.close(known).await?;
        // Counted only after the row is closed: the watch may show the row again, and it must not
        // count twice.
        self.counters.add_missed(&owner, 1);
        Ok(())
    }

    async fn again(&mut self, known: ParkedEntry, reason: DeadReason) -> Result<(), NatsError> {
        if !self.gate.is_open() {
            return Ok(());
        }
        let ParkedEntry { mut row, revision, .. } = known;
        let again = waiting::parked_again(row.reason, row.attempts, reason, now_ms());
        row.reason = reason;
        match again {
            Again::At { attempts, next_at } => (row.attempts, row.next_at) = (attempts, next_at),
            Again::GiveUp { attempts } => {
                (row.attempts, row.next_at) = (attempts, 0);
                row.state = DeadState::GivenUp;
                add(&self.counters.given_up, 1);
                error!(
                    space = %self.space, member = %row.owner, seq = row.seq, ?reason,
                    "a parked entry is given up; `cotal dead` lists it"
                );
            }
        }
        let seq = row.seq;
        let revision = self.store.kv.update(&dead_key(seq), to_json(&row)?, revision).await?;
        self.rows.parked.remove(&seq);
        self.know(row, revision);
        Ok(())
    }
}
