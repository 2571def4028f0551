use super::*;

fn full(name: &str, oldest: u64) -> FullSubject {
    FullSubject {
        sender: Principal::parse(&format!("local.{name}")).unwrap(),
        channel: Channel::parse("team").unwrap(),
        oldest,
    }
}

fn counts(misses: &[Miss]) -> Vec<(Option<&str>, u64, u64)> {
    misses
        .iter()
        .map(|it| (it.of.as_ref().map(|(who, _)| who.actor()), it.at_least, it.at_most))
        .collect()
}

#[test]
fn what_never_came_is_lost_once_the_consumer_has_passed_it() {
    let mut arrivals = Arrivals::start(0, 0);
    for seq in [1, 2, 6, 9, 4] {
        arrivals.arrived(seq);
    }
    assert_eq!(arrivals.lost(2), Lost::default());
    assert_eq!(arrivals.lost(7).certain, [3..=3, 5..=5, 7..=7]);
    assert_eq!(arrivals.lost(7), Lost::default(), "each is told once");
    arrivals.arrived(8);
    assert_eq!(arrivals.lost(u64::MAX), Lost::default());
}

#[test]
fn what_was_lost_while_no_daemon_ran_is_certain_and_what_a_predecessor_held_is_not() {
    let mut arrivals = Arrivals::start(10, 14);
    arrivals.arrived(12);
    arrivals.arrived(20);
    let lost = arrivals.lost(20);
    assert_eq!((lost.doubtful, lost.certain), (vec![11..=11, 13..=14], vec![15..=19]));
}

#[test]
fn one_full_subject_explains_everything_exactly() {
    let lost = Lost { certain: vec![5..=9, 20..=20], doubtful: Vec::new() };
    let misses = attribute(&lost, &[full("alice", 30)]);
    assert_eq!(counts(&misses), [(Some("alice"), 6, 6)]);
    assert_eq!((misses[0].first, misses[0].last), (5, 20));
    assert!(attribute(&Lost::default(), &[full("alice", 30)]).is_empty());
}

#[test]
fn two_full_subjects_have_bounds_where_both_may_have_held_a_post() {
    let lost = Lost { certain: vec![1..=10, 21..=25], doubtful: vec![11..=12] };
    let misses = attribute(&lost, &[full("alice", 15), full("bob", 40)]);
    assert_eq!(counts(&misses), [(Some("alice"), 0, 12), (Some("bob"), 5, 17)]);
}

#[test]
fn what_no_full_subject_explains_is_told_without_a_sender() {
    let lost = Lost { certain: vec![1..=3, 50..=51], doubtful: vec![60..=61] };
    let misses = attribute(&lost, &[full("alice", 40)]);
    assert_eq!(counts(&misses), [(Some("alice"), 3, 3), (None, 2, 2)]);
    let by_hand = Lost { certain: vec![1..=3], doubtful: vec![4..=9] };
    assert_eq!(counts(&attribute(&by_hand, &[])), [(None, 3, 3)]);
}

#[test]
fn an_episode_is_told_once_until_a_minute_without_a_miss() {
    let lost = Lost { certain: vec![1..=3], doubtful: Vec::new() };
    let misses = attribute(&lost, &[full("alice", 40)]);
    let mut episodes = Episodes::default();
    let begins: Vec<_> =
        [0, 59_000, 118_000, 178_000, 178_001].map(|now| episodes.begins(&misses[0], now)).into();
    assert_eq!(begins, [true, false, false, true, false]);
}
