//! Copies that members have missed and were not told of yet: by episode, with the sequences between
//! which it lies.

use std::collections::VecDeque;

use cotal_wire::Lifecycle;
use cotal_wire::posts::{MissedPosts, Told};
use hashbrown::HashMap;

/// Episodes kept for a member; a further one is merged into the newest.
pub const MAX_EPISODES: usize = 16;

/// Every member's episodes.
#[derive(Debug, Default)]
pub struct Misses {
    members: HashMap<Lifecycle, Member>,
}

#[derive(Debug, Default)]
struct Member {
    /// The first post that the member's store held when it was last found full with nothing missed.
    held_from: u64,
    /// The end of the last episode: posts before it are not counted again.
    behind: u64,
    episodes: VecDeque<MissedPosts>,
    /// Whether the newest episode is still going on.
    open: bool,
}

impl Misses {
    /// The member's store is full: it holds posts from `first` on, and nothing was missed so far.
    pub fn holds(&mut self, member: &Lifecycle, first: u64) {
        let member = self.members.entry_ref(member).or_default();
        if !member.open {
            member.held_from = first;
        }
    }

    /// `missed` more copies were found missed; `first` is the first that is still held, if any.
    pub fn lost(&mut self, member: &Lifecycle, missed: u64, first: Option<u64>, now_ms: i64) {
        let member = self.members.entry_ref(member).or_default();
        let from = member.held_from.max(member.behind + 1);
        let to = first.map_or(u64::MAX, |first| first.saturating_sub(1)).max(from);
        let merged = member.open || member.episodes.len() >= MAX_EPISODES;
        match member.episodes.back_mut().filter(|_| merged) {
            Some(episode) => {
                episode.to = episode.to.max(to);
                episode.missed += missed;
                episode.until = now_ms;
            }
            None => {
                let last = member.episodes.back().map_or(0, |episode| episode.id);
                let id = u64::try_from(now_ms).unwrap_or_default().max(last + 1);
                let (since, until) = (now_ms, now_ms);
                member.episodes.push_back(MissedPosts { id, from, to, missed, since, until });
            }
        }
        member.open = true;
        if first.is_some() {
            member.behind = member.behind.max(to);
        }
    }

    /// The member reads again: what it misses from now on is another episode.
    pub fn ended(&mut self, member: &Lifecycle) {
        if let Some(found) = self.members.get_mut(member) {
            found.open = false;
            found.held_from = 0;
            found.episodes.retain(|episode| episode.missed > 0);
        }
    }

    /// Subtracts what the member was shown, and returns what it was not shown yet.
    pub fn owed(&mut self, member: &Lifecycle, told: &[Told]) -> Vec<MissedPosts> {
        let Some(found) = self.members.get_mut(member) else { return Vec::new() };
        for told in told {
            if let Some(episode) = found.episodes.iter_mut().find(|e| e.id == told.id) {
                episode.missed = episode.missed.saturating_sub(told.missed);
            }
        }
        let open = found.open.then(|| found.episodes.back().map(|newest| newest.id)).flatten();
        // An episode that is still going on is kept even when all of it was told, so that later
        // misses are merged into it.
        found.episodes.retain(|episode| episode.missed > 0 || Some(episode.id) == open);
        found.episodes.iter().filter(|episode| episode.missed > 0).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Lifecycle {
        let principal = cotal_wire::Principal::new("local", "bob").unwrap();
        let uid = cotal_wire::LifecycleUid::parse("abcdefghijklmnopqrstuvwxyz").unwrap();
        Lifecycle { principal, uid }
    }

    fn told(episode: &MissedPosts) -> Told {
        Told { id: episode.id, missed: episode.missed }
    }

    #[test]
    fn an_episode_is_told_with_its_bounds_until_it_was_shown() {
        let (mut misses, bob) = (Misses::default(), member());
        assert!(misses.owed(&bob, &[]).is_empty());
        misses.holds(&bob, 7);
        misses.lost(&bob, 3, Some(10), 100);
        misses.lost(&bob, 2, Some(12), 200);
        let owed = misses.owed(&bob, &[]);
        let whole = MissedPosts { id: 100, from: 7, to: 11, missed: 5, since: 100, until: 200 };
        assert_eq!(owed, [whole]);
        assert_eq!(misses.owed(&bob, &[]), owed, "what was not shown is told again");
        assert!(misses.owed(&bob, &[told(&owed[0])]).is_empty());
    }

    #[test]
    fn what_is_lost_after_it_was_shown_is_told_alone() {
        let (mut misses, bob) = (Misses::default(), member());
        misses.lost(&bob, 3, Some(10), 100);
        let shown = told(&misses.owed(&bob, &[])[0]);
        misses.lost(&bob, 4, Some(14), 200);
        let owed = misses.owed(&bob, &[shown]);
        assert_eq!((owed[0].missed, owed[0].to), (4, 13));
        misses.ended(&bob);
        let shown = told(&owed[0]);
        assert!(misses.owed(&bob, &[shown]).is_empty());
        misses.lost(&bob, 1, Some(20), 300);
        let next = misses.owed(&bob, &[]);
        assert_eq!((next.len(), next[0].from, next[0].to, next[0].missed), (1, 14, 19, 1));
    }

    #[test]
    fn episodes_of_a_member_are_bounded_and_none_of_its_losses_is_forgotten() {
        let (mut misses, bob) = (Misses::default(), member());
        for n in 0..40 {
            misses.lost(&bob, 1, Some(n + 2), 100);
            misses.ended(&bob);
        }
        let owed = misses.owed(&bob, &[]);
        assert_eq!(owed.len(), MAX_EPISODES);
        assert_eq!(owed.iter().map(|episode| episode.missed).sum::<u64>(), 40);
        assert!(owed.is_sorted_by(|a, b| a.id < b.id));
    }
}
