//! Single cases; `tests/lease` explores every interleaving.

use super::*;

const TTL: i64 = 30_000;
const BUCKET: &str = "monday";

fn read(found: Found) -> Input {
    Input::Read(Ok(Reading { found, created: BUCKET.into() }))
}

fn keeper() -> LeaseKeeper {
    let me = Principal::new("local", "d1").unwrap();
    LeaseKeeper::new(me, "run-1".into(), 7, TTL, BUCKET.into())
}

fn own(ready: bool) -> LeaseRow {
    let holder = Principal::new("local", "d1").unwrap();
    LeaseRow { holder, incarnation: "run-1".into(), since: 7, ready }
}

fn other() -> LeaseRow {
    LeaseRow {
        holder: Principal::new("local", "d2").unwrap(),
        incarnation: "x".into(),
        ..own(true)
    }
}

fn row(row: LeaseRow, revision: u64) -> Found {
    Found::Row { row, revision }
}

/// A keeper that holds revision 2, ready, written at 0.
fn serving() -> LeaseKeeper {
    let mut keeper = keeper();
    assert_eq!(keeper.on(Input::Start, 0), [Effect::Create(own(false))]);
    assert_eq!(keeper.on(Input::Written(Ok(1)), 0), [Effect::Serve]);
    let effects = keeper.on(Input::Bound, 0);
    assert_eq!(effects, [Effect::Update { row: own(true), revision: 1 }]);
    assert!(keeper.on(Input::Written(Ok(2)), 0).is_empty());
    keeper
}

#[test]
fn lse_1_a_second_daemon_is_refused_by_name_and_never_serves() {
    let mut keeper = keeper();
    keeper.on(Input::Start, 0);
    assert_eq!(keeper.on(Input::Written(Err(Failure::Conflict)), 5), [Effect::Read]);
    let effects = keeper.on(read(row(other(), 4)), 6);
    let holder = Principal::new("local", "d2").unwrap();
    assert_eq!(effects, [Effect::Exit(Exit::Held { holder, since: 7 })]);
    assert!(!keeper.may_serve(6) && keeper.deadline().is_none());
}

#[test]
fn lse_8_ready_follows_the_responders() {
    let mut keeper = serving();
    let effects = keeper.on(Input::Quieted, 10);
    assert_eq!(effects, [Effect::Update { row: own(false), revision: 2 }]);
    keeper.on(Input::Written(Ok(3)), 11);
    let effects = keeper.on(Input::Bound, 12);
    assert_eq!(effects, [Effect::Update { row: own(true), revision: 3 }]);
}

#[test]
fn lse_3_an_expired_row_is_created_again_and_only_a_live_one_is_another_daemon() {
    let mut expired = serving();
    let gone = Input::Watch(Found::Absent { revision: 3 });
    assert_eq!(expired.on(gone, 100), [Effect::StopServing, Effect::Read]);
    let effects = expired.on(read(Found::Absent { revision: 0 }), 101);
    assert_eq!(effects, [Effect::Create(own(false))]);
    let mut again = expired.clone();
    assert_eq!(again.on(Input::Written(Ok(4)), 102), [Effect::Serve]);
    let mut taken = expired.clone();
    assert_eq!(taken.on(Input::Written(Err(Failure::Conflict)), 102), [Effect::Read]);
    let effects = taken.on(read(row(other(), 4)), 103);
    let holder = Principal::new("local", "d2").unwrap();
    assert_eq!(effects, [Effect::Exit(Exit::Taken { holder })]);
    for failure in [Failure::Denied("p".into()), Failure::Refused("insufficient".into())] {
        let mut refused = expired.clone();
        let effects = refused.on(Input::Written(Err(failure.clone())), 102);
        assert_eq!(effects, [Effect::Exit(Exit::Lost(failure))]);
    }
}

#[test]
fn lse_4_lse_5_a_claim_that_is_refused_says_as_the_broker_said() {
    for failure in [Failure::Denied("p".into()), Failure::Refused("insufficient".into())] {
        let mut keeper = keeper();
        keeper.on(Input::Start, 0);
        let effects = keeper.on(Input::Written(Err(failure.clone())), 1);
        assert_eq!(effects, [Effect::Exit(Exit::Claim(failure))]);
    }
}

