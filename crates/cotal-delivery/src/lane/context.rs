//! What every component of a lane gets: the space it serves, its connection to the broker, the
//! gate, and the signal to stop.
//!
//! Each component has a `spawn(&LaneContext, …)` of its own. It takes from the context what it
//! needs, and returns what other components may use of it. Nothing else is shared, so a component's
//! signature shows what it depends on.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Bucket as Kv, ConnectOptions, Connection, NatsError};
use cotal_wire::accounts::Topology;
use cotal_wire::names::Bucket;
use cotal_wire::{Principal, Space};
use tokio_util::sync::CancellationToken;

use super::error::{LaneError, broker};
use super::tasks::{Outcome, Spawner};
use super::wait_for_broker;
use crate::counters::Counters;
use crate::lease::gate::Gate;
use crate::loop_progress::{LoopReporter, Progress};
use crate::state::view::View;

/// One lane, for its components; cheap to clone.
#[derive(Clone)]
pub(crate) struct LaneContext {
    pub(crate) space: Space,
    /// How many accounts the space has, according to the delivery credential.
    pub(crate) topology: Topology,
    /// The resident connection. Its writes into streams are withheld while the gate is closed.
    pub(crate) connection: Connection,
    /// How a component makes a connection of its own. Such a connection uses the resident
    /// connection's credential, also after a renewal, and may write only while the resident one
    /// may.
    pub(crate) connect: ConnectOptions,
    /// Who this daemon is.
    pub(crate) principal: Principal,
    /// The name of this run in the lease row.
    pub(crate) incarnation: String,
    /// Whether the lane may act now.
    pub(crate) gate: Gate,
    pub(crate) view: Arc<View>,
    pub(crate) counters: Arc<Counters>,
    /// Tells every component to finish what it has pulled or accepted, and to end.
    pub(crate) stop: CancellationToken,
    /// How long a connected broker may fail to answer during the start.
    pub(super) patience: Duration,
    pub(super) progress: Progress,
    pub(super) tasks: Spawner,
}

impl LaneContext {
    /// Starts a task of the component `name`. It runs until [`Self::stop`]. If it ends earlier, the
    /// lane ends too, with the task's error.
    pub(crate) fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        self.tasks.spawn(name, task);
    }

    /// Registers the loop `name`, which must prove its progress.
    pub(crate) fn reporter(&self, name: &'static str) -> LoopReporter {
        self.progress.reporter(name)
    }

    /// Asks the broker for something that the start needs; after a drop it waits and asks again.
    /// `what` names, for the error, what fails without it.
    pub(crate) async fn ask<T, F>(
        &self,
        what: &'static str,
        call: impl Fn() -> F,
    ) -> Result<T, LaneError>
    where
        F: Future<Output = Result<T, NatsError>>,
    {
        wait_for_broker::ask(&self.connection, self.patience, call).await.map_err(broker(what))
    }

    /// One of the space's buckets.
    pub(crate) fn kv(&self, bucket: Bucket) -> Kv {
        Kv::new(&self.connection, &self.space.bucket(bucket))
    }
}
