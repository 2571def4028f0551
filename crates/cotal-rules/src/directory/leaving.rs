//! Leaves under way: what may not be released until their cursor is known and their row is seen.
//!
//! A leave reads its cursor, then writes it. A post that comes between the two lies after the
//! cursor,
//! and the rows still hold it. So the directory is told of a leave before the cursor is read, and
//! an
//! entry that the leave may exclude is left undecided until the closed row is applied (RDR-10).

use hashbrown::HashMap;

/// A leave under way.
#[derive(Debug, Clone, Copy, Default)]
struct Leaving {
    /// The cursor it writes; every later post is undecided. `None`: it is not read yet.
    cursor: Option<u64>,
    /// The revision of its closed row; the leave is over once that is applied.
    written: Option<u64>,
}

/// The leaves under way, by interned channel and member.
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

    /// Ends the leave once `written` is applied; at once when it wrote nothing, or when `applied`
    /// shows that it is.
    pub(super) fn end(&mut self, row: (u32, u32), written: Option<u64>, applied: Option<u64>) {
        if written <= applied {
            self.0.remove(&row);
        } else if let Some(leaving) = self.0.get_mut(&row) {
            leaving.written = written;
        }
    }

    /// A change of the row was applied.
    pub(super) fn applied(&mut self, row: (u32, u32), revision: u64) {
        let over = |leaving: &Leaving| leaving.written.is_some_and(|written| written <= revision);
        if self.0.get(&row).is_some_and(over) {
            self.0.remove(&row);
        }
    }

    /// Whether a leave under way may exclude the post at `seq`.
    pub(super) fn may_exclude(&self, row: (u32, u32), seq: u64) -> bool {
        let leaving = self.0.get(&row);
        leaving.is_some_and(|leaving| leaving.cursor.is_none_or(|cursor| seq > cursor))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
