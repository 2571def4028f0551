//! An entry while the reader processes it.

use cotal_nats::{BatchError, Delivery, NatsError};
use cotal_wire::Lifecycle;
use cotal_wire::control::WaitingEntry;
use cotal_wire::envelope::InboxEntry;
use cotal_wire::rows::{DeadReason, DeadState};

use crate::pipeline::in_flight::HandOffInFlight;
use crate::pipeline::parked::store::About;

/// An entry that was parsed.
pub(super) struct Read {
    pub(super) delivery: Delivery,
    pub(super) member: Lifecycle,
    pub(super) entry: InboxEntry,
    /// Whether the reader kept it for a retry, so that it is listed as waiting.
    pub(super) is_kept: bool,
}

/// Entries that are judged together.
pub(super) type Batch = Vec<Read>;

/// A batch whose copies are settled; `entries` and the copies have the same order.
pub(super) struct HandOff {
    pub(super) entries: Vec<Read>,
    pub(super) outcome: Result<(), BatchError>,
    /// A recall waits until this is dropped.
    pub(super) in_flight: HandOffInFlight,
}

/// An entry that leaves the reader, and whether the dead bucket has recorded it.
pub(super) struct Recorded {
    pub(super) delivery: Delivery,
    pub(super) state: DeadState,
    pub(super) outcome: Result<(), NatsError>,
}

/// An entry and the result of its removal.
pub(super) type Removed = (Read, Result<(), NatsError>);

impl Read {
    pub(super) fn waits(&self, reason: DeadReason, now: i64) -> WaitingEntry {
        WaitingEntry {
            seq: self.delivery.stream_seq,
            member: self.member.principal.clone(),
            channel: self.entry.channel.clone(),
            chat_seq: self.entry.seq,
            reason,
            attempts: self.delivery.delivered,
            first_at: now,
        }
    }

    pub(super) fn about(&self, reason: DeadReason) -> About<'_> {
        About {
            seq: self.delivery.stream_seq,
            member: &self.member,
            entry: &self.entry,
            reason,
            attempts: self.delivery.delivered,
        }
    }
}
