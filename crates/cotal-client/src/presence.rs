//! The heartbeat by which others see the agent as present.

use std::time::Duration;

use cotal_nats::{Bucket, Connection, NatsError, to_json};
use cotal_wire::Lifecycle;
use cotal_wire::names::Bucket as Name;
use cotal_wire::rows::{Card, PresenceRow};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::fresh::now_ms;
use crate::identity::Identity;
use crate::notice::Notice;
use crate::sink::Sink;

/// A row lives 6 s, so two beats may be lost.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);

/// The task that writes the agent's presence row.
#[derive(Debug)]
pub(crate) struct Presence {
    bucket: Bucket,
    identity: Identity,
    status: watch::Receiver<String>,
    sink: Sink,
}

impl Presence {
    pub(crate) fn new(
        connection: &Connection,
        identity: &Identity,
        status: watch::Receiver<String>,
        sink: Sink,
    ) -> Self {
        Self {
            bucket: Bucket::new(connection, &identity.space.bucket(Name::Presence)),
            identity: identity.clone(),
            status,
            sink,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut beat = interval(HEARTBEAT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = beat.tick() => {}
                Ok(()) = self.status.changed() => {}
            }
            if !self.bucket.connection().is_connected() {
                continue;
            }
            let row = self.row();
            let written = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                written = self.write(&row) => written,
            };
            match written {
                Ok(_) => told = false,
                Err(error) if !told => {
                    told = true;
                    let reason = error.to_string();
                    self.sink.notify(Notice::PresenceUnwritten { reason });
                }
                Err(_) => {}
            }
        }
        self.leave().await;
    }

    /// Others see the agent go at once; without it its row expires.
    async fn leave(&self) {
        if let Err(error) = self.bucket.delete(self.key(), None).await {
            tracing::debug!(%error, "the presence row is left to expire");
        }
    }

    fn key(&self) -> &str {
        self.identity.lifecycle.principal.as_str()
    }

    async fn write(&self, row: &PresenceRow) -> Result<u64, NatsError> {
        self.bucket.put(self.key(), to_json(row)?).await
    }

    fn row(&self) -> PresenceRow {
        let Lifecycle { principal, .. } = &self.identity.lifecycle;
        PresenceRow {
            card: Card {
                id: principal.clone(),
                name: self.identity.name.clone(),
                kind: "agent".to_owned(),
                role: self.identity.role.as_ref().map(ToString::to_string),
            },
            status: self.status.borrow().clone(),
            ts: now_ms(),
        }
    }
}
