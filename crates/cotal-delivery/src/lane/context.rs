//! What every component of a lane is given: whom it serves, how it reaches the broker, whether it
//! may act, and how it is told to stop.
//!
//! A component has a `spawn(&LaneContext, …)` of its own, which takes from here what it needs and
//! gives back what others may ask of it. Nothing else is shared, so what a component depends on is
//! written in its signature.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Bucket as Kv, ConnectOptions, Connection, NatsError};
use cotal_wire::accounts::Topology;
use cotal_wire::names::Bucket;
use cotal_wire::{Principal, Space};
use tokio_util::sync::CancellationToken;

use super::error::{LaneError, broker};
use super::patience;
use super::tasks::{Outcome, Spawner};
use crate::counters::Counters;
use crate::lease::gate::Gate;
use crate::loop_progress::{LoopReporter, Progress};
use crate::state::view::View;

/// One lane, as its components see it; cheap to clone.
#[derive(Clone)]
pub(crate) struct LaneContext {
    pub(crate) space: Space,
    /// How many accounts the space has, as the delivery credential names them.
    pub(crate) topology: Topology,
    /// The resident connection. What it writes into streams is withheld while the gate is closed.
    pub(crate) connection: Connection,
    /// How a component that needs a connection of its own makes one. It presents what the resident
    /// connection presents, also after a renewal, and writes only while that may.
    pub(crate) connect: ConnectOptions,
    /// Who this daemon is.
    pub(crate) principal: Principal,
    /// This run, as its lease row names it.
    pub(crate) incarnation: String,
    /// Whether the lane may act now.
    pub(crate) gate: Gate,
    pub(crate) view: Arc<View>,
    pub(crate) counters: Arc<Counters>,
    /// Tells every component to finish what it took in, and to end.
    pub(crate) stop: CancellationToken,
    /// How long a broker that is there may give no answer.
    pub(super) patience: Duration,
    pub(super) progress: Progress,
    pub(super) tasks: Spawner,
}

impl LaneContext {
    /// Starts a task of the component `name`. It runs until [`Self::stop`]; when it ends before,
    /// the lane ends too, with its error.
    pub(crate) fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        self.tasks.spawn(name, task);
    }

    /// The side of a loop that must prove its progress, called `name`.
    pub(crate) fn reporter(&self, name: &'static str) -> LoopReporter {
        self.progress.beat(name)
    }

    /// Asks the broker for what a start needs; a drop is waited for. `what` says what cannot be
    /// done without it.
    pub(crate) async fn ask<T, F>(
        &self,
        what: &'static str,
        call: impl Fn() -> F,
    ) -> Result<T, LaneError>
    where
        F: Future<Output = Result<T, NatsError>>,
    {
        patience::ask(&self.connection, self.patience, call).await.map_err(broker(what))
    }

    /// One of the space's buckets.
    pub(crate) fn kv(&self, bucket: Bucket) -> Kv {
        Kv::new(&self.connection, &self.space.bucket(bucket))
    }
}
