//! The transitions by table, and races decided by revision.

use proptest::prelude::*;

use super::*;
use crate::testing::{acl, chan, life, row, tombstone};

struct At {
    channel: Channel,
    member: Lifecycle,
}

impl At {
    fn new() -> Self {
        Self { channel: chan("team"), member: life("bob") }
    }

    fn change(&self, cursor: u64) -> MemberChange<'_> {
        let (channel, member) = (&self.channel, &self.member);
        MemberChange { channel, member, cursor, now_ms: 77, writer: "w1" }
    }
}

fn held(generation: u64, join: u64, leave: Option<u64>, activated: bool) -> Membership {
    let row = MemberRow { activated, ..row("team", &life("bob"), generation, join, leave) };
    Membership::of(&row, 40 + generation)
}

#[test]
fn mem_6_join_is_idempotent_and_a_rejoin_bumps_the_generation() {
    let (at, acl) = (At::new(), acl(&["team"]));
    let acl = Acl::Row(&acl);
    let JoinStep::Write(first) = join(None, acl, at.change(9)) else {
        panic!("a first join writes");
    };
    assert_eq!(first.expect, Expect::Absent);
    let row = &first.row;
    assert_eq!((row.generation, row.join_cursor, row.leave_cursor), (1, 9, None));
    assert!(!row.activated && row.state == MemberState::LiveConfirmed);
    assert_eq!((row.updated_at, row.writer_identity.as_str()), (77, "w1"));
    for activated in [false, true] {
        let membership = held(3, 9, None, activated);
        let step = join(Some(&membership), acl, at.change(50));
        assert_eq!(step, JoinStep::AlreadyJoined { membership }, "writes nothing");
    }
    let JoinStep::Write(again) = join(Some(&held(3, 9, Some(20), true)), acl, at.change(50)) else {
        panic!("a rejoin writes");
    };
    assert_eq!(again.expect, Expect::Revision(43));
    let row = &again.row;
    assert_eq!((row.generation, row.join_cursor, row.leave_cursor), (4, 50, None));
    assert!(!row.activated, "the new interval is caught up anew");
}

#[test]
fn mem_3_a_join_is_refused_before_and_after_its_write_when_the_acl_does_not_cover_it() {
    let at = At::new();
    let (other, empty, dead) = (acl(&["other"]), acl(&[]), tombstone());
    for (acl, code) in [
        (Acl::of(None), Code::NotProvisioned),
        (Acl::of(Some(&dead)), Code::Retired),
        (Acl::of(Some(&other)), Code::Denied),
        (Acl::of(Some(&empty)), Code::Denied),
    ] {
        for current in [None, Some(held(1, 0, None, true)), Some(held(1, 0, Some(5), true))] {
            let JoinStep::Refused(refusal) = join(current.as_ref(), acl, at.change(9)) else {
                panic!("{acl:?} lets {current:?} join");
            };
            assert_eq!(refusal.code, code);
        }
        let AfterWrite::Remove(refusal) = after_write(acl, &at.channel) else {
            panic!("{acl:?} keeps the row");
        };
        assert_eq!(refusal.code, code);
    }
    let wide = acl(&["team"]);
    assert_eq!(after_write(Acl::Row(&wide), &at.channel), AfterWrite::Keep);
}

#[test]
fn mem_6_a_leave_naming_another_generation_is_refused() {
    let at = At::new();
    for (generation, code) in [(2, Code::StaleGeneration), (4, Code::Invalid)] {
        for leave_cursor in [None, Some(30)] {
            let current = held(3, 9, leave_cursor, true);
            let LeaveStep::Refused(refusal) = leave(Some(&current), generation, at.change(50))
            else {
                panic!("generation {generation} leaves {current:?}");
            };
            assert_eq!(refusal.code, code);
        }
    }
}

#[test]
fn inv_4_only_a_row_that_refuses_by_itself_needs_no_fence() {
    let (wide, empty, dead) = (acl(&["team"]), acl(&[]), tombstone());
    for (acl, fence) in [
        (Acl::of(None), true),
        (Acl::of(Some(&wide)), true),
        (Acl::of(Some(&empty)), false),
        (Acl::of(Some(&dead)), false),
    ] {
        assert_eq!(needs_fence(acl), fence, "{acl:?}");
    }
}

#[test]
fn mem_4_a_leave_and_an_activation_only_update_a_row_that_exists() {
    let at = At::new();
    assert_eq!(leave(None, 1, at.change(50)), LeaveStep::AlreadyLeft);
    let closed = held(3, 9, Some(30), true);
    assert_eq!(leave(Some(&closed), 3, at.change(50)), LeaveStep::AlreadyLeft);
    let LeaveStep::Write(write) = leave(Some(&held(3, 9, None, true)), 3, at.change(50)) else {
        panic!("an open row is closed");
    };
    assert_eq!((write.expect, write.row.leave_cursor), (Expect::Revision(43), Some(50)));
    assert_eq!((write.row.join_cursor, write.row.generation), (9, 3));

    assert_eq!(activate(None, 3, at.change(0)), ActivateStep::Superseded);
    for current in [closed, held(4, 9, None, false), held(2, 9, None, false)] {
        let step = activate(Some(&current), 3, at.change(0));
        assert_eq!(step, ActivateStep::Superseded, "{current:?}");
    }
    let step = activate(Some(&held(3, 9, None, true)), 3, at.change(0));
    assert_eq!(step, ActivateStep::AlreadyActive);
    let ActivateStep::Write(write) = activate(Some(&held(3, 9, None, false)), 3, at.change(0))
    else {
        panic!("an open row is activated");
    };
    assert!(write.row.activated && write.row.state == MemberState::DurableActive);
    assert_eq!((write.expect, write.row.join_cursor), (Expect::Revision(43), 9));
}

