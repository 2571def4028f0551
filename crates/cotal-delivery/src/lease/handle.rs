//! The lane's side of its lease: what the lane wants, and the state of the lease. Both are levels,
//! so neither side can miss a change.

use tokio::sync::watch;

/// What the lane wants of its lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The row must say `ready`: the rails are bound and the loops run (LSE-8).
    pub(super) ready: bool,
    /// The row must be released.
    pub(super) release: bool,
}

/// The state of the lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeaseState {
    /// The row is ours, so the lane may serve.
    pub(crate) is_held: bool,
    /// The broker has confirmed a row that says `ready`, and the row is still ours.
    pub(crate) is_ready: bool,
    /// The row in the bucket may say `ready`, whether it should or not.
    pub(crate) may_say_ready: bool,
    /// The broker refused the last write, so it stores nothing, even if it answers other requests.
    pub(crate) is_refused: bool,
}

/// The lane's side.
#[derive(Debug)]
pub(crate) struct Lease {
    wanted: watch::Sender<Wanted>,
    state: watch::Receiver<LeaseState>,
}

/// The keeper's side.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) wanted: watch::Receiver<Wanted>,
    pub(super) state: watch::Sender<LeaseState>,
}

pub(super) fn handle() -> (Lease, Desk) {
    let (wanted, asked) = watch::channel(Wanted::default());
    let (shown, state) = watch::channel(LeaseState::default());
    (Lease { wanted, state }, Desk { wanted: asked, state: shown })
}

impl Lease {
    /// Sets whether the row must say `ready`.
    pub(crate) fn want_ready(&self, ready: bool) {
        self.change(|wanted| wanted.ready = ready);
    }

    /// Asks the keeper to release the lease and end.
    pub(crate) fn release(&self) {
        self.change(|wanted| wanted.release = true);
    }

    /// The state of the lease; the receiver also tells when it changes.
    pub(crate) fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.clone()
    }

    fn change(&self, change: impl Fn(&mut Wanted)) {
        self.wanted.send_if_modified(|wanted| {
            let before = *wanted;
            change(wanted);
            *wanted != before
        });
    }
}
