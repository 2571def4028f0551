//! Unread copies that DLV's cap discards: counted, and reported once per member and episode.
//!
//! DLV keeps [`PER_SUBJECT`] messages for a member and discards the oldest. That is a miss only
//! if the member has not read the message, which the broker never tells. It is inferred from how
//! much was unread at the last check, how much was stored since, and how much was acked since:
//! whatever is stored and not acked, and does not fit, was discarded unread.
//!
//! The count is exact for a member whose consumer has not moved since the last check, because it
//! has read nothing. (The broker's own unread count cannot replace it: it drops below the cap for a
//! moment whenever the broker stores one copy and discards another.) For a member that reads, the
//! count is a lower bound, so that no more misses are reported than there were:
//! - Every delivery since the last check that is no longer outstanding counts as acked. (The ack
//!   floor would not show acks above it.) A redelivery looks like an ack here, and so does a copy
//!   that was delivered, not acked, and then discarded.
//! - Once a check finds room, everything stored before it counts as read. If a member reads below
//!   the cap between two checks, copies discarded in that time are counted only in part.
//! - A look (a member's consumer info) may include copies that the meter counts only later. So what
//!   it proves is used at the next check, less what was counted in between; this relies on every
//!   stored copy being counted before the next check. A member that never moved needs no such
//!   proof.
//!
//! Copies that a recall deletes are not missed. The meter is told of those that were never
//! delivered; the broker treats the others as acked, which a look shows.

use cotal_wire::Lifecycle;
use cotal_wire::limits::PER_SUBJECT;
use hashbrown::HashMap;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Nothing to report.
    Quiet,
    /// The first misses of an episode: log it.
    Began {
        /// Misses found by this check.
        missed: u64,
    },
    /// More misses in an episode that goes on.
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

/// The consumer info of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadCount {
    /// Pending plus ack-pending.
    pub unread: u64,
    /// The position of the member's consumer; it changes only when the member reads or acks.
    pub position: ConsumerPosition,
}

/// See [`UnreadCount::position`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerPosition {
    /// Deliveries made.
    pub delivered: u64,
    /// All deliveries up to this one are acked.
    pub acked: u64,
    /// Deliveries not acked.
    pub outstanding: u64,
}

impl ConsumerPosition {
    /// The position of a member that has never read.
    const START: Self = Self { delivered: 0, acked: 0, outstanding: 0 };