#[test]
fn lse_5_a_claim_that_nobody_answers_says_whether_the_broker_or_the_store_was_silent() {
    for failure in [Failure::Unanswered, Failure::NoResponders("nobody".into())] {
        let mut keeper = keeper();
        keeper.on(Input::Start, 0);
        assert!(keeper.on(Input::Written(Err(failure.clone())), 5).is_empty(), "it is asked again");
        assert_eq!(keeper.on(Input::Tick, 1_005), [Effect::Read]);
        keeper.on(Input::Read(Err(failure.clone())), 1_006);
        let effects = keeper.on(Input::Tick, TTL);
        assert_eq!(effects.last(), Some(&Effect::Exit(Exit::Claim(failure))));
    }
}

#[test]
fn lse_6_a_failed_renewal_is_a_question_and_not_a_verdict() {
    for failure in [Failure::Unanswered, Failure::Refused("insufficient".into())] {
        let mut keeper = serving();
        let renewal = keeper.on(Input::Tick, 10_000);
        assert_eq!(renewal, [Effect::Update { row: own(true), revision: 2 }]);
        assert!(keeper.on(Input::Written(Err(failure)), 10_001).is_empty());
        assert_eq!(keeper.deadline(), Some(11_001));
        assert_eq!(keeper.on(Input::Tick, 11_001), [Effect::Read]);
        let effects = keeper.on(read(row(own(true), 2)), 11_002);
        assert_eq!(effects, [Effect::Update { row: own(true), revision: 2 }]);
        assert!(keeper.may_serve(11_002), "the row stands, so serving never stopped");
    }
}

#[test]
fn lse_6_serving_ends_before_the_row_can_expire_whatever_is_unanswered() {
    let mut keeper = serving();
    keeper.on(Input::Tick, 10_000);
    assert!(keeper.may_serve(TTL - 1) && !keeper.may_serve(TTL));
    assert_eq!(keeper.deadline(), Some(TTL));
    assert_eq!(keeper.on(Input::Tick, TTL), [Effect::StopServing]);
    let effects = keeper.on(Input::Written(Err(Failure::Unanswered)), TTL + 1);
    assert!(effects.is_empty());
    assert_eq!(keeper.on(Input::Tick, TTL + 1_001), [Effect::Read]);
}

#[test]
fn lse_7_a_signal_waits_for_the_claim_and_releases_a_win() {
    let mut keeper = keeper();
    keeper.on(Input::Start, 0);
    assert!(keeper.on(Input::Stop, 1).is_empty(), "the answer is awaited");
    assert_eq!(keeper.on(Input::Written(Ok(1)), 2), [Effect::Delete { revision: 1 }]);
    let effects = keeper.on(Input::Written(Ok(2)), 3);
    assert_eq!(effects, [Effect::Exit(Exit::Stopped { released: true })]);
}

#[test]
fn lse_7_a_signal_during_a_redial_waits_five_seconds_from_the_drop() {
    let mut keeper = serving();
    keeper.on(Input::Disconnected, 1_000);
    assert_eq!(keeper.on(Input::Stop, 3_000), [Effect::StopServing]);
    assert_eq!(keeper.deadline(), Some(6_000));
    let mut back = keeper.clone();
    assert_eq!(back.on(Input::Connected, 5_999), [Effect::Delete { revision: 2 }]);
    let effects = keeper.on(Input::Tick, 6_000);
    assert_eq!(effects, [Effect::Exit(Exit::Stopped { released: false })]);
}

#[test]
fn lse_9_garbage_is_written_back_only_while_the_own_lease_provably_runs() {
    let mut keeper = serving();
    let mut late = keeper.clone();
    let effects = keeper.on(Input::Watch(Found::Garbled { revision: 3 }), 100);
    assert_eq!(effects, [Effect::Update { row: own(true), revision: 3 }]);
    assert!(keeper.may_serve(100), "nobody else can have created a row");
    // A paused holder sees garbage when it wakes up: that may have replaced a successor's row.
    let effects = late.on(Input::Watch(Found::Garbled { revision: 9 }), TTL + 5);
    assert_eq!(effects, [Effect::StopServing, Effect::Read]);
    let garbled = Found::Garbled { revision: 9 };
    assert!(late.on(read(garbled), TTL + 6).is_empty());
    assert_eq!(late.on(Input::Tick, TTL + 1_006), [Effect::Read]);
}

#[test]
fn an_own_row_that_is_known_does_not_settle_an_update_that_may_still_come() {
    let mut keeper = serving();
    keeper.on(Input::Tick, 10_000);
    keeper.on(Input::Written(Err(Failure::Unanswered)), 15_000);
    keeper.on(Input::Tick, 16_000);
    keeper.on(read(row(own(true), 2)), 16_001);
    // The first update is stored only now, and the watch shows it before the second one is refused.
    keeper.on(Input::Watch(row(own(true), 3)), 16_002);
    assert_eq!(keeper.serving_until(), Some(10_000 + TTL), "from when the first was sent");
}

