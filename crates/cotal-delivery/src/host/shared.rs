//! What the supervisors of a host's lanes share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use cotal_workspace::SecretStore;

use super::board::Board;
use super::options::HostOptions;
use super::pace::Pace;

/// What every lane of a host gets.
pub(super) struct Shared {
    pub(super) options: HostOptions,
    pub(super) store: Arc<dyn SecretStore>,
    pub(super) pace: Pace,
    pub(super) board: Board,
    /// How many spaces the host is to serve.
    pub(super) lanes: AtomicUsize,
}
