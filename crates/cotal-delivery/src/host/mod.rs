//! A host: the lanes of many spaces in one process (HST-1 to HST-4).
//!
//! Invariant: the lanes share threads and timers, and nothing else. A lane that ends is closed
//! alone, and reopened as `cotal_rules::reopen` decides. No lane waits for another one's broker,
//! store or stop. A host takes nothing from its surroundings that it was not given: no working
//! directory, signals, environment, process exit or logger.

pub(crate) mod board;
pub(crate) mod options;
mod pace;
mod shared;
mod standby;
mod supervisor;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cotal_wire::Space;
use cotal_workspace::SecretStore;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use board::{Board, LaneStatus};
use options::HostOptions;
use pace::Pace;
use shared::Shared;
use supervisor::Supervisor;

/// The lanes of many spaces.
///
/// Each lane reads its own credentials from the store, makes its own connections, holds its own
/// lease, and is closed and reopened alone. Dropping a host aborts its lanes without a release:
/// their leases then expire. Call [`Host::close`] instead.
pub struct Host {
    shared: Arc<Shared>,
    lanes: BTreeMap<Space, Opened>,
}

/// The supervisor task of a lane.
struct Opened {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Host {
    /// Starts a lane for each of `spaces`, one after the other at a fixed pace, in the background
    /// of the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn start(
        options: HostOptions,
        store: Arc<dyn SecretStore>,
        spaces: impl IntoIterator<Item = Space>,
    ) -> Self {
        let pace = Pace::new(options.open_every);
        let spaces: BTreeSet<Space> = spaces.into_iter().collect();
        let lanes = AtomicUsize::new(spaces.len());
        let shared = Arc::new(Shared { options, store, pace, board: Board::default(), lanes });
        let mut host = Self { shared, lanes: BTreeMap::new() };
        spaces.into_iter().for_each(|space| host.add(space));
        host
    }

    /// Serves exactly `spaces` from now on: lanes are opened for new spaces, and those of other
    /// spaces are closed while the rest continues to serve. Returns once every closed lane has
    /// ended.
    ///
    /// If the future is dropped, changes that have begun continue: a lane that is being closed
    /// ends, and the next call removes it. Call it again then, because lanes may be missing.
    pub async fn set_spaces(&mut self, spaces: impl IntoIterator<Item = Space>) {
        let wanted: BTreeSet<Space> = spaces.into_iter().collect();
        // Lanes that serve keep the pace at which they were opened.
        self.shared.lanes.store(wanted.len(), Ordering::Relaxed);
        let leaving = self.lanes.keys().filter(|space| !wanted.contains(*space));
        let leaving: Vec<Space> = leaving.cloned().collect();
        for space in wanted {
            // A lane whose closing was not awaited must end before its successor begins.
            if self.lanes.get(&space).is_some_and(|lane| lane.stop.is_cancelled()) {
                self.end(std::slice::from_ref(&space)).await;
            }
            if !self.lanes.contains_key(&space) {
                self.add(space);
            }
        }
        self.end(&leaving).await;
    }

    /// The state of every lane, its reason, and since when.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneStatus> {
        self.shared.board.lanes()
    }

    /// Changes whenever the state of a lane changes. The receiver outlives the host, and is closed
    /// with it.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.board.changes()
    }

    /// Closes all lanes at the same time: each finishes the work in progress and releases its
    /// lease.
    ///
    /// If the future is dropped, the lanes are aborted without a release.
    pub async fn close(mut self) {
        let all: Vec<Space> = self.lanes.keys().cloned().collect();
        self.end(&all).await;
    }

    fn add(&mut self, space: Space) {
        if self.lanes.contains_key(&space) {
            return;
        }
        let stop = CancellationToken::new();
        let supervisor = Supervisor::new(space.clone(), Arc::clone(&self.shared), stop.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(supervisor.run()));
        self.lanes.insert(space, Opened { stop, task });
    }

    /// Closes these lanes at the same time, and waits until each has ended.
    async fn end(&mut self, spaces: &[Space]) {
        let mut ending = Vec::new();
        for (space, lane) in &mut self.lanes {
            if spaces.contains(space) {
                lane.stop.cancel();
                // A lane that has ended must not be awaited twice.
                ending.extend((!lane.task.is_finished()).then_some(&mut lane.task));
            }
        }
        join_all(ending).await;
        for space in spaces {
            self.lanes.remove(space);
            self.shared.board.remove(space);
        }
    }
}
