//! Limits how many routed posts the reader has not processed yet, so that INBOX's cap never
//! discards an unread copy.
//!
//! Invariant: a member gets at most one copy of a post. So its unread copies in INBOX are at most
//! as many as the posts that were routed and are not known to be processed. A *mark* is a sequence
//! of INBOX that was read after some posts were confirmed: all their copies are at or below it.
//! Once the reader has passed a mark, those posts are processed.

use std::collections::VecDeque;

/// Routed posts that the reader has not processed: below INBOX's cap of 1,000, with room for a
/// catch-up.
const MAX_ROUTED_AHEAD: u64 = 600;
/// A new mark is read after this many posts were confirmed since the last one.
const MARK_EVERY: u64 = 64;

/// Counts posts that have copies, since the start of the lane.
#[derive(Debug)]
pub(crate) struct AdmissionWindow {
    routed: u64,
    confirmed: u64,
    dealt_with: u64,
    /// How many posts were confirmed when a mark was last requested.
    asked: u64,
    /// Marks that the reader has not passed: the number of posts confirmed before, and the
    /// sequence.
    marks: VecDeque<(u64, u64)>,
}

impl AdmissionWindow {
    /// Full until the reader has passed `backlog`, the last entry that was in INBOX before this
    /// lane.
    pub(crate) fn new(backlog: u64) -> Self {
        Self {
            routed: MAX_ROUTED_AHEAD,
            confirmed: MAX_ROUTED_AHEAD,
            dealt_with: 0,
            asked: MAX_ROUTED_AHEAD,
            marks: VecDeque::from([(MAX_ROUTED_AHEAD, backlog)]),
        }
    }

    /// Whether one more post may be routed.
    pub(crate) fn has_space(&self) -> bool {
        self.routed - self.dealt_with < MAX_ROUTED_AHEAD
    }

    /// Notes a post whose copies were given to the writer.
    pub(crate) fn routed(&mut self) {
        self.routed += 1;
    }

    /// Notes that a routed post was settled.
    pub(crate) fn confirmed(&mut self) {
        self.confirmed += 1;
    }

    /// Whether a mark must be read now. If so, the caller reads it and passes it to
    /// [`AdmissionWindow::mark`], together with the number of posts that this returns.
    pub(crate) fn ask(&mut self) -> Option<u64> {
        let news = self.confirmed - self.asked;
        let due = news >= MARK_EVERY || (news > 0 && !self.has_space());
        due.then(|| {
            self.asked = self.confirmed;
            self.asked
        })
    }

    /// Adds a mark that was read after `posts` posts were confirmed.
    pub(crate) fn mark(&mut self, posts: u64, seq: u64) {
        self.marks.push_back((posts, seq));
    }

    /// Notes that the reader has processed every entry up to `done`.
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
        for _ in 0..MAX_ROUTED_AHEAD {
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
        assert_eq!(window.ask(), Some(MAX_ROUTED_AHEAD + MARK_EVERY));
        assert_eq!(window.ask(), None);
    }
}
