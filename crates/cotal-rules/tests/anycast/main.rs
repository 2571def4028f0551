//! One role request over every interleaving of takes, a cancel, redelivery, crashes, the sweep, and
//! TASK being created again with the same sequence.
//!
//! Two daemons work at once, as when a paused one wakes up. Each operation is a program that reads,
//! decides by the rules, and writes, in separate steps, and may die between any two. In every
//! state: no request is both shown by a holder and cancelled, a delivery is shown by at most one
//! holder, and a final result is never replaced. In every final state: the sender was told of each
//! recorded change of holder exactly once, and a cancelled or finished request is gone.

#![expect(clippy::unwrap_used, reason = "a model that cannot go on has failed its test")]
#![expect(clippy::print_stdout, reason = "how much was explored is what the test proves")]

mod model;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use model::{Budget, Model};

fn fingerprint(model: &Model) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    hasher.finish()
}

fn explore(budget: Budget) {
    let (mut seen, mut open) = (HashSet::new(), vec![Model::new(budget)]);
    let mut ends = 0_usize;
    while let Some(model) = open.pop() {
        model.check();
        model.clone().settle().check_end();
        ends += 1;
        for action in model.actions() {
            let mut next = model.clone();
            next.act(action);
            if seen.insert(fingerprint(&next)) {
                open.push(next);
            }
        }
    }
    println!("{} states, {ends} settled", seen.len());
    assert!(seen.len() > 1_000, "the exploration is too small to say anything");
}

const NONE: Budget =
    Budget { takes: 0, deliveries: 0, cancels: 0, crashes: 0, recreations: 0, results: 0 };

#[test]
fn any_2_takes_and_a_cancel_race_and_exactly_one_wins() {
    explore(Budget { takes: 2, deliveries: 2, cancels: 1, ..NONE });
}

#[test]
fn any_3_crashes_never_lose_or_repeat_a_notice() {
    explore(Budget { takes: 2, deliveries: 3, crashes: 2, ..NONE });
}

#[test]
fn any_5_a_crash_in_a_cancel_leaves_nothing_to_show() {
    explore(Budget { takes: 2, deliveries: 1, cancels: 1, crashes: 1, ..NONE });
}

#[test]
fn any_1_a_recreated_stream_reuses_the_sequence_and_nobody_is_fooled() {
    explore(Budget { takes: 2, deliveries: 2, recreations: 1, crashes: 1, ..NONE });
}

#[test]
fn a_result_is_said_once_and_nobody_takes_up_what_is_finished() {
    explore(Budget { takes: 2, deliveries: 2, results: 1, ..NONE });
    explore(Budget { takes: 1, deliveries: 1, results: 2, crashes: 1, ..NONE });
    explore(Budget { takes: 1, deliveries: 1, results: 1, cancels: 1, crashes: 1, ..NONE });
}

/// Several hundred thousand states: `cargo test -p cotal-rules --test anycast -- --ignored`.
#[test]
#[ignore = "explores for minutes; run it when the rules of role requests change"]
fn any_2_any_3_any_5_for_longer() {
    explore(Budget { takes: 3, deliveries: 2, cancels: 1, ..NONE });
    explore(Budget { takes: 3, deliveries: 3, crashes: 2, ..NONE });
    explore(Budget { takes: 2, deliveries: 2, cancels: 2, crashes: 1, ..NONE });
    explore(Budget { takes: 2, deliveries: 2, results: 2, ..NONE });
    explore(Budget { takes: 2, deliveries: 2, results: 1, crashes: 1, ..NONE });
}
