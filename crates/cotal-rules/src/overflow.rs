//! Unread copies that a store's cap evicts: counted, and told once per member and episode.
//!
//! A store keeps [`PER_SUBJECT`] messages a member and drops the oldest. That is a miss only when the
//! member has not read it, which the broker never says: it is inferred from how much was unread at
//! the last check and how much was stored since. The count is exact as long as the member reads
//! nothing in between. A member that reads again while copies are stored is not accused: once a
//! check finds room, what was stored since the last check counts as taken in.

use cotal_wire::Lifecycle;
use cotal_wire::limits::PER_SUBJECT;
use hashbrown::HashMap;

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Nothing to say.
    Quiet,
    /// The first misses of an episode: log it.
    Began {
        /// Misses found by this check.
        missed: u64,
    },
    /// More misses of a running episode.
    More {
        /// Misses found by this check.
        missed: u64,
    },
    /// The member reads again.
    Ended {
        /// Misses of the whole episode.
        missed: u64,
    },
}

#[derive(Debug, Default, Clone, Copy)]
struct Fill {
    /// Unread at the last check plus stored since: what the member holds at most, were there no
    /// cap.
    at_most: u64,
    /// Misses of the running episode; 0 for none.
    episode: u64,
    /// Misses since the start.
    total: u64,
}

/// Misses by member, in one store.
#[derive(Debug, Default)]
pub struct OverflowMeter {
    members: HashMap<Lifecycle, Fill>,
}

impl OverflowMeter {
    /// Takes the number of messages that the member's subject holds, read or not: a subject with
    /// room has lost nothing, so one subject listing spares a check of every member at start.
    pub fn seed(&mut self, member: &Lifecycle, held: u64) {
        let at_most = held.min(PER_SUBJECT);
        let fill = Fill { at_most, ..Fill::default() };
        self.members.entry_ref(member).or_insert(fill);
    }

    /// Counts one confirmed copy for `member`. Of a member that was never seeded nor checked the
    /// first check only gives the starting point.
    pub fn stored(&mut self, member: &Lifecycle) {
        match self.members.get_mut(member) {
            Some(fill) => fill.at_most += 1,
            None => {
                let at_most = PER_SUBJECT;
                let fill = Fill { at_most, ..Fill::default() };
                self.members.insert(member.clone(), fill);
            }
        }
    }

    /// Counts one copy that is surely read, where the caller sees the acks itself.
    pub fn read(&mut self, member: &Lifecycle) {
        if let Some(fill) = self.members.get_mut(member) {
            fill.at_most = fill.at_most.saturating_sub(1);
        }
    }

    /// Whether the member could be full, or was never looked at, so that its unread count must be
    /// read.
    #[must_use]
    pub fn needs_check(&self, member: &Lifecycle) -> bool {
        self.members.get(member).is_none_or(|fill| fill.at_most >= PER_SUBJECT)
    }

    /// Takes the unread count (pending plus ack-pending) that was read after every copy counted so
    /// far was confirmed. The broker may still count evicted messages as ack-pending, so the count
    /// is capped.
    pub fn checked(&mut self, member: &Lifecycle, unread: u64) -> Overflow {
        let fill = self.members.entry_ref(member).or_default();
        let unread = unread.min(PER_SUBJECT);
        let missed =
            if unread == PER_SUBJECT { fill.at_most.saturating_sub(PER_SUBJECT) } else { 0 };
        fill.at_most = unread;
        fill.total += missed;
        let before = fill.episode;
        fill.episode += missed;
        match (before, missed) {
            (0, 0) => Overflow::Quiet,
            (0, missed) => Overflow::Began { missed },
            (before, 0) if unread < PER_SUBJECT => {
                fill.episode = 0;
                Overflow::Ended { missed: before }
            }
            (_, 0) => Overflow::Quiet,
            (_, missed) => Overflow::More { missed },
        }
    }

    /// Members that missed anything since the start, with how much.
    pub fn missed(&self) -> impl Iterator<Item = (&Lifecycle, u64)> {
        let missed = self.members.iter().map(|(member, fill)| (member, fill.total));
        missed.filter(|(_, total)| *total > 0)
    }

    /// Forgets a member that has ended.
    pub fn forget(&mut self, member: &Lifecycle) {
        self.members.remove(member);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::life;

    #[test]
    fn a_member_with_room_is_never_checked() {
        let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
        assert!(meter.needs_check(&bob), "never looked at");
        meter.seed(&bob, 10);
        for _ in 0..989 {
            meter.stored(&bob);
            assert!(!meter.needs_check(&bob));
        }
        meter.stored(&bob);
        assert!(meter.needs_check(&bob));
        assert_eq!(meter.checked(&bob, 300), Overflow::Quiet);
        assert!(!meter.needs_check(&bob));
    }

    #[test]
    fn an_episode_is_told_once_and_ends_when_there_is_room_again() {
        let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
        meter.checked(&bob, 998);
        let mut told = Vec::new();
        for unread in [999, 1_000, 1_000, 1_000, 1_000] {
            meter.stored(&bob);
            told.push(meter.checked(&bob, unread));
        }
        use Overflow::{Began, Ended, More, Quiet};
        let want = [Quiet, Quiet, Began { missed: 1 }, More { missed: 1 }, More { missed: 1 }];
        assert_eq!(told, want);
        assert_eq!(meter.checked(&bob, 1_000), Quiet);
        assert_eq!(meter.checked(&bob, 400), Ended { missed: 3 });
        assert_eq!(meter.checked(&bob, 1_000), Quiet);
        meter.stored(&bob);
        assert_eq!(meter.checked(&bob, 1_000), Began { missed: 1 }, "a second episode");
        assert_eq!(meter.missed().collect::<Vec<_>>(), [(&bob, 4)]);
    }

    proptest! {
        /// Against a store that drops its oldest: exact for a member that reads nothing, however
        /// the stores and checks interleave.
        #[test]
        fn misses_of_a_silent_member_are_exact(
            start in 0..=PER_SUBJECT,
            bursts in proptest::collection::vec(0_u64..400, 1..12),
        ) {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            meter.checked(&bob, start);
            let (mut unread, mut lost) = (start, 0);
            for burst in bursts {
                for _ in 0..burst {
                    meter.stored(&bob);
                    if unread == PER_SUBJECT { lost += 1 } else { unread += 1 }
                }
                if meter.needs_check(&bob) {
                    meter.checked(&bob, unread);
                } else {
                    prop_assert!(unread < PER_SUBJECT);
                }
                prop_assert_eq!(meter.missed().map(|(_, n)| n).sum::<u64>(), lost);
            }
        }

        /// A member that reads between checks is never said to have missed more than it did, as
        /// long as each check finds room.
        #[test]
        fn a_member_that_keeps_reading_misses_nothing(
            steps in proptest::collection::vec((0_u64..200, 1_u64..300), 1..20),
        ) {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            meter.checked(&bob, 0);
            let mut unread = 0;
            for (stored, acked) in steps {
                for _ in 0..stored.min(PER_SUBJECT - 1 - unread) {
                    meter.stored(&bob);
                    unread += 1;
                }
                unread -= acked.min(unread);
                if meter.needs_check(&bob) {
                    prop_assert_eq!(meter.checked(&bob, unread), Overflow::Quiet);
                }
            }
        }
    }
}
