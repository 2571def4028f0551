//! The lease keeper over every interleaving of two and three daemons.
//!
//! Each exploration visits every state that its faults and its horizon allow. In every state at
//! most one daemon may serve, and its own row is in the bucket. The model itself refuses a write
//! that replaces another run's row, an operation beside another, and `ready` without bound
//! responders. From every sampled state, once the faults end, the space is served again as long as
//! anybody wants to.
#![allow(clippy::print_stdout, reason = "the size of what was explored is part of the result")]
#![expect(clippy::unwrap_used, reason = "a model that cannot go on has failed its test")]
#![expect(clippy::print_stdout, reason = "how much was explored is what the test proves")]

mod world;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use cotal_rules::lease::Exit;

use world::{Action, Daemon, Faults, Stored, UNIT, Value, World};

const NONE: Faults = Faults {
    left: 0,
    pause: false,
    lose: false,
    garble: false,
    stop: false,
    kill: false,
    recreate: false,
};

/// What must hold in every state.
fn check(world: &World) {
    let serves = |d: &&Daemon| d.lives() && !d.is_deceived() && d.keeper.may_serve(world.now);
    let serving: Vec<&Daemon> = world.daemons.iter().filter(serves).collect();
    assert!(serving.len() <= 1, "two serve");
    if let Some(daemon) = serving.first() {
        let own = matches!(
            world.row,
            Some(Stored { value: Value::Row { run, .. } | Value::Garbage { over: Some(run) }, .. })
                if run == daemon.run
        );
        assert!(own, "run {} serves without a row:\n{world:#?}", daemon.run);
    }
    for daemon in &world.daemons {
        match &daemon.ended {
            Some(Exit::Held { holder, .. } | Exit::Taken { holder }) => {
                assert_ne!(holder.actor(), format!("d{}", daemon.run), "its own row is no other's");
            }
            Some(Exit::Stopped { released: true } | Exit::Replaced { released: true })
                if world.late.is_empty() =>
            {
                let left = matches!(world.row, Some(Stored { value: Value::Row { run, .. }, .. })
                    if run == daemon.run);
                assert!(!left, "run {} says released and left its row:\n{world:#?}", daemon.run);
            }
            _ => {}
        }
    }
}

/// From here on nothing fails any more: everything that can happen happens, in order, and time
/// passes.
fn settle(mut world: World) {
    world.faults = NONE;
    let wanted = |world: &World| world.daemons.iter().any(|d| !d.told_to_stop && !d.killed);
    if !wanted(&world) {
        return;
    }
    let end = world.now + 40 * UNIT;
    while world.now < end {
        let next = world.actions(end).into_iter().find(|action| *action != Action::Advance);
        match next {
            Some(action) => world.act(action),
            None => {
                let closed = |d: &Daemon| d.ended.is_some() && !d.told_to_stop && !d.killed;
                for at in 0..world.daemons.len() {
                    if closed(&world.daemons[at]) {
                        world.reopen(at);
                    }
                }
                world.act(Action::Advance);
            }
        }
        check(&world);
        let served = world.daemons.iter().any(|d| d.lives() && d.keeper.may_serve(world.now));
        let ready = matches!(world.row, Some(Stored { value: Value::Row { ready: true, .. }, .. }));
        if served && ready && world.late.is_empty() {
            return;
        }
    }
    panic!("a wanted space is not served:\n{world:#?}");
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits every reachable state, and settles every `sample`th one.
fn explore(daemons: u8, horizon: i64, faults: Faults, sample: usize) {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(daemons, faults)];
    while let Some(world) = open.pop() {
        check(&world);
        if seen.len().is_multiple_of(sample) {
            settle(world.clone());
        }
        for action in world.actions(horizon * UNIT) {
            let mut next = world.clone();
            next.act(action);
            if seen.insert(fingerprint(&next)) {
                open.push(next);
            }
        }
    }
    println!("{daemons} daemons over {horizon} units: {} states", seen.len());
    assert!(seen.len() > 1_000, "the exploration is too small to say anything");
}

const ALL: Faults =
    Faults { left: 1, pause: true, lose: true, garble: true, stop: true, kill: true, ..NONE };

#[test]
fn lse_1_two_daemons_without_faults() {
    explore(2, 8, NONE, 1);
}

#[test]
fn lse_1_three_daemons_without_faults() {
    explore(3, 2, NONE, 50);
}

#[test]
fn lse_6_two_daemons_and_any_fault() {
    explore(2, 2, ALL, 50);
}

#[test]
fn lse_6_a_paused_holder_that_wakes_up_does_nothing_wrong() {
    explore(2, 4, Faults { left: 1, pause: true, ..NONE }, 50);
}

#[test]
fn lse_9_two_daemons_and_two_lost_answers_or_pauses() {
    explore(2, 1, Faults { left: 2, pause: true, lose: true, ..NONE }, 100);
}

#[test]
fn lse_6_a_bucket_that_is_created_again_ends_its_daemons_and_is_served_again() {
    explore(2, 3, Faults { left: 1, recreate: true, ..NONE }, 10);
}

#[test]
#[ignore = "explores for minutes; run it when the keeper changes"]
fn lse_6_a_bucket_that_is_created_again_while_an_answer_is_lost() {
    explore(2, 2, Faults { left: 2, recreate: true, lose: true, ..NONE }, 1_000);
}

/// Millions of states: `cargo test --release -p cotal-rules --test lease -- --ignored`.
#[test]
#[ignore = "explores for minutes; run it when the keeper changes"]
fn lse_6_two_daemons_and_any_two_faults() {
    explore(2, 3, Faults { left: 2, ..ALL }, 1_000);
}

#[test]
#[ignore = "explores for minutes; run it when the keeper changes"]
fn lse_6_two_daemons_and_any_fault_for_longer() {
    explore(2, 6, ALL, 1_000);
}

#[test]
#[ignore = "explores for minutes; run it when the keeper changes"]
fn lse_2_three_daemons_and_a_kill_or_a_pause() {
    explore(3, 2, Faults { left: 1, kill: true, pause: true, ..NONE }, 1_000);
}
