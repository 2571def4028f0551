//! Whether this lane may serve: opened and closed by the lease keeper, respected by every loop.
//!
//! Invariant: the gate is open only while the own lease provably has not expired. It closes by the
//! clock alone, so a process that was paused, or whose host slept, finds it shut before it does
//! anything.

use tokio::sync::watch;

use crate::clock::BootInstant;

/// The keeper's side.
#[derive(Debug)]
pub(crate) struct GateKeeper(watch::Sender<Option<BootInstant>>);

/// A loop's side; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Receiver<Option<BootInstant>>);

/// A closed gate.
pub(crate) fn gate() -> (GateKeeper, Gate) {
    let (keeper, gate) = watch::channel(None);
    (GateKeeper(keeper), Gate(gate))
}

fn is_open(until: Option<BootInstant>) -> bool {
    until.is_some_and(|until| BootInstant::now() < until)
}

impl GateKeeper {
    /// Lets the loops serve until then, or holds them.
    pub(crate) fn set(&self, until: Option<BootInstant>) {
        self.0.send_if_modified(|now| std::mem::replace(now, until) != until);
    }
}

impl Gate {
    /// Whether the lane serves now.
    pub(crate) fn is_open(&self) -> bool {
        is_open(*self.0.borrow())
    }

    /// Waits until the lane serves. Pends for ever when the keeper is gone, since nothing may be
    /// served without it.
    pub(crate) async fn open(&mut self) {
        if self.0.wait_for(|until| is_open(*until)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
