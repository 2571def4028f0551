//! Recall: deletes copies from DLV that were handed off, are not acked yet, and that the member may
//! no longer read, so that an agent that was away cannot read them later.
//!
//! Only the ACL, or a tombstone, causes a recall. A leave does not: a post inside a closed interval
//! was rightly delivered to the member.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::js::{ConsumerInfo, Deleted};
use cotal_nats::{Connection, Get, NatsError, retry_without_responder};
use cotal_rules::directory::Acl;
use cotal_wire::{Channel, Lifecycle, Space};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::pipeline::in_flight::InFlightFence;
use crate::pipeline::overflow::OverflowReports;
use crate::state::acl_changes::ChangedAcls;
use crate::state::view::{Feed, View};

/// Between two attempts when the broker refuses or does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Copies of one member that are read, or deleted, at once.
const RECALLS_AT_ONCE: usize = 64;
/// Recalls copies of one member; cheap to clone.
#[derive(Clone)]
pub(crate) struct Recaller {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) gate: Gate,
    pub(crate) in_flight: Arc<InFlightFence>,
    pub(crate) overflow: OverflowReports,
}

/// Recalls copies whenever an ACL has changed.
pub(crate) struct Recall {
    pub(crate) recaller: Recaller,
    pub(crate) changes: ChangedAcls,
}

#[derive(Deserialize)]
struct OnChannel {
    channel: Channel,
}

/// Starts the recall; returns the handle that recalls on request.
pub(crate) fn spawn(
    context: &LaneContext,
    in_flight: Arc<InFlightFence>,
    overflow: OverflowReports,
    changes: ChangedAcls,
) -> Recaller {
    let LaneContext { space, connection, view, gate, .. } = context.clone();
    let recaller = Recaller { space, connection, view, gate, in_flight, overflow };
    let recall = Recall { recaller: recaller.clone(), changes };
    context.spawn("the recall", recall.run(context.stop.clone()));
    recaller
}

impl Recall {
    /// Recalls until told to stop. Begins with every lifecycle whose ACL was ever changed, because
    /// no daemon may have run when it was.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let recaller = self.recaller;
        let mut open: HashSet<Lifecycle> =
            recaller.view.directory().changed_acls().into_iter().collect();
        loop {
            for member in open.clone() {
                let recalled = tokio::select! {
                    () = stop.cancelled() => return,
                    recalled = recaller.recall(&member) => recalled,
                };
                match recalled {
                    Ok(()) => drop(open.remove(&member)),
                    Err(error) => {
                        warn!(space = %recaller.space, %error, "a recall failed; retrying");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.changes.recv() => match changed {
                    Some(member) => drop(open.insert(member)),
                    None => return,
                },
                () = tokio::time::sleep(RETRY_AFTER), if !open.is_empty() => {}
            }
        }
    }
}

impl Recaller {
    /// Recalls by an ACL row that was just written, which the view may not have applied yet. When
    /// this returns, no copy is left that the row forbids.
    ///
    /// # Errors
    /// If the broker does not prove it; then some copies may be left.
    pub(crate) async fn recall_current(&self, member: &Lifecycle) -> Result<(), NatsError> {
        retry_without_responder(|| self.view.fresh(&[Feed::Acl])).await?;
        self.recall(member).await
    }

    async fn recall(&self, member: &Lifecycle) -> Result<(), NatsError> {
        self.in_flight.passed().await;
        self.gate.clone().open().await;
        let position = ReadPosition::of(self.consumer(member).await?.as_ref());
        let stream = self.space.dlv_stream();
        // Copies stored after this were judged by the ACL as it is now.
        let last = retry_without_responder(|| self.connection.last_seq(&stream)).await?;
        let taken = self.sweep(member, position, last).await?;
        let unread = position.unread(&taken);
        if unread > 0 {
            info!(space = %self.space, member = %member.principal, unread, "copies were recalled");
        }
        Ok(())
    }

