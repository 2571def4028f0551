//! The lane's side of its lease: what the lane wants of it, and how it stands. Both are levels, so
//! nothing is lost that either side was too busy to hear.

use tokio::sync::watch;

/// What the lane wants of its lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The row is to say `ready`: the rails are bound and the loops run (LSE-8).
    pub(super) ready: bool,
    /// The row is to be released.
    pub(super) release: bool,
}

/// How the lease stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeaseState {
    /// The row stands, so the lane may serve.
    pub(crate) is_held: bool,
    /// The broker has confirmed a row that says `ready`, and it stands.
    pub(crate) is_ready: bool,
    /// The row in the bucket may say `ready`, whether it should or not.
    pub(crate) may_say_ready: bool,
    /// The broker refused the last write: it stores nothing, whatever else it answers.
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
    /// Says whether the row is to say `ready`.
    pub(crate) fn want_ready(&self, ready: bool) {
        self.change(|wanted| wanted.ready = ready);
    }

    /// Asks for the release, which ends the keeper.
    pub(crate) fn release(&self) {
        self.change(|wanted| wanted.release = true);
    }

    /// How the lease stands, and when that changes.
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
