//! Leaves in progress: entries that may not be released until the leave's cursor is known and its
//! closed row is applied.
//!
//! A leave reads its cursor, then writes it. A post that is stored between the two lies after the
//! cursor, but the rows still hold it. So the directory is told of a leave before the cursor is
//! read, and an entry that the leave may exclude stays undecided until the closed row is applied
//! (RDR-10).

use hashbrown::HashMap;

/// A leave in progress.
#[derive(Debug, Clone, Copy, Default)]
struct Leaving {
    /// The cursor it writes; every later post is undecided. `None`: it is not read yet.
    cursor: Option<u64>,
    /// The revision of its closed row; the leave ends when that is applied.
    written: Option<u64>,
}

/// The leaves in progress, by interned channel and member.
#[derive(Debug, Default)]
pub(super) struct Leaves(HashMap<(u32, u32), Leaving>);

impl Leaves {
    pub(super) fn begin(&mut self, row: (u32, u32)) {
        self.0.insert(row, Leaving::default());
    }

    pub(super) fn set_cursor(&mut self, row: (u32, u32), cursor: u64) {
        if let Some(leaving) = self.0.get_mut(&row) {
            leaving.cursor = Some(cursor);
        }
    }

    /// Ends the leave once `written` is applied: at once if it wrote nothing, or if `applied` is at
    /// least that revision.
    pub(super) fn end(&mut self, row: (u32, u32), written: Option<u64>, applied: Option<u64>) {
        if written <= applied {
            self.0.remove(&row);
        } else if let Some(leaving) = self.0.get_mut(&row) {
            leaving.written = written;
        }
    }

    /// Notes that a change of the row was applied.
    pub(super) fn applied(&mut self, row: (u32, u32), revision: u64) {
        let over = |leaving: &Leaving| leaving.written.is_some_and(|written| written <= revision);
        if self.0.get(&row).is_some_and(over) {
            self.0.remove(&row);
        }
    }

    /// Whether a leave in progress may exclude the post at `seq`.
    pub(super) fn may_exclude(&self, row: (u32, u32), seq: u64) -> bool {
        let leaving = self.0.get(&row);
        leaving.is_some_and(|leaving| leaving.cursor.is_none_or(|cursor| seq > cursor))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
