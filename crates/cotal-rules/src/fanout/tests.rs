//! Plans by table.

use super::*;
use crate::testing::{Fed, acl, chan, life, named, row, since, tombstone, who};

const NOW: i64 = 100_000;

fn routed(fed: &Fed, sender: &str, seq: u64, mentions: &[&str]) -> Vec<(String, u64)> {
    let (sender, channel) = (who(sender), chan("team"));
    let mentions: Vec<String> = mentions.iter().map(|&name| name.to_owned()).collect();
    let post = Post { seq, sender: &sender, channel: &channel, mentions: &mentions };
    let copies = plan(post, &fed.dir, NOW).copies;
    let short = |copy: Copy| (copy.member.principal.actor().to_owned(), copy.generation);
    let mut copies: Vec<_> = copies.into_iter().map(short).collect();
    copies.sort();
    copies
}

fn expect(copies: &[(&str, u64)]) -> Vec<(String, u64)> {
    copies.iter().map(|&(who, generation)| (who.to_owned(), generation)).collect()
}

#[test]
fn fan_1_every_member_whose_interval_holds_the_post_gets_a_copy() {
    let mut fed = Fed::default();
    fed.member(&row("team", &life("open"), 1, 10, None));
    fed.member(&row("team", &life("left"), 2, 5, Some(12)));
    fed.member(&row("team", &life("late"), 1, 20, None));
    fed.member(&row("elsewhere", &life("other"), 1, 0, None));
    let mut pending = row("team", &life("pending"), 3, 0, None);
    pending.activated = false;
    fed.member(&pending);
    for (seq, want) in [
        (5, &[("pending", 3)][..]),
        (6, &[("left", 2), ("pending", 3)]),
        (11, &[("left", 2), ("open", 1), ("pending", 3)]),
        (12, &[("left", 2), ("open", 1), ("pending", 3)]),
        (13, &[("open", 1), ("pending", 3)]),
        (21, &[("late", 1), ("open", 1), ("pending", 3)]),
    ] {
        assert_eq!(routed(&fed, "alice", seq, &["other"]), expect(want), "seq {seq}");
    }
}

#[test]
fn fan_2_a_mention_on_a_live_channel_reaches_whom_the_acl_lets_read_it() {
    let mut fed = Fed::default();
    fed.class("team", "live");
    fed.acl(&life("bob"), &named("Bob", &["team"]));
    fed.acl(&life("carol"), &named("Carol", &["other"]));
    fed.acl(&life("dave"), &tombstone());
    fed.acl(&life("twin"), &named("Twin", &["team"]));
    fed.acl(&life("double"), &named("twin", &["team"]));
    fed.member(&row("team", &life("erin"), 1, 0, None));
    assert_eq!(routed(&fed, "alice", 5, &["BOB"]), expect(&[("bob", 0)]));
    let all = ["bob", "BOB", "carol", "dave", "twin", "nobody", "bob"];
    assert_eq!(routed(&fed, "alice", 5, &all), expect(&[("bob", 0)]));
    assert!(routed(&fed, "alice", 5, &[]).is_empty(), "members of a live channel get no copy");
    fed.acl(&life("bob"), &named("Bob", &[]));
    assert!(routed(&fed, "alice", 5, &all).is_empty());
}

#[test]
fn fan_2_a_mention_from_before_the_lifecycle_is_its_predecessors() {
    let mut fed = Fed::default();
    fed.class("=defaults", "live");
    fed.acl(&life("bob"), &since(7, named("bob", &["team"])));
    assert!(routed(&fed, "alice", 7, &["bob"]).is_empty());
    assert_eq!(routed(&fed, "alice", 8, &["bob"]), expect(&[("bob", 0)]));
}

#[test]
fn fan_6_a_member_never_gets_its_own_post() {
    let mut fed = Fed::default();
    fed.member(&row("team", &life("alice"), 1, 0, None));
    fed.member(&row("team", &life("bob"), 1, 0, None));
    fed.acl(&life("alice"), &named("alice", &["team"]));
    assert_eq!(routed(&fed, "alice", 5, &[]), expect(&[("bob", 1)]));
    fed.class("team", "live");
    assert!(routed(&fed, "alice", 5, &["alice"]).is_empty());
}

#[test]
fn fan_7_the_class_is_the_one_that_stands_when_the_post_is_routed() {
    let mut fed = Fed::default();
    fed.member(&row("team", &life("bob"), 1, 0, None));
    assert_eq!(routed(&fed, "alice", 5, &[]).len(), 1);
    fed.class("=defaults", "live");
    assert!(routed(&fed, "alice", 6, &[]).is_empty());
    fed.class("team", "durable");
    assert_eq!(routed(&fed, "alice", 7, &[]).len(), 1);
}

#[test]
fn fan_2_a_mention_on_a_durable_channel_gives_no_copy() {
    let mut fed = Fed::default();
    fed.acl(&life("bob"), &named("Bob", &["team"]));
    assert!(routed(&fed, "alice", 5, &["bob"]).is_empty());
}

#[test]
fn a_sender_that_nobody_mints_is_dropped() {
    let mut fed = Fed::default();
    fed.member(&row("team", &life("bob"), 1, 0, None));
    fed.acl(&life("bob"), &acl(&["team"]));
    let (sender, channel) = (Principal::parse("evil.alice").unwrap(), chan("team"));
    let post = Post { seq: 5, sender: &sender, channel: &channel, mentions: &[] };
    assert!(plan(post, &fed.dir, NOW).copies.is_empty());
}
