//! Watches over the connection and the plane behind it, and tells what changed.

use std::time::Duration;

use cotal_nats::{Bucket, ConnEvent, Connection};
use cotal_wire::names::{Bucket as Name, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::identity::Identity;
use crate::notice::{LeaseCondition, Notice};
use crate::pump::Durable;
use crate::sink::Sink;

/// A lease lives 30 s; a plane that lost its daemon is noticed within this on top.
const CHECK: Duration = Duration::from_secs(10);

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
    events: Receiver<ConnEvent>,
    identity: Identity,
    sink: Sink,
    /// Whether a durable is bound, so that a missing lease concerns this endpoint.
    bound: bool,
    /// What was last found instead of a ready lease, and told.
    told: Option<LeaseCondition>,
    /// Whether a drop was told; the first connect may be heard of too and is no news.
    dropped: bool,
}

impl Keeper {
    pub(crate) fn new(
        connection: &Connection,
        identity: &Identity,
        sink: Sink,
        bound: bool,
    ) -> Self {
        Self {
            connection: connection.clone(),
            events: connection.events(),
            identity: identity.clone(),
            sink,
            bound,
            told: None,
            dropped: false,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut check = interval(CHECK);
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
        let refused = |reason: &str| Notice::CredentialRefused { reason: reason.to_owned() };
        match event {
            ConnEvent::Connected if self.dropped => self.welcome_back().await,
            ConnEvent::Connected => self.check_lease(false).await,
            ConnEvent::Disconnected => {
                self.dropped = true;
                self.sink.notify(Notice::Disconnected);
            }
            ConnEvent::AuthExpired => self.sink.notify(refused("it has expired")),
            ConnEvent::AuthRevoked => self.sink.notify(refused("it was revoked")),
            ConnEvent::AuthViolation => self.sink.notify(refused("it is not authorized")),
            ConnEvent::CredsUnusable => {
                self.sink.notify(refused("it is expired or unreadable and was not presented"));
            }
            ConnEvent::SlowConsumer(_) => self.sink.notify(Notice::Overrun),
            ConnEvent::Denied(_)
            | ConnEvent::LameDuck
            | ConnEvent::ServerError(_)
            | ConnEvent::RedialFailed(_)
            | ConnEvent::Closed => {}
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
        self.sink.notify(Notice::Reconnected);
        self.check_lease(true).await;
    }

    /// Tells changes only; a plane that was just reached is judged anew.
    async fn check_lease(&mut self, plane_is_new: bool) {
        if !self.bound || !self.connection.is_connected() {
            return;
        }
        let found = self.lease().await;
        let changed = found != self.told;
        if plane_is_new || changed {
            self.tell(found.as_ref());
        }
        self.told = found;
    }

    fn tell(&self, found: Option<&LeaseCondition>) {
        let space = self.identity.space.clone();
        match found {
            Some(condition) => self.sink.notify(Notice::NoReadyLease {
                durable: Durable::Delivery.consumer(&space, &self.identity.lifecycle),
                space,
                condition: condition.clone(),
            }),
            None if self.told.is_some() => self.sink.notify(Notice::LeaseReady { space }),
            None => {}
        }
    }

    /// What stands in the way of delivery; `None` when the lease is ready.
    async fn lease(&self) -> Option<LeaseCondition> {
        let bucket = Bucket::new(&self.connection, &self.identity.space.bucket(Name::Delivery));
        let entry = match bucket.get(LEASE_KEY).await {
            Ok(entry) => entry,
            Err(error) => return Some(LeaseCondition::Unreadable(error.to_string())),
        };
        let Some(value) = entry.as_ref().and_then(|entry| entry.live()) else {
            return Some(LeaseCondition::Missing);
        };
        match LeaseRow::parse(value) {
            Ok(lease) if lease.ready => None,
            Ok(_) => Some(LeaseCondition::NotReady),
            Err(_) => Some(LeaseCondition::Garbled),
        }
    }
}
