//! The broker watchdog: hears the resident connection's events and nothing else (LIF-2).

use std::time::{Duration, Instant};

use cotal_nats::{ConnEvent, Connection};
use cotal_rules::watchdog::{Event, Verdict, Watchdog, Windows};
use cotal_wire::Space;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::lane::error::LaneError;

/// Renewals told and not yet heard.
const RENEWALS: usize = 4;

/// Tells the watchdog that a renewal was proved and adopted.
pub(crate) type Renewed = mpsc::Sender<()>;

/// Watches one connection.
pub(crate) struct BrokerWatch {
    space: Space,
    connection: Connection,
    windows: Windows,
    renewals: mpsc::Receiver<()>,
}

impl BrokerWatch {
    /// A watch over `connection`, and the way to tell it of renewals.
    pub(crate) fn new(space: &Space, connection: &Connection, windows: Windows) -> (Self, Renewed) {
        let (renewed, renewals) = mpsc::channel(RENEWALS);
        let watch =
            Self { space: space.clone(), connection: connection.clone(), windows, renewals };
        (watch, renewed)
    }

    /// Watches until the broker, or the credential, is given up.
    pub(crate) async fn run(mut self) -> LaneError {
        let started = Instant::now();
        let now = || i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let mut events = self.connection.events();
        let mut rules = Watchdog::new(self.windows, 0);
        let period = Duration::from_millis(rules.tick_ms().unsigned_abs());
        let mut tick = tokio::time::interval(period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut heard = None;
            let event = tokio::select! {
                biased;
                event = events.recv() => match event {
                    Ok(event) => told(heard.insert(event)),
                    // A burst was missed; the state itself is the truth.
                    Err(RecvError::Lagged(_)) => Some(self.state()),
                    Err(RecvError::Closed) => Some(Event::Disconnected),
                },
                Some(()) = self.renewals.recv() => Some(Event::Renewed),
                _ = tick.tick() => Some(Event::Tick),
            };
            let Some(event) = event else { continue };
            // The clock has started, or stopped, before anybody can read that it has.
            let verdict = rules.on(event, now());
            self.note(heard.as_ref());
            if let Some(end) = verdict.and_then(|verdict| self.say(verdict)) {
                return end;
            }
        }
    }

    fn state(&self) -> Event {
        if self.connection.is_connected() { Event::Connected } else { Event::Disconnected }
    }

    fn note(&self, heard: Option<&ConnEvent>) {
        match heard {
            Some(ConnEvent::Connected) => {
                info!(space = %self.space, "the broker connection is back");
            }
            Some(ConnEvent::Disconnected) => {
                warn!(space = %self.space, "the broker connection dropped; redialling");
            }
            _ => {}
        }
    }

    fn say(&self, verdict: Verdict) -> Option<LaneError> {
        match verdict {
            Verdict::AwaitRenewal => {
                error!(space = %self.space, "! delivery: credential expired, awaiting proved renewal");
                None
            }
            Verdict::Unreachable => Some(LaneError::BrokerGone),
            Verdict::PastBackstop => Some(LaneError::BrokerGonePastBackstop),
            Verdict::NotRenewed => Some(LaneError::NotRenewed),
        }
    }
}

fn told(event: &ConnEvent) -> Option<Event> {
    match event {
        ConnEvent::Connected => Some(Event::Connected),
        ConnEvent::Disconnected => Some(Event::Disconnected),
        ConnEvent::AuthExpired => Some(Event::Expired),
        _ => None,
    }
}
