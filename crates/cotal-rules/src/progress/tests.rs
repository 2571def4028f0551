use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The consumer info after each of `delivered` messages was delivered once.
fn look(delivered: u64, ack_floor: u64, pending: u64) -> ConsumerLook {
    let unacked = delivered - ack_floor;
    ConsumerLook { deliveries: delivered, delivered, ack_floor, unacked, pending }
}

#[test]
fn the_lowest_open_message_holds_progress_whatever_is_settled_above_it() {
    let mut progress = Progress::start(ConsumerLook::default(), 0);
    for seq in 1..=5 {
        progress.arrived(seq, seq);
    }
    for seq in [2, 3, 5] {
        progress.dealt_with(seq);
    }
    assert_eq!(progress.done(), 0);
    progress.dealt_with(1);
    assert_eq!(progress.done(), 3);
    progress.dealt_with(4);
    assert_eq!(progress.done(), 5);
}

#[test]
fn what_was_delivered_before_the_start_is_done_when_the_ack_floor_has_passed_it() {
    let mut progress = Progress::start(look(10, 4, 5), 15);
    assert_eq!((progress.done(), progress.is_proven()), (4, false));
    progress.arrived(11, 11);
    progress.dealt_with(11);
    assert_eq!(progress.done(), 4, "5 to 10 are with somebody else");
    for (number, seq) in (12..).zip(5..=10) {
        progress.arrived(number, seq);
        progress.dealt_with(seq);
    }
    assert_eq!(progress.done(), 4, "these six may not be all");
    progress.looked(progress.ticket(), look(17, 10, 4), 15);
    assert_eq!((progress.done(), progress.is_proven()), (11, true));
}

#[test]
fn a_gap_in_the_numbers_stops_progress_until_the_floor_has_passed_what_it_hides() {
    let mut progress = Progress::start(ConsumerLook::default(), 0);
    progress.arrived(1, 1);
    progress.dealt_with(1);
    let before = progress.ticket();
    progress.arrived(4, 4);
    progress.dealt_with(4);
    assert_eq!(progress.done(), 1);
    progress.looked(before, look(1, 1, 3), 4);
    assert!(!progress.is_proven(), "that look may be older than the gap");
    progress.looked(progress.ticket(), look(4, 2, 0), 4);
    assert_eq!((progress.done(), progress.is_proven()), (2, false), "3 is with somebody else");
    progress.looked(progress.ticket(), look(4, 4, 0), 4);
    assert_eq!((progress.done(), progress.is_proven()), (4, true));
}

#[test]
fn a_mark_whose_message_is_gone_is_passed_when_nothing_is_left_to_deliver() {
    let mut progress = Progress::start(ConsumerLook::default(), 0);
    progress.arrived(1, 1);
    progress.dealt_with(1);
    progress.looked(progress.ticket(), look(1, 0, 0), 3);
    assert_eq!(progress.done(), 3);
    let on_its_way = look(2, 1, 0);
    progress.looked(progress.ticket(), on_its_way, 5);
    assert_eq!(progress.done(), 3, "its second delivery has not arrived");
    let all_acked = look(2, 2, 0);
    progress.looked(progress.ticket(), all_acked, 5);
    assert_eq!(progress.done(), 5);
}

#[test]
fn a_consumer_made_anew_gives_its_messages_again() {
    let mut progress = Progress::start(ConsumerLook::default(), 0);
    for seq in 1..=4 {
        progress.arrived(seq, seq);
    }
    for seq in [1, 2, 4] {
        progress.dealt_with(seq);
    }
    progress.recreated(3);
    progress.arrived(1, 3);
    progress.arrived(2, 4);
    assert_eq!((progress.done(), progress.is_proven()), (2, true));
    progress.dealt_with(3);
    assert_eq!(progress.done(), 3);
}

/// What may happen between a broker and its readers.
#[derive(Debug, Clone)]
enum Step {
    /// The stream stores a message.
    Store,
    /// The broker delivers the next new message: to us, or elsewhere (a lost connection, a paused
    /// process).
    Deliver { here: bool },
    /// It redelivers an unacknowledged message, to us or elsewhere.
    Again { which: usize, here: bool },
    /// We settle a message that arrived here; its ack may be lost.
    Settle { which: usize, acked: bool },
    /// The process that has it elsewhere settles it.
    SettledElsewhere { which: usize },
    /// The stream loses a message.
    Evict { which: usize },
    /// We ask for consumer info.
    Ask,
    /// The answer comes.
    Answer,
    /// Another process takes over.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..8_usize;
    prop_oneof![
        4 => Just(Step::Store),
        4 => prop::bool::weighted(0.85).prop_map(|here| Step::Deliver { here }),
        2 => (which.clone(), prop::bool::weighted(0.8))
            .prop_map(|(which, here)| Step::Again { which, here }),
        6 => (which.clone(), prop::bool::weighted(0.9))
            .prop_map(|(which, acked)| Step::Settle { which, acked }),
        1 => which.clone().prop_map(|which| Step::SettledElsewhere { which }),
        1 => which.prop_map(|which| Step::Evict { which }),
        2 => Just(Step::Ask),
        2 => Just(Step::Answer),
        1 => Just(Step::Restart),
    ]
}

