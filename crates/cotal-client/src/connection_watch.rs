//! Watches over the connection and the plane behind it, and tells what changed.

use std::time::Duration;

use cotal_nats::{Bucket, ConnEvent, Connection, Listener, RecvError};
use cotal_wire::names::{Bucket as Name, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::control::Liveness;
use crate::daemon_rails::DaemonRails;
use crate::missed::MissedPlane;
use crate::notice::{LeaseCondition, Notice};
use crate::pending_joins::PendingJoins;
use crate::pump::Durable;
use crate::sink::Sink;

/// A lease lives 30 s; a plane that lost its daemon is noticed within this on top.
const LIVENESS_CHECK_EVERY: Duration = Duration::from_secs(10);

/// What the keeper reacts to.
enum Wake {
    Stop,
    Check,
    Connection(ConnEvent),
}

/// The task that watches.
#[derive(Debug)]
pub(crate) struct Keeper {
    connection: Connection,
    events: Listener<ConnEvent>,
    plane: DaemonRails,
    sink: Sink,
    /// Tried at once when a daemon or the connection is back.
    pending_joins: PendingJoins,
    /// Likewise.
    missed: MissedPlane,
    /// Of the lease row that was last found ready.
    revision: u64,
    /// Whether a durable is bound, so that a missing lease concerns this endpoint.
    bound: bool,
    /// What was last found instead of a ready lease, and told.
    told: Option<LeaseCondition>,
    /// Whether a drop was told; the first connect may be heard of too and is no news.
    dropped: bool,
    /// Whether a refused credential was told since the connection was last up.
    refused: bool,
}

impl Keeper {
    pub(crate) fn new(
        connection: &Connection,
        plane: &DaemonRails,
        sink: Sink,
        (pending_joins, missed): (PendingJoins, MissedPlane),
        bound: bool,
    ) -> Self {
        Self {
            connection: connection.clone(),
            events: connection.events(),
            plane: plane.clone(),
            sink,
            pending_joins,
            missed,
            revision: 0,
            bound,
            told: None,
            dropped: false,
            refused: false,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut check = interval(LIVENESS_CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wake = tokio::select! {
                biased;
                () = stop.cancelled() => Wake::Stop,
                event = self.events.recv() => match event {
                    Ok(event) => Wake::Connection(event),
                    // What was missed shows in the lease and in the connection's state.
                    Err(RecvError::Lagged(_)) => Wake::Check,
                    Err(RecvError::Closed) => Wake::Stop,
                },
                _ = check.tick() => Wake::Check,
            };
            match wake {
                Wake::Stop => return,
                Wake::Check if self.dropped => self.welcome_back().await,
                Wake::Check => self.check_lease(false).await,
                Wake::Connection(event) => self.on_connection(event).await,
            }
        }
    }

    async fn on_connection(&mut self, event: ConnEvent) {
        match event {
            ConnEvent::Connected if self.dropped => self.welcome_back().await,
            ConnEvent::Connected => self.check_lease(false).await,
            ConnEvent::Disconnected => {
                if !std::mem::replace(&mut self.dropped, true) {
                    self.sink.notify(Notice::Disconnected);
                }
            }
            ConnEvent::AuthExpired => self.refused("it has expired"),
            ConnEvent::AuthRevoked => self.refused("it was revoked"),
            ConnEvent::AuthViolation => self.refused("it is not authorized"),
            ConnEvent::CredsUnusable => {
                self.refused("it is expired or unreadable and was not presented");
            }
            // Live copies are taken off their subscription at once, so that no buffer below fills.
            ConnEvent::SlowConsumer(_)
            | ConnEvent::Denied(_)
            | ConnEvent::LameDuck
            | ConnEvent::ServerError(_)
            | ConnEvent::RedialFailed(_)
            | ConnEvent::Closed => {}
        }
    }

    /// Every dial is refused anew; it is told once, until the connection is back.
    fn refused(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.refused, true) {
            self.sink.notify(Notice::CredentialRefused { reason: reason.to_owned() });
        }
    }

    /// Tells that the connection is back once the broker has proven it.
    ///
    /// The handshake alone is no proof: the client sends its subscriptions after it, and until the
    /// broker has them a live message passes this endpoint by.
    async fn welcome_back(&mut self) {
        if !self.connection.is_connected() || self.connection.round_trip().await.is_err() {
            return;
        }
        self.dropped = false;
        self.refused = false;
        self.pending_joins.hurry();
        self.missed.hurry();
        self.sink.notify(Notice::Reconnected);
        self.check_lease(true).await;
    }

    /// Tells changes only; a plane that was just reached is judged anew.
    async fn check_lease(&mut self, plane_is_new: bool) {
        if !self.bound || !self.connection.is_connected() {
            return;
        }
        let found = self.condition(plane_is_new).await;
        let changed = found != self.told;
        if plane_is_new || changed {
            self.tell(found.as_ref());
        }
        self.told = found;
    }

    fn tell(&self, found: Option<&LeaseCondition>) {
        let identity = self.plane.identity();
        let space = identity.space.clone();
        match found {
            Some(condition) => self.sink.notify(Notice::NoReadyLease {
                durable: Durable::Delivery.consumer(&space, &identity.lifecycle),
                space,
                condition: condition.clone(),
            }),
            None if self.told.is_some() => {
                self.pending_joins.hurry();
                self.missed.hurry();
                self.sink.notify(Notice::LeaseReady { space });
            }
            None => {}
        }
    }

    /// What stands in the way of delivery; `None` when a daemon serves.
    ///
    /// The row of a daemon that died says `ready` for as long as it lives, so it alone is no sign
    /// of life. One that was renewed since the last check is; any other, the daemon's responder is
    /// asked about.
    async fn condition(&mut self, plane_is_new: bool) -> Option<LeaseCondition> {
        let revision = match self.lease().await {
            Ok(revision) => revision,
            Err(condition) => {
                self.revision = 0;
                return Some(condition);
            }
        };
        let before = std::mem::replace(&mut self.revision, revision);
        if before != 0 && before != revision && !plane_is_new && self.told.is_none() {
            return None;
        }
        match self.plane.liveness().await {
            Ok(Liveness::Bound) => None,
            Ok(Liveness::Unbound) => Some(LeaseCondition::NotServing),
            // No answer to a single probe is no proof of an end; the row was renewed, or it
            // expires.
            Ok(Liveness::Unknown) if before != revision => None,
            Ok(Liveness::Unknown) => Some(LeaseCondition::Silent),
            Err(error) => Some(LeaseCondition::Unreadable(error.to_string())),
        }
    }

    /// The revision of the lease row when it says that a daemon serves.
    async fn lease(&self) -> Result<u64, LeaseCondition> {
        let space = &self.plane.identity().space;
        let bucket = Bucket::new(&self.connection, &space.bucket(Name::Delivery));
        let entry = match bucket.get(LEASE_KEY).await {
            Ok(entry) => entry,
            Err(error) => return Err(LeaseCondition::Unreadable(error.to_string())),
        };
        let Some((revision, value)) =
            entry.as_ref().and_then(|entry| Some((entry.revision, entry.live()?)))
        else {
            return Err(LeaseCondition::Missing);
        };
        match LeaseRow::parse(value) {
            Ok(lease) if lease.ready => Ok(revision),
            Ok(_) => Err(LeaseCondition::NotReady),
            Err(_) => Err(LeaseCondition::Garbled),
        }
    }
}
