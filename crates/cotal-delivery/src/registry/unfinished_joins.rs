//! Joins that an earlier daemon left half done: they are finished at the start. Fan-out waits for
//! them, because otherwise it would write posts to their members that are newer than those of the
//! catch-up.

use std::sync::Arc;

use cotal_wire::{Channel, Lifecycle};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Registry;
use crate::lane::context::LaneContext;
use crate::pipeline::join_barrier::{JoinBarrier, JoinInProgress};

/// The barrier of a lane's joins, and the joins that are half done.
pub(crate) struct Joins {
    pub(crate) barrier: JoinBarrier,
    pub(super) unfinished: Vec<UnfinishedJoin>,
}

/// A half-done join; fan-out waits until this is dropped.
pub(super) struct UnfinishedJoin {
    channel: Channel,
    member: Lifecycle,
    joining: JoinInProgress,
}

/// Every half-done join that the view knows; to be called before fan-out starts.
pub(crate) fn joins(context: &LaneContext) -> Joins {
    let barrier = JoinBarrier::default();
    let unfinished = begin(&barrier, context.view.directory().half_joined());
    Joins { barrier, unfinished }
}

fn begin(barrier: &JoinBarrier, found: Vec<(Channel, Lifecycle)>) -> Vec<UnfinishedJoin> {
    let found = found.into_iter();
    found
        .map(|(channel, member)| UnfinishedJoin { channel, member, joining: barrier.begin() })
        .collect()
}

impl Registry {
    /// Finishes the half-done joins one after the other, then those that another daemon leaves
    /// while this one serves, until told to stop.
    pub(super) async fn finish(
        self: Arc<Self>,
        unfinished: Vec<UnfinishedJoin>,
        stop: CancellationToken,
    ) {
        self.finish_all(unfinished, &stop).await;
        loop {
            let foreign = tokio::select! {
                () = stop.cancelled() => return,
                foreign = self.view.foreign_joins() => foreign,
            };
            let unfinished = begin(&self.joins, foreign);
            self.finish_all(unfinished, &stop).await;
        }
    }

    async fn finish_all(&self, unfinished: Vec<UnfinishedJoin>, stop: &CancellationToken) {
        let mut gate = self.gate.clone();
        for UnfinishedJoin { channel, member, joining } in unfinished {
            let resumed = tokio::select! {
                () = stop.cancelled() => return,
                resumed = async {
                    gate.open().await;
                    self.resume(&channel, &member, joining).await
                } => resumed,
            };
            if let Err(error) = resumed {
                let space = &self.space;
                warn!(%space, %error, "a half-done join could not be finished; it continues when the member joins again");
            }
        }
    }
}
