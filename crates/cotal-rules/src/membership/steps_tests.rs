//! The machines, step by step, with a broker that does not answer or a lane that has stopped.

use cotal_wire::rows::AclRow;

use super::*;
use crate::testing::{acl, chan, life, row};

fn target() -> Target {
    Target { channel: chan("team"), member: life("bob"), writer: "w1".to_owned() }
}

fn closed(generation: u64, join: u64, leave: u64, revision: u64) -> Membership {
    Membership::of(&row("team", &life("bob"), generation, join, Some(leave)), revision)
}

fn stored(membership: Option<Membership>, revision: u64) -> Answer {
    let membership = membership.map(|row| Membership { revision, ..row });
    Answer::Row(Stored { membership, revision })
}

fn allowed() -> Answer {
    Answer::Acl(Some(acl(&["team"])))
}

fn narrowed() -> Answer {
    let row: AclRow = acl(&[]);
    Answer::Acl(Some(row))
}

/// Gives a join these answers; each must fit its question.
fn play(join: &mut Join, answers: impl IntoIterator<Item = Answer>) {
    for answer in answers {
        let Step::Ask(ask) = join.next() else { panic!("over before {answer:?}") };
        let fits = matches!(
            (&ask, &answer),
            (_, Answer::NoAnswer | Answer::Failed | Answer::NotServing)
                | (Ask::Row, Answer::Row(_))
                | (Ask::Room, Answer::Room)
                | (Ask::Cursor, Answer::Cursor(_))
                | (Ask::Acl, Answer::Acl(_))
                | (Ask::Write(_), Answer::Written(_) | Answer::Conflict)
        );
        assert!(fits, "{ask:?} is answered with {answer:?}");
        join.answer(answer, 7);
    }
}

fn write(join: &Join) -> RowWrite {
    match join.next() {
        Step::Ask(Ask::Write(write)) => write,
        other => panic!("no write: {other:?}"),
    }
}

/// A join just before its write, over the given row.
fn about_to_write(before: Option<Membership>, revision: u64) -> Join {
    let mut join = Join::new(target());
    let rejoins = before.is_some();
    play(&mut join, [stored(before, revision)]);
    play(&mut join, rejoins.then_some(Answer::Room));
    play(&mut join, [Answer::Cursor(50), allowed()]);
    join
}

#[test]
fn mem_3_after_a_failed_second_read_the_row_is_taken_back() {
    for answer in [Answer::NoAnswer, Answer::Failed] {
        let mut join = about_to_write(None, 0);
        play(&mut join, [Answer::Written(9), answer]);
        assert_eq!(write(&join), RowWrite { row: None, over: 9, is_undo: true });
        play(&mut join, [Answer::NoAnswer, stored(None, 10)]);
        assert_eq!(join.next(), Step::End(JoinEnd::Failed));
        assert!(!join.left_a_row());
    }
}

#[test]
fn mem_3_an_unanswered_write_is_a_question_and_its_row_gets_its_second_look() {
    let mut join = about_to_write(None, 4);
    let sent = write(&join);
    play(&mut join, [Answer::NoAnswer, Answer::NoAnswer, stored(None, 4)]);
    assert_eq!(write(&join), sent, "the same write again: it may still be on its way");
    let membership = Membership::of(sent.row.as_ref().unwrap(), 0);
    play(&mut join, [Answer::Conflict, stored(Some(membership), 5)]);
    assert_eq!(join.next(), Step::Ask(Ask::Acl), "no row stands without a look at the ACL");
    play(&mut join, [narrowed()]);
    assert_eq!(write(&join), RowWrite { row: None, over: 5, is_undo: true });
    play(&mut join, [Answer::Written(6)]);
    assert!(matches!(join.next(), Step::End(JoinEnd::Refused(_))));
}

#[test]
fn mem_3_a_write_on_its_way_is_overtaken_when_the_lane_stops_serving() {
    let mut join = about_to_write(None, 4);
    play(&mut join, [Answer::NoAnswer, stored(None, 4), Answer::NotServing]);
    assert_eq!(write(&join), RowWrite { row: None, over: 4, is_undo: true });
    play(&mut join, [Answer::Written(5)]);
    assert_eq!(join.next(), Step::End(JoinEnd::NotServing));

    let mut join = about_to_write(None, 4);
    play(&mut join, [Answer::NotServing]);
    assert_eq!(join.next(), Step::End(JoinEnd::NotServing), "nothing was sent");
}

#[test]
fn mem_3_a_row_that_another_daemon_activated_is_not_taken_back() {
    for (activated, asks) in [(true, false), (false, true)] {
        let mut join = about_to_write(None, 0);
        let own = write(&join).row.unwrap();
        play(&mut join, [Answer::Written(9), narrowed(), Answer::Conflict]);
        let changed = Membership { activated, ..Membership::of(&own, 12) };
        play(&mut join, [stored(Some(changed), 12)]);
        assert_eq!(matches!(join.next(), Step::Ask(Ask::Acl)), asks);
    }
}

#[test]
fn mem_6_a_refused_rejoin_puts_the_closed_row_back() {
    let before = closed(3, 9, 20, 43);
    let mut join = about_to_write(Some(before.clone()), 43);
    let opened = write(&join);
    assert_eq!((opened.over, opened.row.as_ref().unwrap().generation), (43, 4));
    play(&mut join, [Answer::Written(44), narrowed()]);
    let undo = write(&join);
    let restored = Membership::of(undo.row.as_ref().unwrap(), 43);
    assert_eq!((restored, undo.over, undo.is_undo), (before.clone(), 44, true));

    let open = Membership::of(opened.row.as_ref().unwrap(), 44);
    let mut resumed = Join::resume(target(), open.clone(), Some(before.clone()));
    play(&mut resumed, [narrowed()]);
    let restored = Membership::of(write(&resumed).row.as_ref().unwrap(), 43);
    assert_eq!(restored, before, "by the next daemon as well");

    let mut resumed = Join::resume(target(), open, None);
    play(&mut resumed, [narrowed()]);
    let counted = write(&resumed).row.unwrap();
    assert_eq!((counted.generation, counted.join_cursor, counted.leave_cursor), (4, 50, Some(50)));
}

#[test]
fn rdr_10_an_unanswered_leave_keeps_its_cursor_until_another_row_stands() {
    let open = Membership::of(&row("team", &life("bob"), 2, 9, None), 40);
    let mut leave = Leave::new(target(), 2);
    for answer in [stored(Some(open.clone()), 40), Answer::Cursor(30), Answer::NoAnswer] {
        leave.answer(answer, 7);
    }
    assert_eq!((leave.next(), leave.cursor()), (Step::Ask(Ask::Row), Some(30)));
    leave.answer(stored(Some(open.clone()), 40), 7);
    assert_eq!(leave.cursor(), Some(30), "the write may still arrive");
    let Step::Ask(Ask::Write(write)) = leave.next() else { panic!("the same write again") };
    assert_eq!(write.row.unwrap().leave_cursor, Some(30));
    let mut overtaken = leave.clone();
    for answer in [Answer::Conflict, stored(Some(closed(2, 9, 30, 41)), 41)] {
        leave.answer(answer, 7);
    }
    assert_eq!(leave.next(), Step::End(LeaveEnd::Left { revision: 41 }));
    for answer in [Answer::Conflict, stored(Some(open), 42)] {
        overtaken.answer(answer, 7);
    }
    assert_eq!((overtaken.next(), overtaken.cursor()), (Step::Ask(Ask::Row), None), "begins anew");
}
