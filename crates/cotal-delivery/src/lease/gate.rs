//! Whether this lane may serve. The lease keeper opens and closes the gate, and every loop checks
//! it.
//!
//! Invariant: the gate is open only while this run's lease provably has not expired. It closes by
//! the clock alone, so a process that was paused, or whose host slept, finds it closed before it
//! does anything.

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
    /// Opens the gate until the given instant, or closes it.
    pub(crate) fn set(&self, until: Option<BootInstant>) {
        self.0.send_if_modified(|now| std::mem::replace(now, until) != until);
    }
}

impl Gate {
    /// Whether the lane serves now.
    pub(crate) fn is_open(&self) -> bool {
        is_open(*self.0.borrow())
    }

    /// Waits until the lane serves. Pends for ever once the keeper is gone, because nothing may be
    /// served without it.
    pub(crate) async fn open(&mut self) {
        if self.0.wait_for(|until| is_open(*until)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
