//! Decisions by table; `tests/anycast` tries how they interleave.

use cotal_wire::rows::Frontier;

use super::*;
use crate::testing::who;

const NOW: &str = "2025-11-29T17:23:20.123456Z";
const SAME: &str = "2025-11-29T18:23:20.1239+01:00";
const LATER: &str = "2025-11-29T17:23:21Z";

fn request() -> Request {
    Request { role: Role::parse("reviewer").unwrap(), sender: who("alice") }
}

fn taken(created: &str, holder: &str, delivery: u64, notified: bool) -> Record {
    let row = RequestRow {
        seq: 12,
        stream_created: created.into(),
        role: request().role,
        sender: who("alice"),
        state: RequestState::Taken,
        holder: Some(who(holder)),
        delivery: Some(delivery),
        at: 0,
        notified,
        gone: 0,
        result: None,
    };
    Record { row, revision: 7 }
}

fn cancelled(created: &str) -> Record {
    let taken = taken(created, "bob", 1, true);
    let row =
        RequestRow { state: RequestState::Cancelled, holder: None, delivery: None, ..taken.row };
    Record { row, revision: 7 }
}

fn seen<'a>(request: Option<&'a Request>, record: Option<&'a Record>) -> Observed<'a> {
    Observed { seq: 12, created: NOW, request, record, now_ms: 1_000 }
}

fn by<'a>(holder: &'a Principal, created: &'a str, delivery: u64) -> Take<'a> {
    Take { holder, role: None, created, delivery }
}

#[test]
fn any_1_a_take_names_the_incarnation_that_stands() {
    let (request, bob) = (request(), who("bob"));
    let step = take(seen(Some(&request), None), by(&bob, LATER, 1));
    assert_eq!(step, TakeStep::Refused(TakeRefusal::Recreated));
    for odd in ["", "now", "2025-11-29"] {
        let step = take(seen(Some(&request), None), by(&bob, odd, 1));
        assert_eq!(step, TakeStep::Refused(TakeRefusal::Recreated), "{odd:?}");
    }
    let TakeStep::Write(write) = take(seen(Some(&request), None), by(&bob, SAME, 1)) else {
        panic!("the same instant, cut to milliseconds");
    };
    assert_eq!(write.expect, Expect::Absent);
    assert_eq!(write.row.holder, Some(bob));
    assert!(!write.row.notified && write.row.sender == who("alice"));
}

#[test]
fn any_2_what_a_take_meets_decides_it() {
    use TakeRefusal::{Cancelled, Gone, Held};
    let (request, bob) = (request(), who("bob"));
    let refused = TakeStep::Refused;
    let table = [
        (Some(taken(NOW, "bob", 2, true)), 2, TakeStep::Taken),
        (Some(taken(NOW, "bob", 2, false)), 2, TakeStep::Taken),
        (Some(taken(NOW, "bob", 2, true)), 1, refused(Held)),
        (Some(taken(NOW, "carol", 2, true)), 2, refused(Held)),
        (Some(taken(NOW, "carol", 2, true)), 1, refused(Held)),
        (Some(taken(NOW, "carol", 2, false)), 3, TakeStep::Settle),
        (Some(taken(NOW, "bob", 2, false)), 3, TakeStep::Settle),
        (Some(taken(LATER, "carol", 2, false)), 1, TakeStep::Settle),
        (Some(cancelled(NOW)), 1, refused(Cancelled)),
        (None, 0, refused(Gone)),
    ];
    for (record, delivery, want) in table {
        let step = take(seen(Some(&request), record.as_ref()), by(&bob, NOW, delivery));
        assert_eq!(step, want, "{record:?}, delivery {delivery}");
    }
    assert_eq!(take(seen(None, None), by(&bob, NOW, 1)), refused(Gone));
    let again = taken(NOW, "bob", 1, true);
    let step = take(seen(None, Some(&again)), by(&bob, NOW, 1));
    assert_eq!(step, refused(Gone), "a replay after the work was done");
    let role = Role::parse("cook").unwrap();
    let other = Take { role: Some(&role), ..by(&bob, NOW, 1) };
    assert_eq!(take(seen(Some(&request), None), other), refused(TakeRefusal::NotYours));
}

#[test]
fn any_3_a_move_is_told_and_a_redelivery_to_the_same_holder_is_not() {
    let (request, bob) = (request(), who("bob"));
    for (record, told) in [
        (taken(NOW, "carol", 1, true), Some(NoticeKind::Moved)),
        (taken(NOW, "bob", 1, true), None),
        (taken(LATER, "carol", 9, true), Some(NoticeKind::Taken)),
    ] {
        let step = take(seen(Some(&request), Some(&record)), by(&bob, NOW, 2));
        let TakeStep::Write(write) = step else {
            panic!("{step:?}");
        };
        assert_eq!(write.expect, Expect::Revision(7));
        let notice = owed(&write.row, Some(&record.row));
        assert_eq!(notice.as_ref().map(|notice| notice.kind), told, "{record:?}");
        if let Some(notice) = notice {
            assert_eq!(notice.id, "anycast-1764437000123-12-2");
            assert_eq!((notice.to, notice.holder), (who("alice"), who("bob")));
        }
    }
    let record = taken(NOW, "bob", 1, false);
    assert!(owed(&marked(&record).row, None).is_none());
}

