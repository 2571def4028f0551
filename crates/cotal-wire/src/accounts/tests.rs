use crate::ids::{ConnId, EndpointName, Lifecycle, LifecycleUid, Principal, Role};
use crate::profile::{AgentGrant, Profile};
use crate::{ChannelPattern, Space};

use super::*;

fn space() -> Space {
    Space::parse("main").unwrap()
}

fn conn() -> ConnId {
    ConnId::parse("UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4").unwrap()
}

fn own() -> Principal {
    Principal::new("local", "alice").unwrap()
}

/// Whoever lives in the account of the agents.
fn inhabitants() -> Vec<Profile> {
    let uid = LifecycleUid::from_random([1; 26]);
    let grant = AgentGrant {
        lifecycle: Lifecycle::new(own(), uid),
        read: vec![ChannelPattern::parse("team.>").unwrap()],
        post: vec![ChannelPattern::parse("team.>").unwrap()],
        role: Some(Role::parse("reviewer").unwrap()),
    };
    let endpoint = EndpointName::parse("endpoint").unwrap();
    vec![Profile::Agent(grant), Profile::Observer(own()), Profile::Workflow(endpoint)]
}

/// Whether every subject of `inner` is one of `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    let (mut outer, mut inner) = (outer.split('.'), inner.split('.'));
    loop {
        match (outer.next(), inner.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

#[test]
fn whatever_the_agents_account_may_publish_crosses_exactly_once() {
    let grants = space().grants();
    let requests: Vec<_> = grants
        .iter()
        .filter(|grant| grant.to == Account::Agents && grant.crossing != Crossing::Messages)
        .collect();
    for profile in inhabitants() {
        let may = profile.permissions(&space(), &conn(), Topology::Three);
        for subject in &may.pub_allow {
            // A permission that ends in `>` may be wider than the call, whose name is one token.
            let call = subject.replace(".>", ".x");
            let by = requests
                .iter()
                .filter(|grant| covers(grant.local(), subject) || covers(grant.local(), &call))
                .count();
            assert_eq!(by, 1, "{} publishes {subject}", profile.name());
        }
    }
}

#[test]
fn no_crossing_hands_out_what_destroys_or_robs_without_a_permission_for_it() {
    let agent = &inhabitants()[0];
    let may = agent.permissions(&space(), &conn(), Topology::Three);
    for grant in space().grants().iter().filter(|grant| grant.to == Account::Agents) {
        for call in ["STREAM.DELETE", "STREAM.PURGE", "STREAM.UPDATE", "STREAM.CREATE", "PAUSE"] {
            assert!(!grant.subject.contains(call), "{}", grant.subject);
        }
        let makes = grant.subject.contains("CONSUMER.CREATE");
        assert!(!makes || grant.from == Account::Shared, "{}", grant.subject);
    }
    for robbed in [
        "$JS.API.CONSUMER.MSG.NEXT.CHAT_main.fanout",
        "$JS.API.CONSUMER.DELETE.CHAT_main.fanout",
        "$JS.ACK.CHAT_main.fanout.1.1.1.1.1",
    ] {
        assert!(!may.pub_allow.iter().any(|allowed| covers(allowed, robbed)), "{robbed}");
    }
}

#[test]
fn inboxes_cross_and_no_subject_of_a_space_does_by_the_way() {
    let heard: Vec<_> = space()
        .grants()
        .into_iter()
        .filter(|grant| grant.to == Account::Agents && grant.crossing == Crossing::Messages)
        .collect();
    let all = [
        space().chat_all(),
        space().inst_all(),
        space().svc_all(),
        format!("{}.x", space().mirror_deliveries()),
        space().ctl(DELIVERY, &own()),
    ];
    for subject in all.map(|subject| subject.replace('>', "a.b.c")) {
        assert!(!heard.iter().any(|grant| covers(&grant.subject, &subject)), "{subject}");
    }
    for inbox in ["_INBOX_U.a", "_INBOX_U.a.b"] {
        assert!(heard.iter().any(|grant| covers(&grant.subject, inbox)), "{inbox}");
    }
}

#[test]
fn what_the_durable_account_reads_of_the_shared_one_crosses_under_the_prefix_it_is_told() {
    let tag = space().api_tag();
    let (stream, prefix) = parse_api_tag(&tag).unwrap();
    assert_eq!((stream, prefix), ("KV_cotal_presence_main", "cotal.main.shared.API"));
    let grants = space().grants();
    let offered: Vec<_> = grants
        .iter()
        .filter(|grant| grant.to == Account::Durable)
        .map(|grant| grant.local().to_owned())
        .collect();
    for profile in [Profile::Delivery(own()), Profile::Supervisor(own()), Profile::Operator(own())]
    {
        let may = profile.permissions(&space(), &conn(), Topology::Three).pub_allow;
        let below: Vec<_> = may.iter().filter(|s| s.starts_with(prefix)).collect();
        assert_eq!(below.len(), offered.len(), "{}", profile.name());
        assert!(below.iter().all(|subject| offered.contains(subject)), "{below:?}");
        assert!(!may.iter().any(|s| s.starts_with("$JS") && s.contains("presence")), "{may:?}");
    }
}

#[test]
fn only_the_daemon_answers_what_crossed_and_only_where_something_can() {
    let answers = |profile: &Profile, topology| {
        let may = profile.permissions(&space(), &conn(), topology).pub_allow;
        may.iter().any(|subject| subject.starts_with("_R_"))
    };
    let daemon = Profile::Delivery(own());
    assert!(answers(&daemon, Topology::Three) && !answers(&daemon, Topology::One));
    let mut others = inhabitants();
    others.extend([
        Profile::Supervisor(own()),
        Profile::Operator(own()),
        Profile::Provisioner,
        Profile::SharedProvisioner,
        Profile::MembershipRw,
        Profile::Admin(own()),
    ]);
    assert!(!others.iter().any(|profile| answers(profile, Topology::Three)));
}
