//! When a sender is told that its posts can never be delivered: once per episode, so that neither a
//! broken client nor a hostile one makes the daemon write a message for each post.

use cotal_wire::Principal;
use hashbrown::HashMap;

/// An episode ends when no post of the sender was refused for this long, in milliseconds.
pub const QUIET_MS: i64 = 10 * 60 * 1_000;
/// Most senders remembered; beyond that the one with the oldest last refusal is forgotten.
pub const MAX_SENDERS: usize = 4_096;

/// The episodes that are going on.
#[derive(Debug, Default)]
pub struct Refusals {
    last: HashMap<Principal, i64>,
}

impl Refusals {
    /// Notes a refused post; returns whether its sender must be told.
    pub fn refused(&mut self, sender: &Principal, now_ms: i64) -> bool {
        if let Some(last) = self.last.get_mut(sender) {
            return now_ms.saturating_sub(std::mem::replace(last, now_ms)) >= QUIET_MS;
        }
        if self.last.len() >= MAX_SENDERS {
            self.last.retain(|_, last| now_ms.saturating_sub(*last) < QUIET_MS);
        }
        if self.last.len() >= MAX_SENDERS {
            let oldest = self.last.iter().min_by_key(|(_, last)| **last);
            if let Some(oldest) = oldest.map(|(sender, _)| sender.clone()) {
                self.last.remove(&oldest);
            }
        }
        self.last.insert(sender.clone(), now_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(actor: &str) -> Principal {
        Principal::new("local", actor).unwrap()
    }

    #[test]
    fn a_sender_is_told_once_an_episode_and_each_sender_for_itself() {
        let mut refusals = Refusals::default();
        let (a, b) = (sender("a"), sender("b"));
        assert!(refusals.refused(&a, 0));
        assert!(!refusals.refused(&a, QUIET_MS - 1));
        assert!(refusals.refused(&b, QUIET_MS));
        assert!(
            !refusals.refused(&a, 2 * QUIET_MS - 2),
            "the episode goes on while posts are refused"
        );
        assert!(refusals.refused(&a, 4 * QUIET_MS));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut refusals = Refusals::default();
        for n in 0..=MAX_SENDERS {
            let now = i64::try_from(n).unwrap();
            assert!(refusals.refused(&sender(&format!("a{n}")), now));
        }
        assert_eq!(refusals.last.len(), MAX_SENDERS);
        assert!(!refusals.refused(&sender("a1"), 5_000), "the oldest is the one that went");
        assert!(refusals.refused(&sender("a0"), 5_000));
    }
}
