//! What a credential of an agent must be refused, and can be tried without harm: subscriptions, and
//! calls that only read. Generated from the profiles: whatever any user of a space may hear or
//! read, in either topology, and the agent may not.

use std::collections::BTreeSet;

use crate::accounts::Topology;
use crate::channel::ChannelPattern;
use crate::creds::{Claims, CredsError};
use crate::ids::{ConnId, EndpointName, Lifecycle, LifecycleUid, Principal, Role};
use crate::names::Space;
use crate::permissions::Permissions;
use crate::profile::{AgentGrant, Profile};

/// Somebody whom nobody provisioned.
const STRANGER: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

/// Beyond what any profile may.
const BEYOND: [&str; 8] =
    [">", "*.>", "cotal.>", "$SYS.>", "$JS.>", "$JS.API.>", "$KV.>", "_INBOX.>"];

/// Calls that change nothing.
const READS: [&str; 4] =
    [".STREAM.INFO.", ".STREAM.MSG.GET.", ".CONSUMER.INFO.", ".API.DIRECT.GET."];

/// Something that the broker must refuse.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attempt {
    /// A call, made by publishing on this subject.
    Call(String),
    /// A subscription to this subject.
    Subscribe(String),
}

/// Everything that an agent's credential must be refused, in its space and in `other`.
///
/// # Errors
/// When `claims` are not an agent's.
pub fn harmless(claims: &Claims, other: &Space) -> Result<BTreeSet<Attempt>, CredsError> {
    let (own, space) = (claims.lifecycle()?, claims.space()?);
    let heard = format!("{}.chat.*.*.", space.prefix());
    let channels = claims.sub_allow.iter().filter_map(|subject| subject.strip_prefix(&heard));
    let grant = AgentGrant {
        lifecycle: own,
        read: channels.filter_map(|text| ChannelPattern::parse(text).ok()).collect(),
        post: Vec::new(),
        role: claims.role(),
    };
    let may =
        |topology| Profile::Agent(grant.clone()).permissions(&space, &claims.subject, topology);
    let own = [may(Topology::One), may(Topology::Three)];
    let mut attempts: BTreeSet<Attempt> =
        BEYOND.map(|subject| Attempt::Subscribe(subject.to_owned())).into();
    for space in [&space, other] {
        attempts.extend(of_any_profile(space).unwrap_or_default());
    }
    attempts.retain(|attempt| !own.iter().any(|may| is_allowed(may, attempt)));
    Ok(attempts)
}

/// What users of a space hear and read.
fn of_any_profile(space: &Space) -> Option<Vec<Attempt>> {
    let conn = ConnId::parse(STRANGER).ok()?;
    let stranger = Principal::new("local", "stranger").ok()?;
    let own = || stranger.clone();
    let agent = AgentGrant {
        lifecycle: Lifecycle::new(own(), LifecycleUid::from_random([0; 26])),
        read: vec![ChannelPattern::parse(">").ok()?],
        post: Vec::new(),
        role: Some(Role::parse("stranger").ok()?),
    };
    let profiles = [
        Profile::Agent(agent),
        Profile::Delivery(own()),
        Profile::MembershipRw,
        Profile::Supervisor(own()),
        Profile::Operator(own()),
        Profile::Provisioner,
        Profile::SharedProvisioner,
        Profile::Janitor,
        Profile::Workflow(EndpointName::parse("stranger").ok()?),
        Profile::Observer(own()),
        Profile::Admin(own()),
    ];
    let mut attempts = Vec::new();
    for profile in &profiles {
        for topology in [Topology::One, Topology::Three] {
            let may = profile.permissions(space, &conn, topology);
            attempts.extend(may.sub_allow.into_iter().map(Attempt::Subscribe));
            let calls = may.pub_allow.into_iter();
            let reads = calls.filter(|call| READS.iter().any(|read| call.contains(read)));
            attempts.extend(reads.map(|call| Attempt::Call(call.replace(['*', '>'], "x"))));
        }
    }
    Some(attempts)
}

fn is_allowed(may: &Permissions, attempt: &Attempt) -> bool {
    let any = |list: &[String], subject: &str| list.iter().any(|outer| covers(outer, subject));
    match attempt {
        Attempt::Call(subject) => any(&may.pub_allow, subject) && !any(&may.pub_deny, subject),
        Attempt::Subscribe(subject) => any(&may.sub_allow, subject),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent's claims, as its own profile grants them.
    fn claims() -> Claims {
        let space = Space::parse("main").unwrap();
        let grant = AgentGrant {
            lifecycle: Lifecycle::parse("local.alice.aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap(),
            read: vec![ChannelPattern::parse("team.>").unwrap()],
            post: Vec::new(),
            role: None,
        };
        let subject = ConnId::parse(STRANGER).unwrap();
        let may = Profile::Agent(grant).permissions(&space, &subject, Topology::Three);
        Claims {
            subject,
            name: "alice".into(),
            account: "A".into(),
            issuer: "A".into(),
            issued_at: 0,
            expires_at: None,
            tags: ["space:main", "principal:local.alice", "lifecycle:aaaaaaaaaaaaaaaaaaaaaaaaaa"]
                .map(str::to_owned)
                .into(),
            pub_allow: may.pub_allow,
            sub_allow: may.sub_allow,
        }
    }

    #[test]
    fn what_others_hear_and_read_is_tried_and_what_the_agent_may_is_not() {
        let attempts = harmless(&claims(), &Space::parse("other").unwrap()).unwrap();
        let hears = |subject: &str| attempts.contains(&Attempt::Subscribe(subject.to_owned()));
        let calls = |subject: &str| attempts.contains(&Attempt::Call(subject.to_owned()));
        assert!(hears(">") && hears("cotal.main.chat.>") && hears("cotal.other.chat.*.*.>"));
        assert!(hears("cotal.main.ctl.delivery.*.*") && hears("cotal.main.chat.*.*.>"));
        assert!(calls("$JS.API.STREAM.MSG.GET.DLV_main"));
        assert!(calls("$JS.API.STREAM.INFO.KV_cotal_acl_main"));
        assert!(!calls("$JS.API.STREAM.INFO.CHAT_main"), "it may");
        assert!(calls("$JS.API.STREAM.INFO.CHAT_other"));
        assert!(!hears("cotal.main.ctl.delivery.local.alice.reply.*"), "its own");
        assert!(attempts.len() > 60, "{}", attempts.len());
    }
}
