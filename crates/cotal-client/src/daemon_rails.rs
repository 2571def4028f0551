//! What an endpoint asks the delivery daemon of its space.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::Connection;
use cotal_wire::anycast::{TakeArgs, Taken};
use cotal_wire::control::{PlaneReply, op};
use cotal_wire::names::{ANYCAST_TAKE, DELIVERY};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::control::{ControlError, Liveness, Rail};
use crate::identity::Identity;

/// A probe is answered from memory or not at all.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The rails of one endpoint. Clones share them, and keep no endpoint alive.
#[derive(Debug, Clone)]
pub(crate) struct DaemonRails {
    inner: Arc<Rails>,
}

#[derive(Debug)]
struct Rails {
    identity: Identity,
    control: Rail,
    probe: Rail,
    take: Rail,
    within: Duration,
}

impl DaemonRails {
    pub(crate) fn new(
        connection: &Connection,
        identity: &Identity,
        within: Duration,
        stop: &CancellationToken,
    ) -> Self {
        let (space, own) = (&identity.space, &identity.lifecycle.principal);
        let rail = |subject| Rail::new(connection, subject, stop);
        let inner = Rails {
            control: rail(space.ctl(DELIVERY, own)),
            probe: rail(space.live(DELIVERY, own)),
            take: rail(space.ctl(ANYCAST_TAKE, own)),
            identity: identity.clone(),
            within,
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// One operation on `ctl.delivery`.
    pub(crate) async fn control<T: DeserializeOwned>(
        &self,
        op: &str,
        args: &impl Serialize,
    ) -> Result<T, ControlError> {
        self.inner.control.call(op, args, self.identity(), self.inner.within).await
    }

    /// One operation on `ctl.anycast-take`.
    pub(crate) async fn holding<T: DeserializeOwned>(
        &self,
        op: &str,
        args: &impl Serialize,
    ) -> Result<T, ControlError> {
        self.inner.take.call(op, args, self.identity(), self.inner.within).await
    }

    /// Asks the daemon to record a take.
    pub(crate) async fn take(&self, args: &TakeArgs) -> Result<Taken, ControlError> {
        self.holding(op::TAKE, args).await
    }

    /// Whether a daemon serves, as its own responder says.
    pub(crate) async fn liveness(&self) -> Result<Liveness, ControlError> {
        let probe: Result<PlaneReply, _> = self.inner.probe.ask(&json!({}), PROBE_TIMEOUT).await;
        Liveness::judge(probe)
    }
}
