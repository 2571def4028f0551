//! Whether this lane may serve: opened and closed by the lease keeper, respected by every loop.

use tokio::sync::watch;

/// The keeper's side.
#[derive(Debug)]
pub(crate) struct GateKeeper(watch::Sender<bool>);

/// A loop's side; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Receiver<bool>);

/// A closed gate.
pub(crate) fn gate() -> (GateKeeper, Gate) {
    let (keeper, gate) = watch::channel(false);
    (GateKeeper(keeper), Gate(gate))
}

impl GateKeeper {
    /// Lets the loops serve, or holds them.
    pub(crate) fn set(&self, open: bool) {
        self.0.send_if_modified(|now| std::mem::replace(now, open) != open);
    }
}

impl Gate {
    /// Whether the lane serves now.
    pub(crate) fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the lane serves. Pends for ever when the keeper is gone, since nothing may be
    /// served without it.
    pub(crate) async fn open(&mut self) {
        if self.0.wait_for(|open| *open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
