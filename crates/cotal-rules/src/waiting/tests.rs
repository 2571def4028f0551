use super::*;

fn owner(n: usize) -> Lifecycle {
    Lifecycle::parse(&format!("local.a{n}.{}", "a".repeat(26))).unwrap()
}

fn entry(owner: &Lifecycle, seq: u64, attempts: u64, reason: DeadReason) -> WaitingEntry {
    WaitingEntry {
        seq,
        member: owner.principal.clone(),
        channel: cotal_wire::Channel::parse("team").unwrap(),
        chat_seq: seq,
        reason,
        attempts,
        first_at: 5,
    }
}

fn wait(waiting: &mut Waiting, n: usize, seq: u64, attempts: u64) -> Wait {
    waiting.on_wait(&owner(n), entry(&owner(n), seq, attempts, DeadReason::NoAclRow), true)
}

#[test]
fn rdr_8_ten_redeliveries_take_minutes_and_then_the_entry_is_given_up() {
    let mut waiting = Waiting::default();
    let delays: Vec<i64> = (1..=10)
        .map(|attempt| match wait(&mut waiting, 1, 7, attempt) {
            Wait::Retry { delay } => i64::try_from(delay.as_secs()).unwrap(),
            other => panic!("attempt {attempt}: {other:?}"),
        })
        .collect();
    assert_eq!(delays, [2, 4, 8, 16, 30, 60, 60, 60, 60, 60]);
    assert_eq!(waiting.len(), 1, "one entry holds one slot however often it comes back");
    assert_eq!(wait(&mut waiting, 1, 7, 11), Wait::GiveUp);
    assert!(waiting.is_empty() && waiting.lowest().is_empty(), "a given-up entry holds no slot");
}

#[test]
fn an_entry_whose_hand_off_fails_is_never_given_up() {
    let mut waiting = Waiting::default();
    let failed = entry(&owner(1), 7, 1_000, DeadReason::HandoffFailed);
    let retry = Wait::Retry { delay: Duration::from_secs(60) };
    assert_eq!(waiting.on_wait(&owner(1), failed, true), retry);
    let deleted = entry(&owner(1), 7, 11, DeadReason::DeleteFailed);
    assert_eq!(waiting.on_wait(&owner(1), deleted, true), Wait::GiveUp);
}

#[test]
fn a_parked_entry_ends_by_missing_rows_failed_deletes_and_its_size_alone() {
    use DeadReason::{DeleteFailed, HandoffFailed, NoAclRow, TooLarge};
    let at = |attempts, delay| Again::At { attempts, next_at: delay };
    let rows = [
        (NoAclRow, 9, NoAclRow, at(10, 60_000)),
        (NoAclRow, 10, NoAclRow, Again::GiveUp { attempts: 11 }),
        (NoAclRow, 10, DeleteFailed, Again::GiveUp { attempts: 11 }),
        (HandoffFailed, 1, HandoffFailed, at(2, 4_000)),
        (HandoffFailed, 10, HandoffFailed, at(10, 60_000)),
        (NoAclRow, 10, HandoffFailed, at(10, 60_000)),
        (HandoffFailed, 10, NoAclRow, at(1, 2_000)),
        (HandoffFailed, 2, TooLarge, Again::GiveUp { attempts: 3 }),
    ];
    for (before, attempts, reason, want) in rows {
        let got = parked_again(before, attempts, reason, 0);
        assert_eq!(got, want, "{before:?}, {attempts}, {reason:?}");
    }
}

#[test]
fn what_must_not_be_held_is_parked_and_leaves_its_slot() {
    let mut waiting = Waiting::default();
    wait(&mut waiting, 1, 7, 1);
    let again = entry(&owner(1), 7, 2, DeadReason::NoAclRow);
    let parked = waiting.on_wait(&owner(1), again, false);
    assert_eq!((parked, waiting.len()), (Wait::Park { next_at: 4_005 }, 0));
    let over = entry(&owner(1), 7, 11, DeadReason::NoAclRow);
    assert_eq!(waiting.on_wait(&owner(1), over, false), Wait::GiveUp);
}

