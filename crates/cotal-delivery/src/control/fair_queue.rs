//! Requests that wait for their turn, in a queue for each caller.
//!
//! Invariant: of one caller one request is worked on at a time, in the order in which they came; no
//! caller waits behind the queue of another; and what waits is bounded, at the cost of whoever has
//! the most waiting.

use std::collections::{HashMap, VecDeque};

use cotal_wire::Principal;

/// Most that waits, of all callers together, in bytes.
const MOST: usize = 64 * 1024 * 1024;
/// What a request takes besides its body, so that many small ones are bounded as well.
const OVERHEAD: usize = 1_024;

/// The queues. A caller has one while a request of it waits or is worked on.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    callers: HashMap<Principal, Queue<T>>,
    /// Whoever has something waiting and nothing under way, in the order of their turns.
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
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.weight == 0
    }

    /// FairQueue a request with a body of `size` bytes; says how many had to be dropped for it.
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
        while self.weight > MOST {
            self.drop_one();
            dropped += 1;
        }
        dropped
    }

    /// Takes the newest request from whoever has the most waiting: nobody can push others out.
    fn drop_one(&mut self) {
        let heaviest = self.callers.values_mut().max_by_key(|queue| queue.weight);
        if let Some(queue) = heaviest
            && let Some((_, weight)) = queue.waiting.pop_back()
        {
            queue.weight -= weight;
            self.weight -= weight;
        }
    }

    /// The next request to work on. Nothing else of its caller is given until [`Self::done`].
    pub(crate) fn next(&mut self) -> Option<(Principal, T)> {
        while let Some(caller) = self.ready.pop_front() {
            let queue = self.callers.get_mut(&caller)?;
            if let Some((request, weight)) = queue.waiting.pop_front() {
                queue.weight -= weight;
                self.weight -= weight;
                return Some((caller, request));
            }
            // All that it had waiting was dropped.
            self.callers.remove(&caller);
        }
        None
    }

    /// The request of `caller` that was given last is done with: its next one has a turn after
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
            assert!(queues.weight <= MOST);
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
        queues.push(caller("eve"), 0, MOST);
        assert!(queues.is_empty());
        assert_eq!(next(&mut queues), None);
        queues.push(caller("eve"), 1, 10);
        assert_eq!(next(&mut queues), is("eve", 1));
    }
}
