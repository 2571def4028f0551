//! What the indexes answer after rows, garbage, deletions and outdated values.

use cotal_wire::names::member_key;
use cotal_wire::rows::DeliveryClass;
use proptest::prelude::*;

use super::*;
use crate::testing::{Fed, acl, chan, incarnation, json, life, named, row, tombstone, who};

const PUB_ACK: &[u8] = br#"{"stream":"CHAT_s","seq":7}"#;

#[test]
fn a_garbled_member_value_keeps_the_last_valid_row_and_its_place_for_the_write_back() {
    let mut fed = Fed::default();
    let bob = life("bob");
    let key = member_key(&chan("team"), &bob);
    fed.member(&row("team", &bob, 1, 5, None));
    let garbled = fed.dir.apply_member(&key, Some(PUB_ACK), 9);
    let Applied::Garbled(text) = garbled else {
        panic!("{garbled:?}");
    };
    assert!(text.contains("local.bob") && text.contains("team"), "{text}");
    assert!(!text.contains(bob.uid.as_str()), "a uid is a capability: {text}");
    assert!(fed.dir.membership(&chan("team"), &bob).is_some_and(|row| row.holds(6)));
    let held = fed.dir.last_valid_member(&key).unwrap();
    assert_eq!(held.garbled_revision, 9);
    assert_eq!(held.membership.map(|row| row.revision), Some(1));
    assert_eq!(fed.dir.garbled_members().collect::<Vec<_>>(), [key.as_str()]);
    let stale = fed.dir.apply_member(&key, None, 8);
    assert_eq!(stale, Applied::Ignored, "what is older than the garbage is old news");
    let repaired = json(&row("team", &bob, 1, 5, None));
    assert_eq!(fed.dir.apply_member(&key, Some(&repaired), 10), Applied::Applied);
    assert!(fed.dir.last_valid_member(&key).is_none());
    assert_eq!(fed.dir.garbled(), 1);
}

#[test]
fn a_row_garbled_before_the_start_is_recovered_from_history_in_any_order() {
    let (bob, team) = (life("bob"), chan("team"));
    let key = member_key(&team, &bob);
    let history = [
        (1, row("team", &bob, 1, 5, None)),
        (2, row("team", &bob, 1, 5, Some(9))),
        (3, row("team", &bob, 2, 20, None)),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        let mut dir = Directory::default();
        dir.apply_member(&key, Some(PUB_ACK), 4);
        assert!(dir.last_valid_member(&key).unwrap().membership.is_none());
        for at in order {
            let (revision, row) = &history[at];
            dir.recover_member(&key, &json(row), *revision);
        }
        assert_eq!(dir.membership(&team, &bob).map(|row| row.revision), Some(3));
        assert_eq!(dir.last_valid_member(&key).unwrap().garbled_revision, 4);
        assert_eq!(dir.past_holds(&team, &bob, 1, 9), Some(true), "{order:?}");
        assert_eq!(dir.past_holds(&team, &bob, 1, 10), Some(false), "{order:?}");
    }
}

#[test]
fn history_never_replaces_a_row_that_is_not_garbled() {
    let mut fed = Fed::default();
    let (bob, team) = (life("bob"), chan("team"));
    let key = member_key(&team, &bob);
    let open = json(&row("team", &bob, 1, 5, None));
    assert_eq!(fed.dir.recover_member(&key, &open, 1), Applied::Ignored);
    fed.next();
    fed.member(&row("team", &bob, 1, 5, Some(9)));
    assert_eq!(fed.dir.recover_member(&key, &open, 1), Applied::Ignored);
    assert!(!fed.dir.membership(&team, &bob).unwrap().is_open());
    let gone = fed.dir.apply_member(&key, None, 3);
    assert_eq!(gone, Applied::Removed);
    assert_eq!(fed.dir.recover_member(&key, &open, 1), Applied::Ignored, "gone stays gone");
}

#[test]
fn inv_5_a_tombstone_is_final_whatever_comes_after_it() {
    let mut fed = Fed::default();
    let bob = life("bob");
    let key = bob.dotted();
    fed.acl(&bob, &named("Bob", &["team.>"]));
    fed.acl(&bob, &tombstone());
    assert_eq!(fed.dir.live_lifecycle(&who("bob")), Resolved::None);
    assert!(matches!(fed.acl(&bob, &acl(&[">"])), Applied::Garbled(_)));
    assert_eq!(fed.dir.apply_acl(&key, None, 10), Applied::Ignored);
    assert!(matches!(fed.dir.apply_acl(&key, Some(PUB_ACK), 11), Applied::Garbled(_)));
    fed.dir.recover_acl(&key, &json(&acl(&[">"])), 4);
    assert_eq!(fed.dir.acl(&bob), Acl::Retired);
    assert_eq!(fed.dir.resolve_mention("bob", 0), None);
    assert_eq!(fed.dir.counts(), (0, 1));
}