#[test]
fn what_the_reader_keeps_is_shown_and_holds_no_slot() {
    let mut waiting = Waiting::default();
    for seq in 1..=200 {
        waiting.note(entry(&owner(1), seq, 1, DeadReason::HandoffFailed));
    }
    assert_eq!((waiting.len(), waiting.first(), waiting.lowest().len()), (200, Some(1), 0));
    assert_eq!(wait(&mut waiting, 1, 201, 1), Wait::Retry { delay: Duration::from_secs(2) });
    assert_eq!(waiting.after(199).map(|it| it.seq).collect::<Vec<_>>(), [200, 201]);
    (1..=201).for_each(|seq| waiting.release(&owner(1), seq));
    assert!(waiting.is_empty() && waiting.lowest().is_empty());
}

#[test]
fn a_clock_that_is_set_back_prolongs_no_wait() {
    assert_eq!(due_in(1_500, 1, 1_000), Duration::from_millis(500));
    assert_eq!(due_in(900, 1, 1_000), Duration::ZERO);
    let day = 86_400_000;
    assert_eq!(due_in(day, 1, 0), Duration::from_secs(2));
    assert_eq!(due_in(i64::MAX, 10, i64::MIN), Duration::from_secs(60));
}

#[test]
fn evicted_entries_free_their_slots() {
    let mut waiting = Waiting::default();
    for seq in [3, 5, 8] {
        wait(&mut waiting, 1, seq, 1);
    }
    assert_eq!(waiting.lowest(), [(owner(1), 3)]);
    let evicted = |evicted| Gone { evicted, removed: 0 };
    assert_eq!(waiting.release_below(&owner(1), 6), evicted(2));
    assert_eq!((waiting.len(), waiting.lowest()), (1, vec![(owner(1), 8)]));
    assert_eq!(waiting.release_below(&owner(1), u64::MAX), evicted(1));
    assert_eq!(waiting.release_below(&owner(1), u64::MAX), evicted(0));
    assert!(waiting.is_empty() && waiting.lowest().is_empty());
}

#[test]
fn what_is_gone_by_a_delete_without_an_answer_is_no_miss() {
    let mut waiting = Waiting::default();
    wait(&mut waiting, 1, 3, 1);
    waiting.on_wait(&owner(1), entry(&owner(1), 5, 1, DeadReason::DeleteFailed), true);
    assert_eq!(waiting.release_below(&owner(1), 6), Gone { evicted: 1, removed: 1 });
}

#[test]
fn beyond_its_slots_an_owner_is_parked_and_nobody_else_is() {
    let mut waiting = Waiting::default();
    for seq in 0..100 {
        assert_eq!(wait(&mut waiting, 1, seq, 1), Wait::Retry { delay: Duration::from_secs(2) });
    }
    assert_eq!(wait(&mut waiting, 1, 100, 1), Wait::Park { next_at: 2_005 });
    let held = wait(&mut waiting, 1, 50, 2);
    assert_eq!(held, Wait::Retry { delay: Duration::from_secs(4) }, "it keeps the slot it holds");
    assert_eq!(wait(&mut waiting, 2, 100, 1), Wait::Retry { delay: Duration::from_secs(2) });
    waiting.release(&owner(1), 50);
    waiting.release(&owner(1), 50);
    assert_eq!(wait(&mut waiting, 1, 101, 1), Wait::Retry { delay: Duration::from_secs(2) });
    assert_eq!(waiting.len(), 101);
}

#[test]
fn many_dead_owners_leave_half_of_the_slots_free() {
    let mut waiting = Waiting::default();
    let mut parked = 0;
    for n in 0..200 {
        for seq in 0..50 {
            let waits = wait(&mut waiting, n, (n * 50 + seq) as u64, 1);
            parked += usize::from(matches!(waits, Wait::Park { .. }));
        }
    }
    assert_eq!((waiting.len(), parked), (MAX_TOTAL, 200 * 50 - MAX_TOTAL));
}
