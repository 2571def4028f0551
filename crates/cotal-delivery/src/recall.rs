//! Recall: copies that were handed off and not yet acked, and that the member may no longer read, are
//! taken out of its delivery stream, so that an agent that was away can never read them later.
//!
//! A leave takes nothing back: what lies inside a closed interval was rightly posted to the member.
//! Only the ACL decides here, and a tombstone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Connection, Get, NatsError};
use cotal_rules::directory::Acl;
use cotal_wire::{Channel, Lifecycle, Space};
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::gate::Gate;
use crate::view::View;

/// Members whose ACL changed and that were not looked at yet; beyond it the view waits.
const CHANGES: usize = 1_024;
/// Between two attempts when the broker does not do it.
const RETRY: Duration = Duration::from_secs(2);

/// What the reader has judged and settled, in batches: a batch judged before an ACL changed may
/// still be on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Batches {
    pub(crate) judged: u64,
    pub(crate) settled: u64,
}

/// The view's side: tells whose ACL changed.
pub(crate) type Changes = mpsc::Sender<Lifecycle>;

/// Takes copies back.
pub(crate) struct Recall {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) gate: Gate,
    pub(crate) batches: watch::Receiver<Batches>,
    changes: mpsc::Receiver<Lifecycle>,
}

/// The channel between the view and the recall.
pub(crate) fn changes() -> (Changes, mpsc::Receiver<Lifecycle>) {
    mpsc::channel(CHANGES)
}

#[derive(Deserialize)]
struct OnChannel {
    channel: Channel,
}

impl Recall {
    /// A recall that follows `changes`.
    pub(crate) fn new(
        space: &Space,
        connection: &Connection,
        view: &Arc<View>,
        gate: &Gate,
        batches: watch::Receiver<Batches>,
        changes: mpsc::Receiver<Lifecycle>,
    ) -> Self {
        Self {
            space: space.clone(),
            connection: connection.clone(),
            view: Arc::clone(view),
            gate: gate.clone(),
            batches,
            changes,
        }
    }

    /// Recalls until told to stop. Begins with every lifecycle whose ACL was ever changed, because a
    /// daemon may have been away when it was.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut open: HashSet<Lifecycle> =
            self.view.directory().changed_acls().into_iter().collect();
        loop {
            for member in open.clone() {
                let recalled = tokio::select! {
                    () = stop.cancelled() => return,
                    recalled = self.recall(&member) => recalled,
                };
                match recalled {
                    Ok(()) => drop(open.remove(&member)),
                    Err(error) => warn!(space = %self.space, %error, "a recall is tried again"),
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.changes.recv() => match changed {
                    Some(member) => drop(open.insert(member)),
                    None => return,
                },
                () = tokio::time::sleep(RETRY), if !open.is_empty() => {}
            }
        }
    }

    async fn recall(&mut self, member: &Lifecycle) -> Result<(), NatsError> {
        let judged = self.batches.borrow().judged;
        if self.batches.wait_for(|batches| batches.settled >= judged).await.is_err() {
            return Err(NatsError::Closed);
        }
        self.gate.open().await;
        let stream = self.space.dlv_stream();
        let subject = self.space.dlv(member);
        let mut next = self.ack_floor(member).await? + 1;
        let mut taken = 0_u64;
        loop {
            let get = Get::NextBySubject { seq: next, subject: &subject };
            let Some(copy) = self.connection.get_message(&stream, get).await? else { break };
            if !self.may_keep(member, &copy.payload) {
                self.gate.open().await;
                self.connection.delete_message(&stream, copy.seq).await?;
                taken += 1;
            }
            next = copy.seq + 1;
        }
        if taken > 0 {
            info!(space = %self.space, member = %member.principal, taken, "copies were recalled");
        }
        Ok(())
    }

    /// Everything at or below was acked. A consumer that is gone was deleted by a retirement: then
    /// nothing was.
    async fn ack_floor(&self, member: &Lifecycle) -> Result<u64, NatsError> {
        let consumer = self.space.dlv_consumer(member);
        match self.connection.consumer_info(&self.space.dlv_stream(), &consumer).await {
            Ok(info) => Ok(info.ack_floor.stream_seq),
            Err(error) if error.is_absent() => Ok(0),
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