#[test]
fn a_tombstone_in_the_history_of_a_garbled_key_counts() {
    let (bob, mut dir) = (life("bob"), Directory::default());
    dir.apply_acl(&bob.dotted(), Some(PUB_ACK), 3);
    assert_eq!(dir.acl(&bob), Acl::Absent);
    dir.recover_acl(&bob.dotted(), &json(&acl(&["team"])), 2);
    assert!(dir.acl(&bob).allows(&chan("team")));
    dir.recover_acl(&bob.dotted(), &json(&tombstone()), 1);
    assert_eq!(dir.acl(&bob), Acl::Retired);
}

#[test]
fn owners_that_nobody_mints_and_foreign_keys_are_not_let_in() {
    let mut dir = Directory::default();
    let uid = "a".repeat(26);
    let value = json(&acl(&[">"]));
    for key in [format!("evil.bob.{uid}"), format!("u_short.bob.{uid}"), "local.bob".into()] {
        assert_eq!(dir.apply_acl(&key, Some(&value), 1), Applied::Ignored, "{key}");
    }
    for key in ["team", "team/local.bob", "a/b/c", ""] {
        assert_eq!(dir.apply_member(key, Some(b"{}"), 1), Applied::Ignored, "{key}");
    }
    assert_eq!(dir.apply_channel("a b", Some(PUB_ACK), 1), Applied::Ignored);
    assert_eq!(dir.apply_channel("a b", Some(b"{}"), 1), Applied::Ignored);
    assert_eq!((dir.counts(), dir.garbled()), ((0, 0), 0));
}

#[test]
fn fan_7_the_class_follows_the_config_and_garbage_changes_nothing() {
    let mut fed = Fed::default();
    let team = chan("team");
    assert_eq!(fed.dir.class(&team), DeliveryClass::Durable);
    fed.class("=defaults", "live");
    assert_eq!(fed.dir.class(&team), DeliveryClass::Live);
    fed.class("team", "durable");
    assert_eq!(fed.dir.class(&team), DeliveryClass::Durable);
    assert!(matches!(fed.dir.apply_channel("team", Some(PUB_ACK), 9), Applied::Garbled(_)));
    assert_eq!(fed.dir.class(&team), DeliveryClass::Durable);
    assert_eq!(fed.dir.garbled_channels().collect::<Vec<_>>(), ["team"]);
    assert_eq!(fed.dir.apply_channel("team", None, 10), Applied::Removed);
    assert_eq!(fed.dir.class(&team), DeliveryClass::Live);
    assert!(fed.dir.channel_config(&team).is_none());
}

#[test]
fn a_mention_reaches_the_one_bearer_of_the_name() {
    let mut fed = Fed::default();
    let now = 100_000;
    assert_eq!(fed.dir.resolve_mention("bob", now), None);
    fed.acl(&life("bob"), &named("Bob", &[]));
    assert_eq!(fed.dir.resolve_mention("BOB", now), Some(life("bob")), "an offline peer too");
    fed.acl(&life("bobby"), &named("bOB", &[]));
    assert_eq!(fed.dir.resolve_mention("bob", now), None, "two principals bear it");
    fed.acl(&life("bobby"), &named("Bobby", &[]));
    assert_eq!(fed.dir.resolve_mention("bob", now), Some(life("bob")), "renamed away");
    fed.acl(&incarnation("bob", 'b'), &named("Bob", &[]));
    assert_eq!(fed.dir.resolve_mention("bob", now), None, "two live lifecycles of one principal");
    fed.acl(&life("bob"), &tombstone());
    assert_eq!(fed.dir.resolve_mention("bob", now), Some(incarnation("bob", 'b')));
}

