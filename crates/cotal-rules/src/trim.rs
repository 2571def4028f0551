//! Which posts are purged from CHAT: routed ones, beyond those that each sender keeps per channel.
//!
//! CHAT keeps far more posts per subject than a reader of its history is shown, so that neither a
//! burst nor a daemon that is away loses a post before it is routed. Once posts are routed, the
//! surplus is purged.
//!
//! Invariant: a purge takes only settled posts, and leaves at least [`PER_SUBJECT`] posts of its
//! subject.

use std::collections::VecDeque;

use cotal_wire::limits::PER_SUBJECT;
use hashbrown::HashMap;

/// Posts of one subject that one purge takes: each purge is a request to the broker.
const TRIM_STEP: u64 = 250;

/// The routed posts of each subject, counted since the start.
#[derive(Debug, Default)]
pub struct Trim {
    subjects: HashMap<String, Routed>,
    /// The highest sequence counted so far.
    highest: u64,
    /// Purges that may be made once their posts are settled, in the order in which they came up.
    due: VecDeque<Purge>,
}

#[derive(Debug, Default)]
struct Routed {
    count: u64,
    /// For every [`TRIM_STEP`] posts: the count so far, and the sequence of the last.
    steps: VecDeque<(u64, u64)>,
}

/// A purge of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purge {
    /// The subject.
    pub subject: String,
    /// Its posts up to this sequence are purged.
    pub up_to: u64,
}

impl Trim {
    /// Starts after the post `seq`: earlier ones are not counted, since other daemons may have
    /// routed them.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { highest: seq, ..Self::default() }
    }

    /// Counts a post that was pulled to be routed. A redelivered one is not counted again.
    pub fn arrived(&mut self, subject: &str, seq: u64) {
        if seq <= self.highest {
            return;
        }
        self.highest = seq;
        let routed = self.subjects.entry_ref(subject).or_default();
        routed.count += 1;
        if routed.count.is_multiple_of(TRIM_STEP) {
            routed.steps.push_back((routed.count, seq));
            let surplus = |step: &mut (u64, u64)| routed.count - step.0 >= PER_SUBJECT;
            if let Some((_, up_to)) = routed.steps.pop_front_if(surplus) {
                self.due.push_back(Purge { subject: subject.to_owned(), up_to });
            }
        }
    }

    /// The next purge, when every post up to `settled` is settled.
    pub fn next(&mut self, settled: u64) -> Option<Purge> {
        // The posts that the purge leaves have all been pulled; they stay stored, settled or not.
        let at = self.due.iter().position(|purge| purge.up_to <= settled)?;
        self.due.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_routed_goes_in_steps_and_a_thousand_stay() {
        let mut trim = Trim::default();
        for seq in 1..=PER_SUBJECT + TRIM_STEP - 1 {
            trim.arrived("a", seq);
        }
        assert_eq!(trim.next(u64::MAX), None);
        let last = PER_SUBJECT + TRIM_STEP;
        trim.arrived("a", last);
        trim.arrived("a", last);
        assert_eq!(trim.next(TRIM_STEP - 1), None, "not settled yet");
        let purge = Purge { subject: "a".to_owned(), up_to: TRIM_STEP };
        assert_eq!(trim.next(TRIM_STEP), Some(purge));
        assert_eq!(trim.next(u64::MAX), None);
    }

    #[test]
    fn subjects_are_counted_apart_and_from_the_start_on() {
        let mut trim = Trim::after(10);
        for seq in 1..=2 * (PER_SUBJECT + TRIM_STEP) + 10 {
            trim.arrived(["a", "b"][usize::from(seq % 2 == 0)], seq);
        }
        let purges: Vec<_> = std::iter::from_fn(|| trim.next(u64::MAX)).collect();
        let up_to: Vec<_> = purges.iter().map(|it| (it.subject.as_str(), it.up_to)).collect();
        assert_eq!(up_to, [("a", 10 + 2 * TRIM_STEP - 1), ("b", 10 + 2 * TRIM_STEP)]);
    }
}
