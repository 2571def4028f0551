//! Requests that wait for their turn, in one queue per caller.
//!
//! Invariant: each caller's requests are processed one at a time, in the order in which they
//! arrived. No caller waits behind the queue of another. The queued bytes are bounded: beyond the
//! bound, the caller with the most queued bytes loses its newest request.

use std::collections::{HashMap, VecDeque};

use cotal_wire::Principal;

/// Most bytes queued, for all callers together.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// Bytes counted for a request besides its body, so that the number of small requests is bounded
/// too.
const OVERHEAD: usize = 1_024;

/// The queues. A caller has one while a request of it is queued or in progress.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    callers: HashMap<Principal, Queue<T>>,
    /// Callers with a queued request and none in progress, in the order of their turns.
    ready: VecDeque<Principal>,
    weight: usize,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<(T, usize)>,
    weight: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { callers: HashMap::new(), ready: VecDeque::new(), weight: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.weight == 0
    }

    /// Queues a request with a body of `size` bytes; returns how many requests were dropped for it.
    pub(crate) fn push(&mut self, caller: Principal, request: T, size: usize) -> usize {
        let queue = self.callers.entry(caller).or_insert_with_key(|caller| {
            self.ready.push_back(caller.clone());
            Queue { waiting: VecDeque::new(), weight: 0 }
        });
        let weight = size + OVERHEAD;
        queue.waiting.push_back((request, weight));
        queue.weight += weight;
        self.weight += weight;
        let mut dropped = 0;
        while self.weight > MAX_QUEUED_BYTES {
            self.drop_one();
            dropped += 1;
        }
        dropped
    }

    /// Drops the newest request of the caller with the most queued bytes, so that nobody can push
    /// out the requests of others.
    fn drop_one(&mut self) {
        let heaviest = self.callers.values_mut().max_by_key(|queue| queue.weight);
        if let Some(queue) = heaviest
            && let Some((_, weight)) = queue.waiting.pop_back()
        {
            queue.weight -= weight;
            self.weight -= weight;
        }
    }

    /// The next request to process. No other request of its caller is returned before
    /// [`Self::done`].
    pub(crate) fn next(&mut self) -> Option<(Principal, T)> {
        while let Some(caller) = self.ready.pop_front() {
            let queue = self.callers.get_mut(&caller)?;
            if let Some((request, weight)) = queue.waiting.pop_front() {
                queue.weight -= weight;
                self.weight -= weight;
                return Some((caller, request));
            }
            // All its queued requests were dropped.
            self.callers.remove(&caller);
        }
        None
    }

    /// Ends the request of `caller` that was returned last. The caller's next turn comes after
    /// those of the callers that wait already.
    pub(crate) fn done(&mut self, caller: Principal) {
        if self.callers.get(&caller).is_some_and(|queue| queue.waiting.is_empty()) {
            self.callers.remove(&caller);
        } else {
            self.ready.push_back(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str) -> Principal {
        Principal::parse(&format!("local.{name}")).unwrap()
    }

    fn next(queues: &mut FairQueue<u32>) -> Option<(String, u32)> {
        queues.next().map(|(caller, n)| (caller.actor().to_owned(), n))
    }

    fn is(name: &str, n: u32) -> Option<(String, u32)> {
        Some((name.to_owned(), n))
    }

    #[test]
    fn one_request_of_a_caller_at_a_time_in_their_order_and_others_pass() {
        let mut queues = FairQueue::default();
        for n in 0..1_000 {
            assert_eq!(queues.push(caller("eve"), n, 10), 0);
        }
        queues.push(caller("bob"), 1, 10);
        assert_eq!(next(&mut queues), is("eve", 0));
        assert_eq!(next(&mut queues), is("bob", 1));
        assert_eq!(next(&mut queues), None, "both have one under way");
        queues.push(caller("bob"), 2, 10);
        queues.push(caller("carol"), 1, 10);
        queues.done(caller("eve"));
        queues.done(caller("bob"));
        for expected in [is("carol", 1), is("eve", 1), is("bob", 2), None] {
            assert_eq!(next(&mut queues), expected);
        }
    }

    #[test]
    fn nothing_is_kept_of_a_caller_whose_requests_are_done() {
        let mut queues = FairQueue::default();
        queues.push(caller("bob"), 1, 10);
        assert_eq!(next(&mut queues), is("bob", 1));
        queues.done(caller("bob"));
        assert!(queues.is_empty() && queues.callers.is_empty() && queues.ready.is_empty());
        queues.push(caller("bob"), 2, 10);
        assert_eq!(next(&mut queues), is("bob", 2));
    }

    #[test]
    fn what_waits_is_bounded_at_the_cost_of_whoever_has_the_most() {
        let mut queues = FairQueue::default();
        queues.push(caller("bob"), 0, 10);
        let mut dropped = 0;
        for n in 0..200 {
            dropped += queues.push(caller("eve"), n, 1024 * 1024);
            assert!(queues.weight <= MAX_QUEUED_BYTES);
        }
        assert!(dropped > 130, "{dropped}");
        assert_eq!(queues.push(caller("carol"), 0, 1024 * 1024), 1, "of eve's");
        for expected in [is("bob", 0), is("eve", 0), is("carol", 0)] {
            assert_eq!(next(&mut queues), expected);
        }
        queues.done(caller("eve"));
        assert_eq!(next(&mut queues), is("eve", 1), "the oldest stay");
    }

    #[test]
    fn a_caller_that_lost_all_it_had_waiting_has_no_turn_and_can_ask_again() {
        let mut queues = FairQueue::default();
        queues.push(caller("eve"), 0, MAX_QUEUED_BYTES);
        assert!(queues.is_empty());
        assert_eq!(next(&mut queues), None);
        queues.push(caller("eve"), 1, 10);
        assert_eq!(next(&mut queues), is("eve", 1));
    }
}