#[test]
fn presence_names_only_whom_no_acl_row_names_and_only_while_fresh() {
    let mut fed = Fed::default();
    let now = 100_000;
    fed.acl(&life("carol"), &acl(&[]));
    fed.presence("carol", "Caz", now);
    assert_eq!(fed.dir.resolve_mention("caz", now + 5_999), Some(life("carol")));
    assert_eq!(fed.dir.resolve_mention("caz", now + 6_000), None, "expired without an event");
    assert_eq!(fed.dir.resolve_mention("caz", now - 6_000), None, "from the future");
    fed.presence("dave", "caz", now);
    assert_eq!(fed.dir.resolve_mention("caz", now), None, "two claim it");
    fed.presence("dave", "dave", now);
    assert_eq!(fed.dir.resolve_mention("caz", now), Some(life("carol")));
    fed.acl(&life("erin"), &named("Caz", &[]));
    assert_eq!(
        fed.dir.resolve_mention("caz", now),
        Some(life("erin")),
        "provisioned beats claimed"
    );
    fed.acl(&life("erin"), &tombstone());
    fed.presence("mallory", "carol", now);
    assert_eq!(fed.dir.resolve_mention("carol", now), None, "mallory has no live lifecycle");
    fed.dir.expire_presence(now + 6_000);
    assert_eq!(fed.dir.resolve_mention("caz", now), None, "forgotten");
}

#[test]
fn memberships_are_listed_from_both_sides() {
    let mut fed = Fed::default();
    for actor in ["bob", "carol"] {
        for channel in ["b", "a"] {
            fed.member(&row(channel, &life(actor), 1, 5, None));
        }
    }
    let key = member_key(&chan("b"), &life("bob"));
    assert_eq!(fed.dir.apply_member(&key, None, 99), Applied::Removed);
    let channels = |actor: &str| -> Vec<String> {
        let rows = fed.dir.memberships_of(&life(actor));
        rows.iter().map(|(channel, _)| channel.to_string()).collect()
    };
    assert_eq!(channels("bob"), ["a"]);
    assert_eq!(channels("carol"), ["a", "b"]);
    let members: Vec<_> = fed.dir.members_of(&chan("b")).map(|(member, _)| member).collect();
    assert_eq!(members, [&life("carol")]);
    assert_eq!(fed.dir.counts(), (3, 0));
}

/// One change of one of two member keys.
fn change() -> impl Strategy<Value = (bool, u8, u64, Option<u64>)> {
    (any::<bool>(), 0_u8..4, 0_u64..20, proptest::option::of(0_u64..30))
}

proptest! {
    /// Whatever a watch replays, and from wherever it starts again, the indexes match the bucket in
    /// the end.
    #[test]
    fn a_replayed_watch_changes_nothing(
        changes in proptest::collection::vec(change(), 1..40),
        restarts in proptest::collection::vec(0_usize..40, 0..4),
    ) {
        let (bob, carol, team) = (life("bob"), life("carol"), chan("team"));
        let value = |who: &Lifecycle, kind: u8, join, leave| match kind {
            0 => None,
            1 => Some(PUB_ACK.to_vec()),
            generation => Some(json(&row("team", who, u64::from(generation), join, leave))),
        };
        let log: Vec<_> = changes.iter().zip(1_u64..).map(|((first, kind, join, leave), revision)| {
            let who = if *first { &bob } else { &carol };
            (member_key(&team, who), value(who, *kind, *join, *leave), revision)
        }).collect();
        let mut once = Directory::default();
        for (key, value, revision) in &log {
            once.apply_member(key, value.as_deref(), *revision);
        }
        let mut again = Directory::default();
        let mut applied = 0;
        for stop in restarts.into_iter().map(|at| at.min(log.len())).chain([log.len()]) {
            let from = applied.min(stop);
            for (key, value, revision) in &log[from.saturating_sub(5)..stop] {
                // The directory does not remember deletions. A watch that starts again begins at
                // the latest value of each key, so values older than a deletion are never seen
                // again.
                let newer = log[..applied.max(from)].iter().rev().find(|(k, ..)| k == key);
                if newer.is_some_and(|(_, value, latest)| value.is_none() && latest > revision) {
                    continue;
                }
                again.apply_member(key, value.as_deref(), *revision);
            }
            applied = applied.max(stop);
        }
        for who in [&bob, &carol] {
            prop_assert_eq!(again.membership(&team, who), once.membership(&team, who));
            let key = member_key(&team, who);
            prop_assert_eq!(again.last_valid_member(&key), once.last_valid_member(&key));
        }
        prop_assert_eq!(again.counts(), once.counts());
    }
}