/// The broker's side, and what really happened to each message.
#[derive(Default)]
struct World {
    last: u64,
    stored: BTreeSet<u64>,
    deliveries: u64,
    delivered: u64,
    unacked: BTreeSet<u64>,
    in_hand: BTreeSet<u64>,
    dealt_with: BTreeSet<u64>,
    asked: Option<(LookTicket, ConsumerLook, u64)>,
}

impl World {
    fn look(&self) -> ConsumerLook {
        ConsumerLook {
            deliveries: self.deliveries,
            delivered: self.delivered,
            ack_floor: self.unacked.first().map_or(self.delivered, |first| first - 1),
            unacked: self.unacked.len() as u64,
            pending: self.stored.range(self.delivered + 1..).count() as u64,
        }
    }

    fn nth(of: &BTreeSet<u64>, which: usize) -> Option<u64> {
        (!of.is_empty()).then(|| of.iter().nth(which % of.len()).copied()).flatten()
    }

    fn give(&mut self, progress: &mut Progress, seq: u64, here: bool) {
        self.deliveries += 1;
        self.delivered = self.delivered.max(seq);
        self.unacked.insert(seq);
        if here {
            progress.arrived(self.deliveries, seq);
            self.in_hand.insert(seq);
        }
    }

    fn take(&mut self, progress: &mut Progress, step: &Step) {
        match *step {
            Step::Store => {
                self.last += 1;
                self.stored.insert(self.last);
            }
            Step::Deliver { here } => {
                if let Some(seq) = self.stored.range(self.delivered + 1..).next().copied() {
                    self.give(progress, seq, here);
                }
            }
            Step::Again { which, here } => {
                if let Some(seq) = Self::nth(&self.unacked, which) {
                    self.give(progress, seq, here);
                }
            }
            Step::Settle { which, acked } => {
                let Some(seq) = Self::nth(&self.in_hand, which) else { return };
                self.in_hand.remove(&seq);
                self.dealt_with.insert(seq);
                progress.dealt_with(seq);
                if acked {
                    self.unacked.remove(&seq);
                }
            }
            Step::SettledElsewhere { which } => {
                if let Some(seq) = Self::nth(&self.unacked, which) {
                    self.unacked.remove(&seq);
                    self.dealt_with.insert(seq);
                }
            }
            Step::Evict { which } => {
                if let Some(seq) = Self::nth(&self.stored, which) {
                    self.stored.remove(&seq);
                    self.unacked.remove(&seq);
                }
            }
            Step::Ask => self.asked = Some((progress.ticket(), self.look(), self.last)),
            Step::Answer => {
                if let Some((ticket, look, last)) = self.asked.take() {
                    progress.looked(ticket, look, last);
                }
            }
            Step::Restart => {
                self.in_hand.clear();
                self.asked = None;
                *progress = Progress::start(self.look(), self.last);
            }
        }
    }

    /// Messages at or below `seq` that nobody has processed.
    fn owed(&self, seq: u64) -> Vec<u64> {
        self.stored.range(..=seq).filter(|seq| !self.dealt_with.contains(seq)).copied().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn progress_never_passes_what_nobody_has_dealt_with(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let mut world = World::default();
        let mut progress = Progress::start(world.look(), 0);
        for (at, step) in steps.iter().enumerate() {
            let before = progress.done();
            world.take(&mut progress, step);
            let owed = world.owed(progress.done());
            prop_assert!(owed.is_empty(), "after step {at} {step:?}: {owed:?} of {progress:?}");
            if !matches!(step, Step::Restart) {
                prop_assert!(progress.done() >= before);
            }
        }
        // After everything is settled and consumer info was read, nothing is held up.
        for seq in world.stored.range(world.delivered + 1..).copied().collect::<Vec<_>>() {
            world.give(&mut progress, seq, true);
        }
        for seq in world.unacked.clone() {
            world.give(&mut progress, seq, true);
            progress.dealt_with(seq);
        }
        world.unacked.clear();
        progress.looked(progress.ticket(), world.look(), world.last);
        prop_assert_eq!(progress.done(), world.last);
    }
}
