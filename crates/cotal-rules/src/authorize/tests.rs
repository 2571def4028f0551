//! Verdicts by table, and the rejoin gap.

use proptest::prelude::*;

use super::*;
use crate::directory::Applied;
use crate::testing::{Fed, acl, chan, incarnation, json, life, row, since, tombstone};
use Reason::{DurableChannel, LiveMention};

fn judge(fed: &Fed, seq: u64, reason: Reason, generation: u64) -> Verdict {
    verdict(&life("bob"), &chan("team"), seq, reason, generation, &fed.dir)
}

fn member_with(patterns: &[&str], join: u64, leave: Option<u64>) -> Fed {
    let mut fed = Fed::default();
    fed.acl(&life("bob"), &acl(patterns));
    fed.member(&row("team", &life("bob"), 1, join, leave));
    fed
}

#[test]
fn rdr_1_a_durable_entry_needs_the_acl_and_the_interval() {
    use DenyReason::{AfterLeave, BeforeJoin, NotAllowed};
    let table = [
        (&["team"][..], 10, None, 10, Verdict::Deny(BeforeJoin)),
        (&["team"], 10, None, 11, Verdict::Release),
        (&["team"], 10, Some(20), 20, Verdict::Release),
        (&["team"], 10, Some(20), 21, Verdict::Deny(AfterLeave)),
        (&["team"], 10, Some(10), 11, Verdict::Deny(AfterLeave)),
        (&["team.>"], 10, None, 11, Verdict::Deny(NotAllowed)),
        (&[">"], 10, None, 11, Verdict::Release),
    ];
    for (patterns, join, leave, seq, want) in table {
        let fed = member_with(patterns, join, leave);
        let got = judge(&fed, seq, DurableChannel, 1);
        assert_eq!(got, want, "{patterns:?} ({join}, {leave:?}] at {seq}");
    }
    let mut stranger = Fed::default();
    stranger.acl(&life("bob"), &acl(&["team"]));
    let got = judge(&stranger, 5, DurableChannel, 1);
    assert_eq!(got, Verdict::Deny(DenyReason::NotMember), "an entry proves nothing (FAN-3)");
}

#[test]
fn rdr_8_a_missing_acl_row_is_neither_a_denial_nor_an_end() {
    let mut fed = Fed::default();
    fed.member(&row("team", &life("bob"), 1, 0, None));
    assert_eq!(judge(&fed, 5, DurableChannel, 1), Verdict::NoAclRow);
    assert_eq!(judge(&fed, 5, LiveMention, 0), Verdict::NoAclRow);
}

#[test]
fn rdr_4_a_tombstone_ends_the_entry() {
    let mut fed = member_with(&["team"], 0, None);
    fed.acl(&life("bob"), &tombstone());
    assert_eq!(judge(&fed, 5, DurableChannel, 1), Verdict::Retired);
    assert_eq!(judge(&fed, 5, LiveMention, 0), Verdict::Retired);
}

#[test]
fn rdr_11_a_mention_needs_the_acl_only() {
    let mut fed = Fed::default();
    fed.acl(&life("bob"), &acl(&["team"]));
    assert_eq!(judge(&fed, 5, LiveMention, 0), Verdict::Release);
    fed.member(&row("team", &life("bob"), 1, 10, Some(10)));
    assert_eq!(judge(&fed, 5, LiveMention, 0), Verdict::Release);
    fed.acl(&life("bob"), &acl(&["other"]));
    assert_eq!(judge(&fed, 5, LiveMention, 0), Verdict::Deny(DenyReason::NotAllowed));
}

#[test]
fn rdr_12_a_narrowed_acl_drops_and_an_empty_one_drops_all() {
    for patterns in [&["other"][..], &[]] {
        let mut fed = member_with(&["team"], 0, None);
        assert_eq!(judge(&fed, 5, DurableChannel, 1), Verdict::Release);
        fed.acl(&life("bob"), &acl(patterns));
        let denied = Verdict::Deny(DenyReason::NotAllowed);
        assert_eq!(judge(&fed, 5, DurableChannel, 1), denied, "{patterns:?}");
        assert_eq!(judge(&fed, 5, LiveMention, 0), denied, "{patterns:?}");
    }
}

