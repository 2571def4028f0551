//! An agent with more memberships than one reply can list is retired all the same.

use std::collections::BTreeSet;

use cotal_manager::Done;
use cotal_testkit::{God, Peer, Supervisor};
use cotal_wire::control::{Code, Inventory};
use cotal_wire::{Channel, Lifecycle};
use cotal_workspace::Segment;
use serde_json::{Value, json};

use super::crashes::mortal;
use super::{TEAM, agents, name, start};

/// 300 memberships of channels with names of nearly the maximum length: 1.2 MB of names.
async fn join_much(bob: &Peer) -> BTreeSet<Channel> {
    let long = |n: usize| format!("{:x<4090}", format!("team.{n:03}"));
    let channels: Vec<_> = (0..300).map(long).collect();
    for some in channels.chunks(50) {
        let joined = some.iter().map(|channel| bob.join(channel));
        for joined in futures_util::future::join_all(joined).await {
            assert!(joined.durable, "{joined:?}");
        }
    }
    channels.iter().map(|channel| Channel::parse(channel).expect("a channel")).collect()
}

fn asked(bob: &Lifecycle, after: Option<&str>) -> Value {
    let mut args = json!({ "principal": bob.principal, "lifecycleUid": bob.uid });
    if let Some(after) = after {
        args["after"] = after.into();
    }
    args
}

/// The number of `channels` on which it has a member row.
async fn rows(god: &God, bob: &Lifecycle, channels: &BTreeSet<Channel>) -> usize {
    let looks = channels.iter().map(|channel| god.member(channel.as_str(), bob));
    futures_util::future::join_all(looks).await.into_iter().flatten().count()
}

/// The first run dies between two pages, the second when it has all of them and has not recorded
/// them: a record of that size could never be read back.
#[tokio::test(flavor = "multi_thread")]
async fn inv_5_inv_6_an_agent_with_more_rows_than_a_reply_takes_is_retired() {
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let joined = join_much(&bob).await;
    let record = mesh.root().agents_dir(&Segment::from(mesh.space())).join("local.bob.retiring");

    let (proxy, dying) = mortal(&mesh, "\"after\":\"team.").await;
    let who = name("bob");
    tokio::select! {
        ended = dying.retire(&who) => panic!("no second page was asked for: {ended:?}"),
        () = proxy.deafened() => {}
    }
    drop((dying, proxy));
    let agents = agents(&mesh).await;
    let mut retirement = agents.begin_retirement(&who).await.expect("a retirement");
    assert_eq!(retirement.done(), Done::Narrowed, "half an inventory is none");
    while retirement.done() != Done::Evicted {
        retirement.step().await.expect("a step");
    }
    drop(retirement);
    assert_eq!(rows(&god, &bob.lifecycle, &joined).await, joined.len());
    let size = std::fs::metadata(&record).expect("the record").len();
    assert!(size < 1_000_000, "{size} bytes are recorded");

    let retired = agents.retire(&who).await.expect("it goes on");
    assert!(retired.channels.into_iter().eq(joined.iter().cloned()), "other channels");
    assert!(god.acl(&bob.lifecycle).await.retired, "no tombstone");
    assert_eq!(rows(&god, &bob.lifecycle, &joined).await, 0);
    assert!(!record.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_4_every_page_is_read_behind_the_fence_and_who_asks_for_none_gets_what_it_got() {
    let (mesh, _lane, _alice, _god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    carol.join(TEAM).await;
    let joined = join_much(&bob).await;
    let manager = Supervisor::of(&mesh).await;
    let ask = async |member: &Lifecycle, after: Option<&str>| {
        let reply = manager.request("lifecycleMemberships", asked(member, after)).await;
        reply.expect("an answer")
    };
    assert_eq!(ask(&carol.lifecycle, None).await.data, Some(json!({ "channels": [TEAM] })));
    assert_eq!(ask(&carol.lifecycle, Some("")).await.data, Some(json!({ "channels": [TEAM] })));

    let (mut seen, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = ask(&bob.lifecycle, Some(&after)).await.data.expect("a page");
        let page: Inventory = serde_json::from_value(page).expect("a page");
        seen.extend(page.channels);
        pages += 1;
        // The first page has fenced the lifecycle, so no row is added behind the pages already
        // read.
        let late = bob.control("delivery", "durableJoin", json!({ "channel": "team.0" })).await;
        assert_eq!(late.expect("an answer").code, Some(Code::Retired));
        let Some(next) = page.next else { break };
        after = next.to_string();
    }
    assert!(pages > 1, "{pages} pages");
    assert!(seen.into_iter().eq(joined), "other channels");
    assert_eq!(ask(&bob.lifecycle, None).await.code, Some(Code::TooLarge));
}
