//! Unread copies that DLV's cap discards: detected, counted, and reported once per member and
//! episode.

use cotal_nats::{Connection, Get, NatsError, headers};
use cotal_rules::overflow::{ConsumerPosition, Overflow, OverflowMeter, UnreadCount};
use cotal_wire::names::SEQ_HEADER;
use cotal_wire::{Lifecycle, Space};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::clock::now_ms;
use crate::counters::Counters;
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;

/// Members reported and not checked yet. When the queue is full a report is dropped; the next
/// hand-off reports the member again.
const MAX_QUEUED_REPORTS: usize = 1_024;
/// How often members that could be full are checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The reader's side: counts hand-offs and reports members that could be full.
#[derive(Debug, Clone)]
pub(crate) struct OverflowReports {
    meter: Arc<Mutex<OverflowMeter>>,
    reports: mpsc::Sender<Lifecycle>,
}

impl OverflowReports {
    /// Counts one copy handed to each of `members`.
    pub(crate) fn handed_off<'a>(&self, members: impl Iterator<Item = &'a Lifecycle>) {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        for member in members {
            meter.stored(member);
            if meter.needs_check(member) {
                // When the queue is full the check comes later: the next hand-off reports the
                // member again.
                let _ = self.reports.try_send(member.clone());
            }
        }
    }

    /// How many copies a member's store holds unread at most, were there no cap.
    pub(crate) fn held_at_most(&self, member: &Lifecycle) -> u64 {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).held_at_most(member)
    }

    /// Subtracts copies that a recall deleted before they were delivered to the member.
    pub(crate) fn recalled(&self, member: &Lifecycle, undelivered: u64) {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.recalled(member, undelivered);
    }
}

/// Reads how many copies a member has left unread, when its store could be full.
pub(crate) struct OverflowCheck {
    space: Space,
    connection: Connection,
    counters: Arc<Counters>,
    meter: Arc<Mutex<OverflowMeter>>,
    reports: mpsc::Receiver<Lifecycle>,
}

/// Starts the overflow check. It reads DLV before any copy is handed off.
pub(crate) async fn spawn(context: &LaneContext) -> Result<OverflowReports, LaneError> {
    let (reporter, reports) = mpsc::channel(MAX_QUEUED_REPORTS);
    let meter = Arc::new(Mutex::new(OverflowMeter::default()));
    let check = OverflowCheck {
        space: context.space.clone(),
        connection: context.connection.clone(),
        counters: Arc::clone(&context.counters),
        meter: Arc::clone(&meter),
        reports,
    };
    context.ask("cannot read DLV", || check.seed()).await?;
    context.spawn("the overflow check", check.run(context.stop.clone()));
    Ok(OverflowReports { meter, reports: reporter })
}

impl OverflowCheck {
    /// Reads how many messages DLV holds for each member before this lane hands off any, so that
    /// the count of misses is exact from the start.
    ///
    /// # Errors
    /// If the broker cannot be read.
    pub(crate) async fn seed(&self) -> Result<(), NatsError> {
        let (stream, filter) = (self.space.dlv_stream(), self.space.dlv_all());
        let mut offset = 0;
        loop {
            let page = self.connection.stream_info_subjects(&stream, &filter, offset).await?;
            let got = page.subjects.len() as u64;
            let mut meter = self.meter();
            for (subject, held) in page.subjects {
                if let Some(member) = self.space.parse_dlv(&subject) {
                    meter.seed(&member, held);
                }
            }
            offset += got;
            if got == 0 || offset >= page.total {
                meter.all_seeded();
                return Ok(());
            }
        }
    }

    /// Checks members that could be full, until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut suspects = HashSet::new();
        let mut tick = tokio::time::interval(CHECK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(member) = self.reports.recv() => {
                    suspects.insert(member);
                }
                _ = tick.tick(), if !suspects.is_empty() => {
                    for member in std::mem::take(&mut suspects) {
                        if let Err(error) = self.check(&member).await {
                            debug!(space = %self.space, %error, "could not read a member's backlog");
                        }
                        if self.meter().is_unsettled(&member) {
                            suspects.insert(member);
                        }
                    }
                }
            }
        }
    }

    fn meter(&self) -> MutexGuard<'_, OverflowMeter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records what the member will be told: between which posts the missed ones are.
    async fn note(&self, member: &Lifecycle, found: &Overflow) {
        if let Overflow::Ended { .. } = found {
            return self.counters.misses().ended(member);
        }
        let held = self.first_held(member).await.unwrap_or_else(|error| {
            debug!(space = %self.space, %error, "could not read where a member's missed copies end");
            None
        });
        let mut misses = self.counters.misses();
        match (found, held) {
            (Overflow::Began { missed } | Overflow::More { missed }, _) => {
                misses.lost(member, *missed, held, now_ms());
            }
            (_, Some(first)) => misses.holds(member, first),
            (_, None) => {}
        }
    }

    /// The sequence on CHAT of the oldest copy that DLV holds for the member.
    async fn first_held(&self, member: &Lifecycle) -> Result<Option<u64>, NatsError> {
        let subject = self.space.dlv(member);
        let get = Get::NextBySubject { seq: 1, subject: &subject };
        let oldest = self.connection.get_message(&self.space.dlv_stream(), get).await?;
        let number =
            oldest.and_then(|copy| headers::get(copy.headers.as_ref(), SEQ_HEADER)?.parse().ok());
        Ok(number)
    }

    async fn check(&self, member: &Lifecycle) -> Result<(), NatsError> {
        let consumer = self.space.dlv_consumer(member);
        let mark = self.meter().mark(member);
        let info = self.connection.consumer_info(&self.space.dlv_stream(), &consumer).await?;
        let position = ConsumerPosition {
            delivered: info.delivered.consumer_seq,
            acked: info.ack_floor.consumer_seq,
            outstanding: info.num_ack_pending,
        };
        let look = UnreadCount { unread: info.num_pending + info.num_ack_pending, position };
        let principal = &member.principal;
        let found = self.meter().checked(member, mark, look);
        self.note(member, &found).await;
        match found {
            Overflow::Quiet => {}
            Overflow::Began { missed } => {
                self.counters.add_missed(principal, missed);
                warn!(
                    space = %self.space, member = %principal, missed,
                    "DLV's cap discarded unread copies of a member; it must read more often"
                );
            }
            Overflow::More { missed } => self.counters.add_missed(principal, missed),
            Overflow::Ended { missed } => {
                warn!(space = %self.space, member = %principal, missed, "a member that missed copies reads again");
            }
        }
        Ok(())
    }
}
