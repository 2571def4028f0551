//! Room in a member's store, shared by sender.
//!
//! A store keeps [`PER_SUBJECT`] messages a member, and its broker drops the oldest, whoever sent
//! it: so one sender could push out what others sent. Therefore the reader makes room itself,
//! before it hands over what does not fit: whoever has most copies unread loses its own oldest.
//! Nobody who has no more than an equal share of the store ever loses one to another.
//!
//! As long as all copies of a member are one sender's, the broker's own cap does just that, and
//! nothing needs to be looked at.

use std::collections::{HashMap as Map, VecDeque};

use cotal_wire::Lifecycle;
use cotal_wire::limits::PER_SUBJECT;
use hashbrown::HashMap;

/// Who sent the copies that a member holds unread.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    One(String),
    Many,
}

/// What is known of one member's store.
#[derive(Debug)]
struct Store {
    /// Copies that it holds unread at most.
    at_most: u64,
    who: Who,
}

/// What is known of every member's store, without a look at it.
#[derive(Debug, Default)]
pub struct Shares {
    members: HashMap<Lifecycle, Store>,
}

impl Shares {
    /// Counts a copy of `sender` that is to be handed to `member`; `held` is how many copies the
    /// store holds of a member that was never counted. Tells whether the copy may push out another
    /// sender's: then the store must be looked at first.
    pub fn count(&mut self, member: &Lifecycle, sender: &str, held: impl FnOnce() -> u64) -> bool {
        let store = self.members.entry_ref(member).or_insert_with(|| {
            let at_most = held();
            let who = if at_most == 0 { Who::One(sender.to_owned()) } else { Who::Many };
            Store { at_most, who }
        });
        store.at_most += 1;
        if store.who != Who::Many && !matches!(&store.who, Who::One(one) if one == sender) {
            store.who = Who::Many;
        }
        store.who == Who::Many && store.at_most > PER_SUBJECT
    }

    /// Takes a look at the store: it holds `unread` copies, and `incoming` are about to be handed
    /// over.
    pub fn looked(&mut self, member: &Lifecycle, unread: u64, incoming: u64) {
        if let Some(store) = self.members.get_mut(member) {
            store.at_most = unread + incoming;
        }
    }
}

/// Chooses which of `copies` go, `excess` of them: each time the oldest of whoever has most. They
/// are given oldest first, each with its sender.
pub fn pushed_out<'a, T>(
    copies: impl IntoIterator<Item = (T, &'a str)>,
    excess: usize,
) -> Vec<(T, &'a str)> {
    let mut senders: Map<&str, VecDeque<(usize, T)>> = Map::new();
    for (order, (copy, sender)) in copies.into_iter().enumerate() {
        senders.entry(sender).or_default().push_back((order, copy));
    }
    let oldest = |copies: &VecDeque<(usize, T)>| copies.front().map_or(usize::MAX, |(at, _)| *at);
    let mut gone = Vec::new();
    for _ in 0..excess {
        // Of two who have as many, whose oldest is older.
        let most = senders
            .iter_mut()
            .max_by(|(_, a), (_, b)| a.len().cmp(&b.len()).then_with(|| oldest(b).cmp(&oldest(a))));
        let Some((sender, copies)) = most else { break };
        let Some((_, copy)) = copies.pop_front() else { break };
        gone.push((copy, *sender));
    }
    gone
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::life;

    fn count(shares: &mut Shares, sender: &str, held: u64) -> bool {
        shares.count(&life("bob"), sender, || held)
    }

    #[test]
    fn one_sender_alone_is_left_to_the_brokers_own_cap() {
        let mut shares = Shares::default();
        assert!((0..5_000).all(|_| !count(&mut shares, "local.alice", 0)));
        assert!(count(&mut shares, "local.carol", 0), "another's copies stand before hers");
    }

    #[test]
    fn a_look_is_asked_for_only_when_the_store_may_be_full_of_several_senders_copies() {
        let mut shares = Shares::default();
        assert!(!count(&mut shares, "local.alice", 998), "the second last fits");
        assert!(!count(&mut shares, "local.alice", 0), "the last one fits");
        assert!(count(&mut shares, "local.alice", 0), "what it held before may be anybody's");
        shares.looked(&life("bob"), 500, 1);
        assert!((0..499).all(|_| !count(&mut shares, "local.alice", 0)));
        assert!(count(&mut shares, "local.alice", 0));
    }

    #[test]
    fn a_flood_pushes_out_its_own_oldest_alone() {
        let others = (0..20).map(|n| (n, "local.alice"));
        let flood = (20..1_120).map(|n| (n, "local.mallory"));
        let gone = pushed_out(others.chain(flood), 120);
        let wanted: Vec<_> = (20..140).map(|n| (n, "local.mallory")).collect();
        assert_eq!(gone, wanted);
    }

    #[test]
    fn a_late_sender_takes_its_room_from_whoever_has_most() {
        let flood = (0..1_000).map(|n| (n, "local.mallory"));
        let late = (1_000..1_003).map(|n| (n, "local.alice"));
        let gone = pushed_out(flood.chain(late), 3);
        assert_eq!(gone, [(0, "local.mallory"), (1, "local.mallory"), (2, "local.mallory")]);
        assert!(pushed_out([(1, "a")], 5).len() == 1, "no more than there is");
    }

    proptest! {
        /// Whatever the order: nobody within an equal share loses a copy, exactly as many go as
        /// must, and of each sender the oldest.
        #[test]
        fn nobody_within_an_equal_share_loses_anything(
            senders in proptest::collection::vec(0_usize..6, 1..300),
            cap in 6_usize..200,
        ) {
            const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
            let copies: Vec<_> = senders.iter().enumerate().map(|(n, s)| (n, NAMES[*s])).collect();
            let excess = copies.len().saturating_sub(cap);
            let gone = pushed_out(copies.clone(), excess);
            prop_assert_eq!(gone.len(), excess);
            for name in NAMES {
                let all: Vec<_> = copies.iter().filter(|(_, s)| *s == name).collect();
                let lost: Vec<_> = gone.iter().filter(|(_, s)| *s == name).collect();
                prop_assert!(lost.is_empty() || all.len() - lost.len() + 1 >= cap / NAMES.len());
                prop_assert_eq!(&lost[..], &all[..lost.len()], "its oldest, in order");
            }
        }
    }
}
