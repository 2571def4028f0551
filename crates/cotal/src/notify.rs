//! What the service manager is told (`sd_notify`), when one has started this process.
//!
//! Invariant: `READY=1` follows a proof that something serves, and so does every `WATCHDOG=1`. What
//! was not proven just now is not said, so a manager restarts what hangs.

use std::fmt::Display;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

use crate::output::plain;

/// Between two proofs, where the manager sets no watchdog.
const PROGRESS_PROOF_EVERY: Duration = Duration::from_secs(30);

/// The way to the service manager.
#[derive(Debug)]
pub struct Notifier {
    every: Duration,
    ready: bool,
    /// What was said last.
    status: String,
}

impl Notifier {
    /// `None` when no service manager listens.
    pub fn from_process() -> Option<Self> {
        std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty())?;
        // Three proofs fit into the time after which the manager gives this process up.
        let every = sd_notify::watchdog_enabled().map_or(PROGRESS_PROOF_EVERY, |within| within / 3);
        Some(Self { every, ready: false, status: String::new() })
    }

    /// How often a proof is due; each has as long as that.
    pub fn every(&self) -> Duration {
        self.every
    }

    /// Tells the outcome of a proof; the text says what serves, or what does not.
    pub fn proven(&mut self, proof: Result<String, String>) {
        match proof {
            Ok(status) => {
                if !std::mem::replace(&mut self.ready, true) {
                    tell(&NotifyState::Ready);
                }
                tell(&NotifyState::Watchdog);
                self.status(&status);
            }
            Err(why) => self.status(&why),
        }
    }

    /// Says how things are, once for each change.
    pub fn status(&mut self, status: &str) {
        let status = plain(status);
        if status != self.status {
            tell(&NotifyState::Status(&status));
            self.status = status;
        }
    }
}

/// Says that this process ends, and why.
pub fn stopping(why: impl Display) {
    tell(&NotifyState::Stopping);
    tell(&NotifyState::Status(&plain(&why.to_string())));
}

/// A manager that does not listen is no reason to end.
fn tell(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        debug!(%error, "the service manager was not told");
    }
}