#[test]
fn lse_7_a_create_that_strayed_is_released_too_or_not_said_to_be() {
    let mut keeper = keeper();
    keeper.on(Input::Start, 0);
    keeper.on(Input::Written(Err(Failure::Unanswered)), 5_000);
    keeper.on(Input::Tick, 6_000);
    let effects = keeper.on(read(Found::Absent { revision: 0 }), 6_001);
    assert_eq!(effects, [Effect::Create(own(false))]);
    keeper.on(Input::Written(Ok(1)), 6_002);
    assert_eq!(
        keeper.on(Input::Stop, 6_003),
        [Effect::StopServing, Effect::Delete { revision: 1 }]
    );
    let mut seen = keeper.clone();
    let effects = keeper.on(Input::Written(Ok(2)), 6_004);
    assert_eq!(effects, [Effect::Exit(Exit::Stopped { released: false })]);
    assert!(seen.on(Input::Watch(row(own(false), 3)), 6_004).is_empty());
    assert_eq!(seen.on(Input::Written(Ok(2)), 6_005), [Effect::Delete { revision: 3 }]);
}

/// A renewal is due at 10 s; by then the bucket was replaced.
fn renewing() -> LeaseKeeper {
    let mut keeper = serving();
    for (at, seen) in [(10_000, 3), (20_000, 4)] {
        keeper.on(Input::Tick, at);
        keeper.on(Input::Written(Ok(seen)), at);
    }
    keeper.on(Input::Tick, 30_000);
    keeper
}

#[test]
fn lse_6_a_bucket_that_was_created_anew_ends_the_run_and_is_not_asked_for_ever() {
    let mut keeper = renewing();
    assert_eq!(
        keeper.on(Input::Written(Err(Failure::Conflict)), 30_001),
        [Effect::StopServing, Effect::Read]
    );
    let found = Found::Absent { revision: 0 };
    let reading = Reading { found, created: "tuesday".into() };
    let effects = keeper.on(Input::Read(Ok(reading)), 30_002);
    assert_eq!(effects, [Effect::Exit(Exit::Replaced { released: true })]);
}

#[test]
fn lse_6_a_store_that_lost_what_it_had_confirmed_ends_the_run_and_its_row_goes() {
    let mut keeper = renewing();
    keeper.on(Input::Written(Err(Failure::Conflict)), 30_001);
    assert_eq!(keeper.on(read(row(own(true), 3)), 30_002), [Effect::Delete { revision: 3 }]);
    let effects = keeper.on(Input::Written(Ok(4)), 30_003);
    assert_eq!(effects, [Effect::Exit(Exit::Replaced { released: true })]);
}

#[test]
fn lse_6_a_create_that_the_numbers_show_to_be_in_another_bucket_is_taken_back() {
    let mut keeper = renewing();
    keeper.on(Input::Written(Err(Failure::Conflict)), 30_001);
    assert_eq!(
        keeper.on(read(Found::Absent { revision: 0 }), 30_002),
        [Effect::Create(own(false))]
    );
    assert_eq!(keeper.on(Input::Written(Ok(1)), 30_003), [Effect::Read]);
    assert_eq!(keeper.on(read(row(own(false), 1)), 30_004), [Effect::Delete { revision: 1 }]);
}

#[test]
fn lse_6_a_watch_over_another_bucket_ends_the_run_before_another_serves_beside_it() {
    let mut keeper = serving();
    assert_eq!(keeper.on(Input::Recreated, 100), [Effect::StopServing, Effect::Read]);
    let reading = Reading { found: row(other(), 1), created: "tuesday".into() };
    let effects = keeper.on(Input::Read(Ok(reading)), 101);
    assert_eq!(effects, [Effect::Exit(Exit::Replaced { released: true })]);
}

#[test]
fn lse_6_a_read_that_a_newer_event_overtook_is_asked_again_and_is_no_lost_store() {
    let mut keeper = serving();
    keeper.on(Input::Doubt, 100);
    keeper.on(Input::Watch(row(own(true), 3)), 101);
    keeper.on(Input::Doubt, 102);
    let effects = keeper.on(read(row(own(true), 2)), 103);
    assert_eq!(effects, [Effect::Read]);
    assert!(keeper.may_serve(103));
}