    /// The most that can have been acked between `before` and now. If the consumer counts less than
    /// before, it was created again: then any number can have been acked.
    fn acked_since(self, before: Self) -> u64 {
        let ended = |position: Self| position.delivered.saturating_sub(position.outstanding);
        ended(self).checked_sub(ended(before)).unwrap_or(u64::MAX)
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Fill {
    /// Copies counted so far.
    stored: u64,
    /// At most this many are unread, if there were no cap.
    at_most: u64,
    /// At least this many are unread, if there were no cap: misses are computed from it. Negative
    /// when the member has acked copies that are not counted yet.
    at_least: i64,
    /// How many unread copies the last look proves, when `at_least` may be too low: the look may
    /// have included copies that were counted only after it.
    proven: Option<i64>,
    /// Whether `at_most` comes from a seed or a check.
    known: bool,
    /// The consumer's position at the last check.
    position: Option<ConsumerPosition>,
    /// Misses of the episode that goes on; 0 for none.
    episode: u64,
    /// Misses since the start.
    total: u64,
}

/// A point in the count of one member's copies, taken before its unread count is read. That count
/// may or may not include what is stored after this point.
#[derive(Debug, Clone, Copy, Default)]
pub struct CountMark {
    stored: u64,
    at_most: u64,
}

/// Misses by member, in one store.
#[derive(Debug, Default)]
pub struct OverflowMeter {
    members: HashMap<Lifecycle, Fill>,
    seeded: bool,
}

impl OverflowMeter {
    /// Sets the number of messages that the member's subject holds, read or not. A subject with
    /// room has discarded nothing, so one listing of the subjects saves a check of every member at
    /// start.
    pub fn seed(&mut self, member: &Lifecycle, held: u64) {
        let held = held.min(PER_SUBJECT);
        let at_least = 0_i64.saturating_add_unsigned(held);
        let fill = Fill { at_most: held, at_least, known: true, ..Fill::default() };
        self.members.entry_ref(member).or_insert(fill);
    }

    /// Notes that every member with messages was seeded: one that was not seeded has none.
    pub fn all_seeded(&mut self) {
        self.seeded = true;
    }

    /// Counts one confirmed copy for `member`. For a member that was neither seeded nor checked,
    /// the first check only sets the starting point.
    pub fn stored(&mut self, member: &Lifecycle) {
        let unseen = if self.seeded { 0 } else { PER_SUBJECT };
        let fill = Fill { at_most: unseen, known: self.seeded, ..Fill::default() };
        let fill = self.members.entry_ref(member).or_insert(fill);
        fill.stored += 1;
        fill.at_most += 1;
        fill.at_least += 1;
    }

    /// Subtracts copies that a recall deleted before they were delivered; all of them are counted.
    pub fn recalled(&mut self, member: &Lifecycle, undelivered: u64) {
        if let Some(fill) = self.members.get_mut(member) {
            fill.at_most = fill.at_most.saturating_sub(undelivered);
            fill.at_least = fill.at_least.saturating_sub_unsigned(undelivered);
            fill.proven = fill.proven.map(|held| held.saturating_sub_unsigned(undelivered));
        }
    }

    /// How many copies the member holds unread at most, were there no cap.
    #[must_use]
    pub fn held_at_most(&self, member: &Lifecycle) -> u64 {
        let unseen = if self.seeded { 0 } else { PER_SUBJECT };
        self.members.get(member).map_or(unseen, |fill| fill.at_most)
    }

    /// Whether the member's unread count must be read, because its store could be full or was never
    /// checked.
    #[must_use]
    pub fn needs_check(&self, member: &Lifecycle) -> bool {
        match self.members.get(member) {
            Some(fill) => fill.at_most >= PER_SUBJECT,
            None => !self.seeded,
        }
    }

    /// Whether another check must follow even if nothing more is stored: copies are counted that
    /// the last check could not judge, or an episode is over that the last check did not end.
    #[must_use]
    pub fn is_unsettled(&self, member: &Lifecycle) -> bool {
        self.members.get(member).is_some_and(|fill| {
            fill.at_most > PER_SUBJECT || (fill.at_most < PER_SUBJECT && fill.episode > 0)
        })
    }

    /// Begins a check. The mark belongs to the unread count that is read next.
    #[must_use]
    pub fn mark(&self, member: &Lifecycle) -> CountMark {
        let mark = |fill: &Fill| CountMark { stored: fill.stored, at_most: fill.at_most };
        self.members.get(member).map_or_else(CountMark::default, mark)
    }

    /// Applies a look that was taken after `mark`.
    pub fn checked(&mut self, member: &Lifecycle, mark: CountMark, look: UnreadCount) -> Overflow {
        let fill = self.members.entry_ref(member).or_default();
        let stood = fill.position.replace(look.position).unwrap_or(ConsumerPosition::START);
        let silent = fill.known && stood == look.position;
        let unread = if silent { mark.at_most } else { look.unread }.min(PER_SUBJECT);
        let since = fill.stored.saturating_sub(mark.stored);
        let counted = fill.at_least.saturating_sub_unsigned(since);
        let proven = fill.proven.unwrap_or(counted).max(counted);
        let left = proven.saturating_sub_unsigned(look.position.acked_since(stood));
        let missed = u64::try_from(left).unwrap_or(0).saturating_sub(PER_SUBJECT);
        let upper = unread + since;
        let seen = 0_i64.saturating_add_unsigned(look.unread.min(PER_SUBJECT));
        let kept = left.saturating_sub_unsigned(missed);
        let kept = if silent { kept } else { kept.min(seen) };
        fill.at_least = kept.saturating_add_unsigned(since);
        let exact = silent && proven == counted;
        fill.proven = (!exact).then(|| seen.saturating_sub_unsigned(since));
        let known = fill.at_most.saturating_sub(missed).min(upper);
        fill.at_most = if fill.known { known } else { upper };
        fill.known = true;
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

    /// Members that missed copies since the start, and how many.
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

    /// A look at a member that acks whatever it reads and has read `read` so far.
    fn look(read: u64, unread: u64) -> UnreadCount {
        UnreadCount {
            unread,
            position: ConsumerPosition { delivered: read, acked: read, outstanding: 0 },
        }
    }

    fn check(meter: &mut OverflowMeter, member: &Lifecycle, look: UnreadCount) -> Overflow {
        let mark = meter.mark(member);
        meter.checked(member, mark, look)
    }

    fn total(meter: &OverflowMeter) -> u64 {
        meter.missed().map(|(_, missed)| missed).sum()
    }

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
        assert_eq!(check(&mut meter, &bob, look(600, 400)), Overflow::Quiet);
        assert_eq!(check(&mut meter, &bob, look(700, 300)), Overflow::Quiet);
        assert!(!meter.needs_check(&bob));
    }

    #[test]
    fn an_episode_is_told_once_and_ends_when_there_is_room_again() {
        use Overflow::{Began, Ended, More, Quiet};
        let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
        meter.seed(&bob, 998);
        let mut told = Vec::new();
        for unread in [999, 1_000, 1_000, 999, 1_000] {
            meter.stored(&bob);
            told.push(check(&mut meter, &bob, look(0, unread)));
        }
        let want = [Quiet, Quiet, Began { missed: 1 }, More { missed: 1 }, More { missed: 1 }];
        assert_eq!(told, want, "a broker's count that swings hides nothing");
        assert_eq!(check(&mut meter, &bob, look(0, 1_000)), Quiet);
        assert_eq!(check(&mut meter, &bob, look(600, 400)), Ended { missed: 3 });
        for _ in 0..600 {
            meter.stored(&bob);
        }
        assert_eq!(check(&mut meter, &bob, look(600, 1_000)), Quiet);
        meter.stored(&bob);
        let again = check(&mut meter, &bob, look(600, 1_000));
        assert_eq!(again, Began { missed: 1 }, "a second episode");
        assert_eq!(total(&meter), 4);
    }

    #[test]
    fn a_burst_before_the_first_look_is_counted_and_accuses_nobody_who_has_read() {
        let mut meter = OverflowMeter::default();
        meter.all_seeded();
        for (name, seen) in [("bob", look(0, 997)), ("carol", look(700, 330))] {
            let member = life(name);
            for _ in 0..1_030 {
                meter.stored(&member);
            }
            check(&mut meter, &member, seen);
            check(&mut meter, &member, seen);
        }
        assert_eq!(meter.missed().collect::<Vec<_>>(), [(&life("bob"), 30)]);
    }

    /// Reads and bursts between two looks. Each row: what is stored before a look, how much is read
    /// by then, how much the broker shows as unread, and how much is really missed.
    #[test]
    fn what_was_read_since_the_last_look_is_not_missed() {
        type Checks = &'static [(u64, u64, u64)];
        let rows: [(&str, Checks, u64); 6] = [
            ("read all, then a burst in one tick", &[(900, 900, 0), (1_100, 900, 1_000)], 100),
            ("read 3, then a burst in one tick", &[(3, 3, 0), (1_005, 3, 1_000)], 5),
            ("read in between", &[(1_200, 0, 1_000), (300, 200, 1_000)], 300),
            ("read, stand still", &[(1_000, 400, 600), (500, 400, 1_000), (7, 400, 1_000)], 107),
            ("lost, then read below the cap", &[(1_100, 50, 950), (40, 50, 990)], 50),
            ("a fill and a read a tick", &[(999, 0, 999), (999, 999, 999), (999, 1_998, 999)], 0),
        ];
        for (what, looks, missed) in rows {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            meter.all_seeded();
            for (stored, read, unread) in looks.iter().copied() {
                (0..stored).for_each(|_| meter.stored(&bob));
                if meter.needs_check(&bob) {
                    check(&mut meter, &bob, look(read, unread));
                }
            }
            assert_eq!(total(&meter), missed, "{what}");
        }
    }

    #[test]
    fn acks_above_the_floor_redeliveries_and_a_new_consumer_accuse_nobody() {
        let at = |delivered, acked, outstanding| UnreadCount {
            unread: 1_000,
            position: ConsumerPosition { delivered, acked, outstanding },
        };
        let rows = [
            ("99 acked above the floor", at(100, 0, 1), 101),
            ("40 delivered twice, 60 acked", at(140, 60, 40), 100),
            ("nothing acked", at(100, 0, 100), 200),
        ];
        for (what, seen, missed) in rows {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            meter.all_seeded();
            (0..1_200).for_each(|_| meter.stored(&bob));
            check(&mut meter, &bob, seen);
            assert_eq!(total(&meter), missed, "{what}");
            (0..500).for_each(|_| meter.stored(&bob));
            check(&mut meter, &bob, at(0, 0, 0));
            assert_eq!(total(&meter), missed + if what == "nothing acked" { 500 } else { 0 });
        }
    }

    /// A look includes copies that are counted only after it.
    #[test]
    fn a_copy_that_a_look_held_before_it_was_counted_is_not_counted_twice() {
        let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
        meter.seed(&bob, 1_000);
        meter.stored(&bob);
        check(&mut meter, &bob, look(5_000, 990));
        (0..10).for_each(|_| meter.stored(&bob));
        assert_eq!(check(&mut meter, &bob, look(5_000, 990)), Overflow::Quiet);
        (0..15).for_each(|_| meter.stored(&bob));
        check(&mut meter, &bob, look(5_000, 1_000));
        assert_eq!(total(&meter), 5, "from then on each is counted");
    }

    /// Copies that were delivered and not acked end as if they had been acked.
    #[test]
    fn what_a_recall_takes_is_not_missed() {
        let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
        meter.all_seeded();
        (0..800).for_each(|_| meter.stored(&bob));
        let given = ConsumerPosition { delivered: 100, acked: 0, outstanding: 100 };
        assert_eq!(
            check(&mut meter, &bob, UnreadCount { unread: 800, position: given }),
            Overflow::Quiet
        );
        let mark = meter.mark(&bob);
        meter.recalled(&bob, 700);
        let ended = ConsumerPosition { outstanding: 0, ..given };
        (0..900).for_each(|_| meter.stored(&bob));
        let look = UnreadCount { unread: 900, position: ended };
        assert_eq!(meter.checked(&bob, mark, look), Overflow::Quiet);
        assert!(!meter.is_unsettled(&bob), "nothing is left to judge");
        (0..105).for_each(|_| meter.stored(&bob));
        let full = UnreadCount { unread: 1_000, position: ended };
        assert_eq!(check(&mut meter, &bob, full), Overflow::Began { missed: 5 });
    }

    /// An episode ends even when the check that found the misses also found room.
    #[test]
    fn an_episode_that_was_over_when_it_was_found_ends() {
        let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
        meter.all_seeded();
        (0..1_100).for_each(|_| meter.stored(&bob));
        assert_eq!(check(&mut meter, &bob, look(50, 950)), Overflow::Began { missed: 50 });
        assert!(meter.is_unsettled(&bob));
        assert_eq!(check(&mut meter, &bob, look(50, 950)), Overflow::Ended { missed: 50 });
        assert!(!meter.is_unsettled(&bob));
    }

    proptest! {
        /// Against a store that discards its oldest message: never more than the truth, for a
        /// member that reads in order, gets redeliveries, and whose copies are counted late.
        #[test]
        fn misses_of_a_reading_member_are_never_above_the_truth(
            steps in proptest::collection::vec((0_u8..5, 0_u64..700), 1..60),
        ) {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            meter.all_seeded();
            let (mut stored, mut held, mut acked, mut again) = (0_u64, 0_u64, 0_u64, 0_u64);
            let (mut lost, mut uncounted) = (0_u64, 0_u64);
            for (step, n) in steps {
                match step {
                    0 => {
                        (stored, uncounted) = (stored + n, uncounted + n);
                        held += n;
                        lost += held.saturating_sub(PER_SUBJECT);
                        held = held.min(PER_SUBJECT);
                    }
                    1 => (0..std::mem::take(&mut uncounted)).for_each(|_| meter.stored(&bob)),
                    2 => (acked, held) = (acked + n.min(held), held - n.min(held)),
                    3 => again += n % 3,
                    _ => {
                        let delivered = acked + again;
                        let position = ConsumerPosition { delivered, acked, outstanding: 0 };
                        let unread = held.saturating_sub(n % 20);
                        // What the look included is counted before the next one.
                        check(&mut meter, &bob, UnreadCount { unread, position });
                        (0..std::mem::take(&mut uncounted)).for_each(|_| meter.stored(&bob));
                    }
                }
                prop_assert!(total(&meter) <= lost, "{} of {lost}", total(&meter));
            }
        }

        /// Against a store that discards its oldest message: exact for a member that reads nothing,
        /// however the stores, their counting and the three steps of a check interleave, and
        /// however far the broker's count lags.
        #[test]
        fn misses_of_a_silent_member_are_exact(
            start in 0..=PER_SUBJECT,
            steps in proptest::collection::vec((0_u8..5, 0_u64..400), 1..60),
        ) {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            meter.seed(&bob, start);
            meter.all_seeded();
            let (mut stored, mut uncounted) = (start, 0);
            let (mut mark, mut unread) = (None, None);
            let check = [(2, 0), (3, 7), (4, 0)];
            let finish = [check; 3].into_iter().flatten();
            for (step, n) in steps.into_iter().chain([(1, 0)]).chain(finish) {
                match step {
                    0 => (stored, uncounted) = (stored + n, uncounted + n),
                    1 => (0..std::mem::take(&mut uncounted)).for_each(|_| meter.stored(&bob)),
                    2 if mark.is_none() => mark = Some(meter.mark(&bob)),
                    3 if mark.is_some() => {
                        unread = Some(stored.min(PER_SUBJECT).saturating_sub(n % 20));
                    }
                    4 => if let (Some(at), Some(count)) = (mark, unread) {
                        meter.checked(&bob, at, look(0, count));
                        (mark, unread) = (None, None);
                    },
                    _ => {}
                }
            }
            prop_assert_eq!(total(&meter), stored.saturating_sub(PER_SUBJECT));
        }

        /// A member that reads between checks is never reported to have missed more than it did, as
        /// long as each check finds room.
        #[test]
        fn a_member_that_keeps_reading_misses_nothing(
            steps in proptest::collection::vec((0_u64..200, 1_u64..300), 1..20),
        ) {
            let (mut meter, bob) = (OverflowMeter::default(), life("bob"));
            check(&mut meter, &bob, look(0, 0));
            let (mut read, mut unread) = (0, 0);
            for (stored, acked) in steps {
                for _ in 0..stored.min(PER_SUBJECT - 1 - unread) {
                    meter.stored(&bob);
                    unread += 1;
                }
                read += acked.min(unread);
                unread -= acked.min(unread);
                if meter.needs_check(&bob) {
                    let found = check(&mut meter, &bob, look(read, unread));
                    prop_assert_eq!(found, Overflow::Quiet);
                }
            }
        }
    }
}
