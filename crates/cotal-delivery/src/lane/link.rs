//! The resident connection and its credential, in the form that the rules expect (LIF-2).

use cotal_nats::{ConnState, Connection};
use cotal_rules::watchdog::Link;
use cotal_wire::Space;
use tokio::sync::watch;
use tracing::{info, warn};

/// Counts the renewals that were proved and adopted.
pub(crate) type Renewals = watch::Sender<u64>;

/// The current state of the link, read from what is true now and never from events.
pub(super) struct LinkLevels {
    space: Space,
    connection: Connection,
    state: watch::Receiver<ConnState>,
    renewals: watch::Receiver<u64>,
    said: ConnState,
}

impl LinkLevels {
    /// The link of a connection that has just been made, and the counter of its renewals.
    pub(super) fn new(space: &Space, connection: &Connection) -> (Self, Renewals) {
        let renewals = Renewals::new(0);
        let state = connection.state();
        let said = *state.borrow();
        let levels = Self {
            space: space.clone(),
            connection: connection.clone(),
            said,
            state,
            renewals: renewals.subscribe(),
        };
        (levels, renewals)
    }

    /// The current state.
    pub(super) fn now(&mut self) -> Link {
        let state = *self.state.borrow_and_update();
        let creds = self.connection.creds().current().ok().flatten();
        Link {
            connected: state.is_connected(),
            drops: state.drops,
            expiries: state.expiries,
            renewals: *self.renewals.borrow_and_update(),
            is_past_expiry: creds.is_some_and(|creds| creds.check_life().is_err()),
        }
    }

    /// Logs that the connection dropped or is back. Called after the rules have looked, so that
    /// their clock has started or stopped before anybody can read the log line.
    pub(super) fn say(&mut self, link: Link) {
        if link.drops > self.said.drops {
            self.said.drops = link.drops;
            warn!(space = %self.space, "the broker connection dropped; redialling");
            self.said.phase = cotal_nats::Phase::Disconnected;
        }
        if link.connected && !self.said.is_connected() {
            self.said.phase = cotal_nats::Phase::Connected;
            info!(space = %self.space, "the broker connection is back");
        }
    }

    /// Waits until something may have changed. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.state.changed() => {}
            Ok(()) = self.renewals.changed() => {}
            else => std::future::pending().await,
        }
    }
}
