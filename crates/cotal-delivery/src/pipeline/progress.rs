//! How far the reader has come, as the fan-out writer, the registry and the recall ask.

/// How far the reader has come in INBOX.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReaderProgress {
    /// Every entry up to this sequence has been dealt with once.
    pub(super) taken: u64,
    /// Nothing was left when last looked.
    pub(super) idle: bool,
}

impl ReaderProgress {
    /// The state of a reader whose consumer has nothing to give.
    pub(crate) fn idle() -> Self {
        Self { taken: 0, idle: true }
    }

    /// A reader that has dealt with every entry up to `taken` and may have more to do.
    #[cfg(test)]
    pub(crate) fn at(taken: u64) -> Self {
        Self { taken, idle: false }
    }

    /// Whether every entry up to `mark` was taken, whatever is said of a consumer that had none left.
    pub(crate) fn took(&self, mark: u64) -> bool {
        self.taken >= mark
    }

    /// Whether what stood in INBOX at `mark` has been dealt with.
    pub(crate) fn reached(&self, mark: u64) -> bool {
        self.idle || self.taken >= mark
    }
}

/// What the reader has judged and settled, in batches: a batch judged before an ACL changed may
/// still be on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Batches {
    pub(crate) judged: u64,
    pub(crate) settled: u64,
}
