//! When ids were first sent, as long as that decides whether they may be sent again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Ids remembered: far more than are unconfirmed at a time, and under 512 KiB.
const REMEMBERED: usize = 1_024;

/// The first sends of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct RecentSends {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    first: HashMap<String, i64>,
    order: VecDeque<String>,
}

impl RecentSends {
    /// Notes that an id is sent now; gives when it was sent first.
    pub(crate) fn note(&self, id: &str, now_ms: i64) -> i64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = state.first.get(id) {
            return *first;
        }
        if state.order.len() >= REMEMBERED
            && let Some(oldest) = state.order.pop_front()
        {
            state.first.remove(&oldest);
        }
        state.order.push_back(id.to_owned());
        state.first.insert(id.to_owned(), now_ms);
        now_ms
    }

    /// When an id was sent first, if that is remembered.
    pub(crate) fn first(&self, id: &str) -> Option<i64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.first.get(id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_send_of_an_id_is_what_counts_and_the_oldest_ids_are_forgotten() {
        let recent = RecentSends::default();
        assert_eq!((recent.note("a", 1), recent.note("a", 9), recent.first("a")), (1, 1, Some(1)));
        for n in 0..REMEMBERED {
            recent.note(&n.to_string(), 10);
        }
        assert_eq!((recent.first("a"), recent.first("0")), (None, Some(10)));
    }
}
