//! The state of each lane, for whoever runs the host.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use cotal_wire::Space;
use tokio::sync::watch;

use crate::clock::now_ms;

/// The state of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneState {
    /// It waits for its turn to open, or claims the lease.
    Opening,
    /// It holds the lease and does not serve: it is still starting, or must prove its lease again.
    Claimed,
    /// It serves its space.
    Serving,
    /// Another daemon holds the lease; the host waits until the lease row is gone.
    Standby,
    /// Its credentials were refused; the host reads them again and retries.
    Refused,
    /// It ended for another reason; the host reopens it.
    Closed,
    /// It finishes the work in progress and releases its lease.
    Stopping,
}

impl LaneState {
    /// The state in one lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Claimed => "claimed",
            Self::Serving => "serving",
            Self::Standby => "standby",
            Self::Refused => "refused",
            Self::Closed => "closed",
            Self::Stopping => "stopping",
        }
    }
}

impl fmt::Display for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One lane of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneStatus {
    /// Its space.
    pub space: Space,
    /// Its state.
    pub state: LaneState,
    /// The reason for the state, if there is one.
    pub reason: Option<String>,
    /// Since when it is in this state, Unix milliseconds. Repeated refusals count from the first
    /// one.
    pub since: i64,
}

/// The status of every lane.
#[derive(Default)]
pub(super) struct Board {
    lanes: Mutex<BTreeMap<Space, LaneStatus>>,
    changes: watch::Sender<u64>,
}

impl Board {
    /// Notes the state of a lane; returns whether state or reason has changed.
    pub(super) fn set(&self, space: &Space, state: LaneState, reason: Option<String>) -> bool {
        let mut status = LaneStatus { space: space.clone(), state, reason, since: now_ms() };
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = lanes.get(space).filter(|before| before.state == state) {
            if before.reason == status.reason {
                return false;
            }
            status.since = before.since;
        }
        lanes.insert(space.clone(), status);
        drop(lanes);
        self.changes.send_modify(|changes| *changes += 1);
        true
    }

    pub(super) fn remove(&self, space: &Space) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).remove(space);
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(super) fn lanes(&self) -> Vec<LaneStatus> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.values().cloned().collect()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_lasts_keeps_its_instant_and_only_a_change_is_news() {
        let (board, space) = (Board::default(), Space::parse("a").unwrap());
        let mut changes = board.changes();
        let reason = |text: &str| Some(text.to_owned());
        assert!(board.set(&space, LaneState::Refused, reason("malformed")));
        let since = board.lanes()[0].since;
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(!board.set(&space, LaneState::Refused, reason("malformed")));
        assert!(!changes.has_changed().unwrap());
        assert!(board.set(&space, LaneState::Refused, reason("expired")));
        assert_eq!(board.lanes()[0].since, since);
        board.remove(&space);
        assert_eq!(board.lanes(), []);
    }
}
