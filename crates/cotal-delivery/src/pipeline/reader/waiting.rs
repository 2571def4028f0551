//! The entries that were waiting_list to the reader's consumer and will come again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cotal_wire::control::{WAITING_PAGE, WaitingArgs, WaitingEntries, WaitingEntry};

/// Shared by the reader, which fills it, and the admin rail, which shows it. Its size is bounded by
/// the slots that waiting entries may hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitingList(Arc<Mutex<BTreeMap<u64, WaitingEntry>>>);

impl WaitingList {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, WaitingEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an entry; one that is known keeps the time of its first try.
    pub(crate) fn note(&self, entry: WaitingEntry) {
        let mut entries = self.entries();
        let first_at = entries.get(&entry.seq).map_or(entry.first_at, |known| known.first_at);
        entries.insert(entry.seq, WaitingEntry { first_at, ..entry });
    }

    /// Forgets an entry that came to its end.
    pub(crate) fn forget(&self, seq: u64) {
        self.entries().remove(&seq);
    }

    /// The lowest sequence that waits.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries().keys().next().copied()
    }

    /// One page of what waits.
    pub(crate) fn page(&self, args: &WaitingArgs) -> WaitingEntries {
        let entries = self.entries();
        let mut wanted = entries
            .range(args.after.saturating_add(1)..)
            .map(|(_, entry)| entry)
            .filter(|entry| args.member.as_ref().is_none_or(|member| *member == entry.member));
        let page = wanted.by_ref().take(WAITING_PAGE).cloned().collect();
        WaitingEntries { entries: page, more: wanted.next().is_some() }
    }
}
