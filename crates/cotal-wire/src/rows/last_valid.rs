//! Which row is in force when the newest value of a key cannot be parsed (`wire.md` §4).
//!
//! A value that cannot be parsed is neither a row nor a deletion: the last valid row stays in
//! force. It is looked for in the key's history, newest first. A deletion is a valid state, so
//! nothing older than a deletion is in force. The history and the daemon's memory complete each
//! other: a flood of garbage pushes valid rows out of the history, and memory has nothing from
//! before this process.

/// What is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastValid<T> {
    /// This row, of this revision.
    Row(T, u64),
    /// Nothing: the key was deleted at this revision.
    Deleted(u64),
    /// The history does not say.
    Unknown,
}

impl<T> LastValid<T> {
    /// Looks for what is in force before the revision `garbled` of a key. `history` is the key's
    /// revisions, oldest first, with `None` for a deletion; `parse` returns a valid row.
    pub fn behind<'a, H>(
        garbled: u64,
        history: H,
        mut parse: impl FnMut(&'a [u8], u64) -> Option<T>,
    ) -> Self
    where
        H: IntoIterator<Item = (u64, Option<&'a [u8]>), IntoIter: DoubleEndedIterator>,
    {
        let older = history.into_iter().rev().filter(|(revision, _)| *revision < garbled);
        for (revision, value) in older {
            let Some(value) = value else { return Self::Deleted(revision) };
            if let Some(row) = parse(value, revision) {
                return Self::Row(row, revision);
            }
        }
        Self::Unknown
    }

    /// The same of what a row is turned into.
    #[must_use]
    pub fn map<U>(self, turn: impl FnOnce(T) -> U) -> LastValid<U> {
        match self {
            Self::Row(row, revision) => LastValid::Row(turn(row), revision),
            Self::Deleted(revision) => LastValid::Deleted(revision),
            Self::Unknown => LastValid::Unknown,
        }
    }

    /// Whichever is newer: this, or a row that was remembered elsewhere.
    #[must_use]
    pub fn or_newer(self, remembered: Option<(T, u64)>) -> Self {
        let revision = match &self {
            Self::Row(_, revision) | Self::Deleted(revision) => *revision,
            Self::Unknown => 0,
        };
        match remembered {
            Some((row, at)) if at > revision => Self::Row(row, at),
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Option<&[u8]> = Some(b"row");
    const GARBAGE: Option<&[u8]> = Some(b"?");

    fn behind(garbled: u64, history: &[(u64, Option<&'static [u8]>)]) -> LastValid<&'static str> {
        let parse = |value: &[u8], _| (value == b"row").then_some("row");
        LastValid::behind(garbled, history.iter().copied(), parse)
    }

    #[test]
    fn the_newest_valid_row_before_the_garbage_stands_unless_it_was_deleted() {
        let row = |revision| LastValid::Row("row", revision);
        assert_eq!(behind(9, &[(1, ROW), (3, ROW), (9, GARBAGE)]), row(3));
        assert_eq!(behind(9, &[(3, ROW), (5, GARBAGE), (9, GARBAGE), (10, ROW)]), row(3));
        assert_eq!(behind(9, &[(3, ROW), (5, None), (9, GARBAGE)]), LastValid::Deleted(5));
        assert_eq!(behind(9, &[(9, GARBAGE)]), LastValid::Unknown);
    }

    #[test]
    fn what_is_remembered_stands_only_when_it_is_newer() {
        let remembered = |at| Some(("kept", at));
        let kept = |at| LastValid::Row("kept", at);
        assert_eq!(behind(9, &[]).or_newer(remembered(4)), kept(4));
        assert_eq!(behind(9, &[(5, ROW)]).or_newer(remembered(4)), LastValid::Row("row", 5));
        assert_eq!(behind(9, &[(5, None)]).or_newer(remembered(4)), LastValid::Deleted(5));
        assert_eq!(behind(9, &[(5, None)]).or_newer(remembered(7)), kept(7));
        assert_eq!(behind(9, &[]).or_newer(None), LastValid::Unknown);
    }
}
