//! The entries that wait in the reader: the rules of [`Waiting`], shared by the reader, which
//! maintains them, and the admin rail, which lists them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cotal_rules::waiting::Waiting;
use cotal_wire::control::{WAITING_PAGE, WaitingArgs, WaitingEntries};

/// The waiting entries; cheap to clone. Their number is bounded by the slots for waiting entries
/// and by the batches that the reader keeps.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedWaiting(Arc<Mutex<Waiting>>);

impl SharedWaiting {
    /// Locks the waiting entries. Do not hold the lock across an await.
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many entries wait.
    pub(crate) fn len(&self) -> u64 {
        self.lock().len() as u64
    }

    /// One page of the waiting entries.
    pub(crate) fn page(&self, args: &WaitingArgs) -> WaitingEntries {
        let waiting = self.lock();
        let is_wanted = |member| args.member.as_ref().is_none_or(|it| it == member);
        let mut wanted = waiting.after(args.after).filter(|entry| is_wanted(&entry.member));
        let entries = wanted.by_ref().take(WAITING_PAGE).cloned().collect();
        WaitingEntries { entries, more: wanted.next().is_some() }
    }
}