#[test]
fn nothing_older_than_the_lifecycle_is_released_to_it() {
    let mut fed = Fed::default();
    fed.acl(&life("bob"), &since(5, acl(&["team"])));
    let old = Verdict::Deny(DenyReason::BeforeLifecycle);
    assert_eq!(judge(&fed, 5, LiveMention, 0), old);
    assert_eq!(judge(&fed, 6, LiveMention, 0), Verdict::Release);
}

#[test]
fn an_owner_that_nobody_mints_is_refused() {
    let eve = Lifecycle::parse(&format!("evil.eve.{}", "a".repeat(26))).unwrap();
    let got = verdict(&eve, &chan("team"), 5, LiveMention, 0, &Directory::default());
    assert_eq!(got, Verdict::Deny(DenyReason::UnrealOwner));
}

/// bob was a member over (10, 20], and is one again after 30.
fn rejoined() -> Fed {
    let mut fed = member_with(&["team"], 10, None);
    fed.member(&row("team", &life("bob"), 1, 10, Some(20)));
    fed.member(&row("team", &life("bob"), 2, 30, None));
    fed
}

#[test]
fn rdr_10_a_rejoin_keeps_the_old_interval_and_does_not_deliver_the_gap() {
    let fed = rejoined();
    let (gap, early) = (DenyReason::AfterLeave, DenyReason::BeforeJoin);
    for (seq, generation, want) in [
        (15, 1, Verdict::Release),
        (20, 1, Verdict::Release),
        (21, 1, Verdict::Deny(gap)),
        (30, 1, Verdict::Deny(gap)),
        (31, 1, Verdict::Release),
        (15, 2, Verdict::Deny(early)),
        (30, 2, Verdict::Deny(early)),
        (31, 2, Verdict::Release),
    ] {
        let got = judge(&fed, seq, DurableChannel, generation);
        assert_eq!(got, want, "seq {seq}, generation {generation}");
    }
}

#[test]
fn rdr_10_after_a_restart_the_old_interval_comes_from_history_or_stays_shut() {
    let bob = life("bob");
    let mut fed = Fed::default();
    fed.acl(&bob, &acl(&["team"]));
    let (opened, closed) = (fed.next(), fed.next());
    fed.member(&row("team", &bob, 2, 30, None));
    let unknown = Verdict::Deny(DenyReason::EarlierGeneration);
    assert_eq!(judge(&fed, 15, DurableChannel, 1), unknown);
    let key = cotal_wire::names::member_key(&chan("team"), &bob);
    let old = |leave| json(&row("team", &bob, 1, 10, leave));
    fed.dir.recover_member(&key, &old(None), opened);
    assert_eq!(
        judge(&fed, 15, DurableChannel, 1),
        unknown,
        "an open row does not say where it ended"
    );
    assert_eq!(fed.dir.recover_member(&key, &old(Some(20)), closed), Applied::Applied);
    assert_eq!(judge(&fed, 15, DurableChannel, 1), Verdict::Release);
    assert_eq!(judge(&fed, 21, DurableChannel, 1), Verdict::Deny(DenyReason::AfterLeave));
}

#[test]
fn a_row_made_anew_forgets_the_generations_before_its_removal() {
    let mut fed = rejoined();
    let key = cotal_wire::names::member_key(&chan("team"), &life("bob"));
    let revision = fed.next();
    fed.dir.apply_member(&key, None, revision);
    fed.member(&row("team", &life("bob"), 1, 40, None));
    let early = Verdict::Deny(DenyReason::BeforeJoin);
    assert_eq!(judge(&fed, 15, DurableChannel, 1), early);
    assert_eq!(judge(&fed, 41, DurableChannel, 1), Verdict::Release);
    assert_eq!(judge(&fed, 15, DurableChannel, 2), early, "of a generation that is no more");
}