#[test]
fn mem_7_an_evicted_window_closes_the_row_so_that_it_claims_no_post() {
    let at = At::new();
    let pending = held(3, 9, None, false);
    let CloseStep::Write(write) = close_evicted(Some(&pending), 3, at.change(50)) else {
        panic!("the row is closed");
    };
    assert_eq!(write.expect, Expect::Revision(43));
    assert!((0..100).all(|seq| !write.row.holds(seq)));
    for current in [None, Some(held(3, 9, None, true)), Some(held(4, 9, None, false))] {
        let step = close_evicted(current.as_ref(), 3, at.change(50));
        assert_eq!(step, CloseStep::Superseded, "{current:?}");
    }
}

#[test]
fn mem_7_a_window_is_suspect_when_the_stream_or_a_full_subject_starts_after_the_join() {
    let fill = |count, oldest| SubjectFill { count, oldest };
    let table = [
        (10, 1, vec![], false),
        (10, 11, vec![], false),
        (10, 12, vec![], true),
        (10, 1, vec![fill(1_000, 10)], false),
        (10, 1, vec![fill(1_000, 11)], true),
        (10, 1, vec![fill(999, 11)], false),
        (10, 1, vec![fill(3, 5), fill(1_000, 12)], true),
        (0, 1, vec![], false),
        (u64::MAX, 1, vec![], false),
    ];
    for (join, first, subjects, want) in table {
        let got = window_evicted(join, first, &subjects);
        assert_eq!(got, want, "join {join}, stream from {first}, {subjects:?}");
    }
}

/// One step of one of two daemons that race on a row: read it, or write what was decided from the
/// last read.
#[derive(Debug, Clone, Copy)]
enum Step {
    Read(usize),
    Join(usize, u64),
    Leave(usize, u64),
    Activate(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let daemon = 0_usize..2;
    prop_oneof![
        daemon.clone().prop_map(Step::Read),
        (daemon.clone(), 0_u64..6).prop_map(|(d, n)| Step::Join(d, n)),
        (daemon.clone(), 0_u64..6).prop_map(|(d, n)| Step::Leave(d, n)),
        daemon.prop_map(Step::Activate),
    ]
}

/// The bucket key; every write names the revision it replaces.
#[derive(Default)]
struct Cell {
    row: Option<Membership>,
    revision: u64,
}

impl Cell {
    fn write(&mut self, write: &Write) -> bool {
        let current = self.row.as_ref().map(|row| row.revision);
        let matches = match write.expect {
            Expect::Absent => current.is_none(),
            Expect::Revision(revision) => current == Some(revision),
        };
        if matches {
            self.revision += 1;
            self.row = Some(Membership::of(&write.row, self.revision));
        }
        matches
    }
}

proptest! {
    /// However two daemons interleave reads and writes, generations only grow, a closed interval
    /// never changes, an interval keeps its join cursor, and nothing overlaps (MEM-2).
    #[test]
    fn mem_2_races_on_one_row_keep_its_intervals_apart(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let (at, acl) = (At::new(), acl(&["team"]));
        let (mut cell, mut seen, mut last_seq) = (Cell::default(), [None, None], 0);
        for step in steps {
            let before = cell.row.clone();
            let write = match step {
                Step::Read(d) => {
                    seen[d] = cell.row.clone();
                    None
                }
                Step::Join(d, posts) => {
                    last_seq += posts;
                    match join(seen[d].as_ref(), Acl::Row(&acl), at.change(last_seq)) {
                        JoinStep::Write(write) => Some(write),
                        _ => None,
                    }
                }
                Step::Leave(d, posts) => {
                    last_seq += posts;
                    let generation = seen[d].as_ref().map_or(1, |row| row.generation);
                    match leave(seen[d].as_ref(), generation, at.change(last_seq)) {
                        LeaveStep::Write(write) => Some(write),
                        _ => None,
                    }
                }
                Step::Activate(d) => {
                    let generation = seen[d].as_ref().map_or(1, |row| row.generation);
                    match activate(seen[d].as_ref(), generation, at.change(last_seq)) {
                        ActivateStep::Write(write) => Some(write),
                        _ => None,
                    }
                }
            };
            let Some(write) = write.filter(|write| cell.write(write)) else {
                continue;
            };
            let row = Membership::of(&write.row, 0);
            let Some(before) = before else {
                prop_assert_eq!(row.generation, 1);
                continue;
            };
            if row.generation == before.generation {
                prop_assert_eq!(row.join_cursor, before.join_cursor);
                prop_assert!(before.is_open(), "a closed interval never changes");
                prop_assert!(row.activated >= before.activated);
            } else {
                prop_assert_eq!(row.generation, before.generation + 1);
                prop_assert!(before.leave_cursor.is_some_and(|leave| leave <= row.join_cursor));
            }
            prop_assert!(row.leave_cursor.is_none_or(|leave| leave >= row.join_cursor));
        }
    }
}
