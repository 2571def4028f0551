//! How many posts may stand before the reader, so that INBOX's cap never takes an unread copy.
//!
//! Invariant: a member gets at most one copy of a post, so what stands unread of it in INBOX is at
//! most the posts that were routed and are not known to be dealt with. A *mark* is a sequence of
//! INBOX that was read after some posts were confirmed: all their copies stand at or below it. Once
//! the reader has come to a mark, those posts are dealt with.

use std::collections::VecDeque;

/// Posts before the reader: below the store's cap of 1,000 even with a catch-up beside them.
const LIMIT: u64 = 600;
/// A mark is asked for when as many posts were confirmed since the last one.
const MARK_EVERY: u64 = 64;

/// Counts posts that have copies, since the start of the lane.
#[derive(Debug)]
pub(crate) struct AdmissionWindow {
    routed: u64,
    confirmed: u64,
    dealt_with: u64,
    /// How many posts were confirmed when a mark was last asked for.
    asked: u64,
    /// Marks the reader has not come to: the posts confirmed before, and the sequence.
    marks: VecDeque<(u64, u64)>,
}

impl AdmissionWindow {
    /// Full until the reader has dealt with `backlog`, the last entry that stood before this lane.
    pub(crate) fn new(backlog: u64) -> Self {
        Self {
            routed: LIMIT,
            confirmed: LIMIT,
            dealt_with: 0,
            asked: LIMIT,
            marks: VecDeque::from([(LIMIT, backlog)]),
        }
    }

    /// Whether one more post may be routed.
    pub(crate) fn has_space(&self) -> bool {
        self.routed - self.dealt_with < LIMIT
    }

    /// A post's copies are on their way.
    pub(crate) fn routed(&mut self) {
        self.routed += 1;
    }

    /// A routed post has been settled.
    pub(crate) fn confirmed(&mut self) {
        self.confirmed += 1;
    }

    /// Whether a mark should be read now. If so, whoever reads it gives it to
    /// [`AdmissionWindow::mark`] with the number of posts that this returns.
    pub(crate) fn ask(&mut self) -> Option<u64> {
        let news = self.confirmed - self.asked;
        let due = news >= MARK_EVERY || (news > 0 && !self.has_space());
        due.then(|| {
            self.asked = self.confirmed;
            self.asked
        })
    }

    /// Takes a mark that was read after `posts` posts were confirmed.
    pub(crate) fn mark(&mut self, posts: u64, seq: u64) {
        self.marks.push_back((posts, seq));
    }

    /// Takes up to which entry the reader has dealt with everything.
    pub(crate) fn reader_passed(&mut self, done: u64) {
        while let Some((posts, _)) = self.marks.pop_front_if(|(_, seq)| *seq <= done) {
            self.dealt_with = posts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_routed_before_the_backlog_is_dealt_with() {
        let mut window = AdmissionWindow::new(50);
        assert!(!window.has_space());
        window.reader_passed(49);
        assert!(!window.has_space());
        window.reader_passed(50);
        assert!(window.has_space());
        assert_eq!(window.ask(), None, "nothing was confirmed since");
    }

    #[test]
    fn posts_on_their_way_count_until_a_mark_that_covers_them_is_reached() {
        let mut window = AdmissionWindow::new(0);
        window.reader_passed(0);
        for _ in 0..LIMIT {
            assert!(window.has_space());
            window.routed();
        }
        assert!(!window.has_space());
        assert_eq!(window.ask(), None, "no copy is confirmed, so no mark covers any");
        window.confirmed();
        let posts = window.ask().expect("a full window asks for each post");
        window.confirmed();
        window.mark(posts, 10);
        window.reader_passed(9);
        assert!(!window.has_space());
        window.reader_passed(10);
        window.routed();
        assert!(!window.has_space(), "the mark covers one post and not the one confirmed after it");
    }

    #[test]
    fn marks_are_asked_for_now_and_then() {
        let mut window = AdmissionWindow::new(0);
        window.reader_passed(0);
        for _ in 0..MARK_EVERY - 1 {
            window.routed();
            window.confirmed();
            assert_eq!(window.ask(), None);
        }
        window.routed();
        window.confirmed();
        assert_eq!(window.ask(), Some(LIMIT + MARK_EVERY));
        assert_eq!(window.ask(), None);
    }
}
