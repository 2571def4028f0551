//! Stored sequences that contradict their stream.
//!
//! Member rows, dead rows, ACL frontiers and the daemon's consumers name sequences of streams. A
//! sequence beyond the last one of its stream cannot be true: the stream was created again, or a
//! power failure or a restored copy lost its end. The broker will give those sequences out again.
//! Then a membership that begins beyond the end would withhold new posts from its member, one that
//! ends beyond it would give new posts to somebody who left, and a dead row would name another
//! entry. So each such sequence is corrected to the last one that can be true.

use cotal_wire::rows::AclRow;

use crate::directory::Membership;

/// What a member row must say when CHAT ends at `last`; `None` when it is right as it is. An open
/// membership stays open and begins at `last` at the latest; a closed one stays closed and ends at
/// `last` at the latest.
#[must_use]
pub fn member_row(row: &Membership, last: u64) -> Option<Membership> {
    let join_cursor = row.join_cursor.min(last);
    let leave_cursor = row.leave_cursor.map(|leave| leave.min(last));
    let stands = (join_cursor, leave_cursor) == (row.join_cursor, row.leave_cursor);
    (!stands).then(|| Membership { join_cursor, leave_cursor, ..row.clone() })
}

/// Whether a row about the entry at `seq` cannot be true, because INBOX ends at `last`.
#[must_use]
pub fn is_gone(seq: u64, last: u64) -> bool {
    seq > last
}

/// The frontier that a lifecycle's ACL row must say when CHAT ends at `last`; `None` when it is
/// right as it is.
#[must_use]
pub fn frontier(row: &AclRow, last: u64) -> Option<u64> {
    row.activated.filter(|frontier| frontier.chat > last).map(|_| last)
}

/// Where a consumer that has passed `passed` must resume on a stream that ends at `last`; `None`
/// when its own position is right.
#[must_use]
pub fn resume(passed: u64, last: u64) -> Option<u64> {
    (passed > last).then_some(last + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{acl, life, row, since};

    fn held(join: u64, leave: Option<u64>) -> Membership {
        Membership::of(&row("team", &life("bob"), 2, join, leave), 7)
    }

    #[test]
    fn rdr_10_fan_1_an_interval_beyond_the_end_neither_withholds_new_posts_nor_gives_them_away() {
        assert_eq!(member_row(&held(5, None), 5), None);
        assert_eq!(member_row(&held(2, Some(5)), 5), None);
        let open = member_row(&held(9, None), 5).unwrap();
        assert!(open.holds(6) && !open.holds(5), "the next post is the member's");
        let closed = member_row(&held(2, Some(9)), 5).unwrap();
        assert!(closed.holds(5) && !closed.holds(6), "the next post is not");
        let empty = member_row(&held(7, Some(9)), 5).unwrap();
        assert!((0..20).all(|seq| !empty.holds(seq)));
        assert_eq!((empty.generation, empty.revision), (2, 7));
    }

    #[test]
    fn a_dead_row_a_frontier_and_a_consumer_beyond_the_end_cannot_be_true() {
        assert!(is_gone(6, 5) && !is_gone(5, 5));
        assert_eq!(frontier(&since(6, acl(&[])), 5), Some(5));
        assert_eq!(frontier(&since(5, acl(&[])), 5), None);
        assert_eq!(frontier(&acl(&[]), 0), None);
        assert_eq!((resume(6, 5), resume(5, 5)), (Some(6), None));
    }

    proptest! {
        /// Whatever a row said: afterwards every new post is inside exactly when it is open.
        #[test]
        fn a_corrected_row_holds_new_posts_exactly_when_it_is_open(
            join in 0_u64..50,
            length in proptest::option::of(0_u64..50),
            last in 0_u64..50,
            new in 1_u64..20,
        ) {
            let row = held(join, length.map(|length| join + length));
            let row = member_row(&row, last).unwrap_or(row);
            prop_assert_eq!(row.holds(last + new), row.is_open());
            prop_assert_eq!(member_row(&row, last), None, "once is enough");
        }
    }
}