proptest! {
    /// Over any number of leaves and rejoins, a copy is released exactly if the interval of its own
    /// generation, or the current one, holds the post.
    #[test]
    fn rdr_10_intervals_over_many_rejoins(
        steps in proptest::collection::vec((0_u64..5, 0_u64..5), 1..8),
        open in any::<bool>(),
        seq in 0_u64..80,
    ) {
        let mut fed = Fed::default();
        fed.acl(&life("bob"), &acl(&["team"]));
        let (mut at, mut intervals) = (0, Vec::new());
        for (n, (gap, span)) in steps.iter().enumerate() {
            let (join, generation) = (at + gap, n as u64 + 1);
            let last = n + 1 == steps.len();
            fed.member(&row("team", &life("bob"), generation, join, None));
            at = join + span;
            let leave = (!last || !open).then_some(at);
            if leave.is_some() {
                fed.member(&row("team", &life("bob"), generation, join, leave));
            }
            intervals.push(join + 1..=leave.unwrap_or(u64::MAX));
        }
        for (n, interval) in intervals.iter().enumerate() {
            let holds = interval.contains(&seq) || intervals[intervals.len() - 1].contains(&seq);
            let got = judge(&fed, seq, DurableChannel, n as u64 + 1);
            prop_assert_eq!(got == Verdict::Release, holds, "generation {}: {:?}", n + 1, got);
        }
    }

    /// Whatever INBOX holds, another lifecycle's rows and rights never release anything.
    #[test]
    fn fan_3_no_entry_is_released_on_another_lifecycles_rights(
        seq in 0_u64..50, generation in 0_u64..4, mention in any::<bool>(),
    ) {
        let mut fed = rejoined();
        fed.acl(&incarnation("bob", 'b'), &tombstone());
        let reason = if mention { LiveMention } else { DurableChannel };
        for member in [incarnation("bob", 'b'), life("carol")] {
            let got = verdict(&member, &chan("team"), seq, reason, generation, &fed.dir);
            prop_assert_ne!(got, Verdict::Release);
        }
    }
}

#[test]
fn rdr_10_what_a_leave_under_way_may_exclude_waits_until_its_row_is_applied() {
    let mut fed = Fed::default();
    let (bob, team) = (life("bob"), chan("team"));
    fed.acl(&bob, &acl(&["team"]));
    fed.member(&row("team", &bob, 1, 5, None));
    let ask = |fed: &Fed, seq, reason| verdict(&bob, &team, seq, reason, 1, &fed.dir);
    let durable = DurableChannel;
    fed.dir.begin_leave(&team, &bob);
    assert_eq!(ask(&fed, 6, durable), Verdict::Leaving, "its cursor is not read yet");
    assert_eq!(ask(&fed, 6, LiveMention), Verdict::Release);
    fed.dir.set_leave_cursor(&team, &bob, 6);
    assert_eq!(ask(&fed, 6, durable), Verdict::Release);
    assert_eq!(ask(&fed, 7, durable), Verdict::Leaving);
    let written = fed.next() + 1;
    fed.dir.end_leave(&team, &bob, Some(written));
    assert_eq!(ask(&fed, 7, durable), Verdict::Leaving, "its row is not applied yet");
    fed.member(&row("team", &bob, 1, 5, Some(6)));
    assert_eq!(ask(&fed, 7, durable), Verdict::Deny(DenyReason::AfterLeave));
    fed.member(&row("team", &bob, 2, 8, None));
    assert_eq!(ask(&fed, 9, durable), Verdict::Release, "the leave is over");
    fed.dir.begin_leave(&team, &bob);
    fed.dir.end_leave(&team, &bob, None);
    assert_eq!(ask(&fed, 9, durable), Verdict::Release, "it wrote nothing");
}