#[test]
fn any_4_any_5_only_the_lifecycle_that_sent_a_request_sees_or_cancels_it() {
    let request = request();
    let (alice, eve) = (who("alice"), who("eve"));
    let own = Caller { principal: &alice, frontier: 11 };
    let successor = Caller { principal: &alice, frontier: 12 };
    let stranger = Caller { principal: &eve, frontier: 0 };
    let holder = who("bob");
    for (request, record, want) in [
        (Some(&request), None, None),
        (Some(&request), Some(taken(NOW, "bob", 1, true)), Some(CancelStep::Conflict { holder })),
        (Some(&request), Some(cancelled(NOW)), Some(CancelStep::Delete)),
        (None, Some(cancelled(NOW)), Some(CancelStep::Cancelled)),
        (None, None, Some(CancelStep::Unknown)),
        (None, Some(taken(LATER, "bob", 1, true)), Some(CancelStep::Unknown)),
        (Some(&request), Some(taken(LATER, "bob", 1, false)), Some(CancelStep::Settle)),
    ] {
        let seen = seen(request, record.as_ref());
        let step = cancel(seen, own, false);
        match want {
            Some(want) => assert_eq!(step, want, "{record:?}"),
            None => assert!(matches!(step, CancelStep::Write(_)), "{step:?}"),
        }
        for other in [successor, stranger] {
            assert_eq!(cancel(seen, other, false), CancelStep::Unknown, "{record:?}");
            assert_eq!(status(seen, other, false), Status::Unknown, "{record:?}");
        }
    }
    let CancelStep::Write(write) = cancel(seen(Some(&request), None), own, false) else {
        panic!("a queued request is cancelled");
    };
    assert!(write.row.state == RequestState::Cancelled && write.row.holder.is_none());
    assert_eq!(status(seen(Some(&request), None), own, false), Status::Queued);
    let record = taken(NOW, "bob", 1, true);
    assert_eq!(status(seen(None, Some(&record)), own, false), Status::Recorded(&record.row));
}

/// A request that has no holder any more may be cancelled by its sender.
#[test]
fn any_5_a_request_that_was_given_back_or_whose_holder_is_gone_can_be_cancelled() {
    let (request, alice) = (request(), who("alice"));
    let own = Caller { principal: &alice, frontier: 0 };
    let result = |outcome| RequestResult { outcome, parts: vec![], at: 1 };
    let with = |outcome: Option<Outcome>| {
        let record = taken(NOW, "bob", 1, true);
        Record { row: RequestRow { result: outcome.map(result), ..record.row }, ..record }
    };
    for (outcome, is_gone, free) in [
        (None, false, false),
        (None, true, true),
        (Some(Outcome::Returned), false, true),
        (Some(Outcome::Done), true, false),
        (Some(Outcome::Failed), true, false),
    ] {
        let record = with(outcome);
        let step = cancel(seen(Some(&request), Some(&record)), own, is_gone);
        let CancelStep::Write(write) = &step else {
            assert!(!free && matches!(step, CancelStep::Conflict { .. }), "{outcome:?}: {step:?}");
            continue;
        };
        assert!(free && write.expect == Expect::Revision(7), "{outcome:?}");
        assert!(write.row.state == RequestState::Cancelled && write.row.holder.is_none());
        // If the request has left the queue, its work was done.
        let step = cancel(seen(None, Some(&record)), own, is_gone);
        assert!(matches!(step, CancelStep::Conflict { .. }), "{step:?}");
    }
    let record = with(None);
    assert_eq!(status(seen(Some(&request), Some(&record)), own, true), Status::Queued);
    let kept = status(seen(Some(&request), Some(&record)), own, false);
    assert_eq!(kept, Status::Recorded(&record.row));
    let owing = taken(NOW, "bob", 1, false);
    let step = cancel(seen(Some(&request), Some(&owing)), own, true);
    assert_eq!(step, CancelStep::Settle, "what is owed is told first");
}

#[test]
fn any_6_a_record_goes_a_day_after_its_request_left_the_queue() {
    let request = request();
    let at = |record: &Record, request, now_ms| {
        sweep(record, Observed { now_ms, ..seen(request, Some(record)) })
    };
    let fresh = taken(NOW, "bob", 1, true);
    assert_eq!(at(&fresh, Some(&request), 5), SweepStep::Keep);
    let SweepStep::Write(write) = at(&fresh, None, 5) else {
        panic!("the request has left the queue");
    };
    assert_eq!((write.row.gone, write.expect), (5, Expect::Revision(7)));
    let gone = Record { row: write.row, revision: 8 };
    assert_eq!(at(&gone, None, 4 + KEEP_MS), SweepStep::Keep);
    assert_eq!(at(&gone, None, 5 + KEEP_MS), SweepStep::Remove { revision: 8 });
    let old = taken(LATER, "bob", 1, true);
    assert!(matches!(at(&old, Some(&request), 5), SweepStep::Write(_)), "its stream is gone");
    assert_eq!(at(&taken(NOW, "bob", 1, false), None, 5), SweepStep::Notify);
    assert_eq!(at(&cancelled(NOW), Some(&request), 5), SweepStep::Delete);
}

#[test]
fn any_4_a_frontier_of_an_earlier_stream_hides_nothing_of_this_one() {
    let row = |updated_at, task: Option<u64>| AclRow {
        allow_subscribe: Vec::new(),
        revision: 1,
        updated_at,
        name: None,
        activated: task.map(|task| Frontier { chat: 0, dm: 0, task }),
        retired: false,
    };
    let created = Created::parse(NOW).unwrap().millis();
    assert_eq!(frontier(&row(created, Some(7)), NOW), 7);
    assert_eq!(frontier(&row(created - 1, Some(7)), NOW), 0);
    assert_eq!(frontier(&row(created, None), NOW), 0);
    assert_eq!(frontier(&row(created - 1, Some(7)), "garbage"), 7);
}