    /// Deletes the forbidden copies up to `last`; returns their sequences. The broker only finds
    /// the next copy after a given sequence. So each copy found splits the rest of its range in
    /// two, as long as fewer than [`RECALLS_AT_ONCE`] ranges are open, and the ranges are searched
    /// at the same time.
    async fn sweep(
        &self,
        member: &Lifecycle,
        position: ReadPosition,
        last: u64,
    ) -> Result<Vec<u64>, NatsError> {
        let subject = self.space.dlv(member);
        let mut ranges = vec![(position.floor + 1, last)];
        let mut discard_scan = FuturesUnordered::new();
        let mut taken = Vec::new();
        loop {
            while discard_scan.len() < RECALLS_AT_ONCE
                && let Some((from, to)) = ranges.pop()
            {
                if from <= to {
                    discard_scan.push(self.look(member, &subject, from, to));
                }
            }
            let Some(look) = discard_scan.next().await else { return Ok(taken) };
            let Some(FoundCopy { seq, taken: gone, to }) = look? else { continue };
            if gone {
                taken.push(seq);
                self.overflow.recalled(member, u64::from(seq > position.delivered));
            }
            let rest = seq + 1;
            if ranges.len() + discard_scan.len() + 1 < RECALLS_AT_ONCE && rest < to {
                let middle = rest + (to - rest) / 2;
                ranges.extend([(middle + 1, to), (rest, middle)]);
            } else {
                ranges.push((rest, to));
            }
        }
    }

    /// Reads the first copy of a range, and deletes it if it is forbidden.
    async fn look(
        &self,
        member: &Lifecycle,
        subject: &str,
        from: u64,
        to: u64,
    ) -> Result<Option<FoundCopy>, NatsError> {
        let stream = self.space.dlv_stream();
        let get = Get::NextBySubject { seq: from, subject };
        let copy = retry_without_responder(|| self.connection.get_message(&stream, get)).await?;
        let Some(copy) = copy.filter(|copy| copy.seq <= to) else { return Ok(None) };
        if self.may_keep(member, &copy.payload) {
            return Ok(Some(FoundCopy { seq: copy.seq, taken: false, to }));
        }
        let deleted = retry_without_responder(|| async {
            self.gate.clone().open().await;
            self.connection.delete_message(&stream, copy.seq).await
        });
        let taken = match deleted.await {
            Ok(deleted) => deleted == Deleted::Deleted,
            // The delete was not answered, so it may have been done: check.
            Err(error) => {
                let held = self.connection.get_message(&stream, Get::Seq(copy.seq)).await;
                if !matches!(held, Ok(None)) {
                    return Err(error);
                }
                true
            }
        };
        Ok(Some(FoundCopy { seq: copy.seq, taken, to }))
    }

    /// The member's consumer; `None` if a retirement has deleted it.
    async fn consumer(&self, member: &Lifecycle) -> Result<Option<ConsumerInfo>, NatsError> {
        let (stream, consumer) = (self.space.dlv_stream(), self.space.dlv_consumer(member));
        match retry_without_responder(|| self.connection.consumer_info(&stream, &consumer)).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn may_keep(&self, member: &Lifecycle, copy: &[u8]) -> bool {
        let Ok(OnChannel { channel }) = serde_json::from_slice(copy) else { return false };
        match self.view.directory().acl(member) {
            Acl::Row(row) => row.allows(&channel),
            Acl::Retired => false,
            // A missing row does not prove that the owner is gone (RDR-8).
            Acl::Absent => true,
        }
    }
}

/// A copy that was found in a range that ends at `to`.
struct FoundCopy {
    seq: u64,
    /// Whether this search deleted it.
    taken: bool,
    to: u64,
}

/// How far a member had read when its recall began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ReadPosition {
    /// Every copy at or below was acked.
    floor: u64,
    /// No copy beyond was delivered.
    delivered: u64,
    /// How many copies in between were not acked; the broker does not say which.
    unacked: u64,
}

impl ReadPosition {
    fn of(consumer: Option<&ConsumerInfo>) -> Self {
        consumer.map_or_else(Self::default, |info| Self {
            floor: info.ack_floor.stream_seq,
            delivered: info.delivered.stream_seq,
            unacked: info.num_ack_pending,
        })
    }

    /// How many of `taken` the member had not acked, at most. This is exact, unless the member had
    /// acked forbidden copies above its ack floor and had left others unacked that it may keep.
    fn unread(self, taken: &[u64]) -> u64 {
        let beyond = taken.iter().filter(|&&seq| seq > self.delivered).count() as u64;
        beyond + (taken.len() as u64 - beyond).min(self.unacked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acked_above_the_floor_is_not_counted() {
        let position = ReadPosition { floor: 10, delivered: 40, unacked: 2 };
        assert_eq!(position.unread(&[]), 0);
        assert_eq!(position.unread(&[11]), 1);
        assert_eq!(position.unread(&[11, 12, 13, 40]), 2, "two of these were acked");
        assert_eq!(position.unread(&[11, 12, 13, 41, 50]), 4);
        assert_eq!(ReadPosition::default().unread(&[1, 2, 3]), 3, "nobody can have acked them");
    }
}
