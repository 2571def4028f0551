//! The derived membership feed against a real broker (FED-1, FED-2, the second half of CRD-2).

mod one_census;
mod renewal;
mod support;

use std::time::Duration;

use cotal_manager::{Office, Shape, provision_space};
use cotal_testkit::{Mesh, Supervisor, eventually};
use cotal_wire::ChannelPattern;
use cotal_wire::control::Adoption;
use cotal_wire::names::Bucket;
use cotal_wire::profile::Profile;
use cotal_wire::rows::{DeliveryClass, FeedRow};
use cotal_workspace::{SecretKey, SecretKind, SecretStore as _};
use serde_json::{Value, json};

use crate::credentials::support::{Host, adopted, reload};
use support::Feed;

fn pattern(text: &str) -> ChannelPattern {
    ChannelPattern::parse(text).expect("a pattern")
}

#[tokio::test(flavor = "multi_thread")]
async fn fed_1_the_feed_shows_who_reads_what_and_forgets_who_departed() {
    let mesh = Mesh::start().await;
    mesh.set_class("ops", DeliveryClass::Durable).await;
    let _lane = mesh.lane().await;
    let feed = Feed::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>", "ops"], &["ops"]).await;
    let bob = mesh.peer("bob", &["ops"], &["ops"]).await;
    let silent = mesh.connect(&mesh.creds(Profile::Observer)).await;
    let space = mesh.space();
    let team = space.chat_channel(&pattern("team.>"));
    let _team = alice.connection.subscribe(team, None).await.expect("a subscription");
    let one = space.chat_channel(&pattern("team.backend"));
    let _one = alice.connection.subscribe(one, None).await.expect("a subscription");
    let _all = silent.subscribe(space.chat_all(), None).await.expect("a subscription");
    bob.join("ops").await;
    bob.connection.close(Duration::from_secs(2)).await;

    let reads_all = |row: &FeedRow| row.live == [pattern(">")] && row.durable.is_empty();
    feed.shows("the silent observer", |rows| rows.values().any(reads_all)).await;
    let rows = feed
        .shows("alice and bob", |rows| {
            let live = |who: &str| rows.get(who).map(|row| row.live.len());
            let durable = |who: &str| rows.get(who).map(|row| row.durable.len());
            live("local.alice") == Some(2)
                && (live("local.bob"), durable("local.bob")) == (Some(0), Some(1))
        })
        .await;
    assert_eq!(rows["local.alice"].live, [pattern("team.>"), pattern("team.backend")]);
    assert_eq!(rows["local.bob"].durable[0].as_str(), "ops");
    assert_eq!(rows.len(), 3, "the daemon and the test's own connections read nothing: {rows:?}");

    // Only changes are written, and the heartbeat shows that the feed works.
    let before = feed.revision("local.bob").await;
    let beat = feed.beat().await;
    let live = || async { feed.beat().await };
    eventually("two more heartbeats", live, |&now| now > beat + 5_000).await;
    assert_eq!(feed.revision("local.bob").await, before, "written without a change");

    alice.connection.close(Duration::from_secs(2)).await;
    silent.close(Duration::from_secs(2)).await;
    let only_bob = |rows: &support::Rows| rows.keys().eq(["local.bob"]);
    feed.shows("only the durable member", only_bob).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fed_1_what_somebody_else_writes_into_the_feed_is_written_over() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let feed = Feed::of(&mesh).await;
    let _alice = mesh.peer("alice", &["ops"], &["ops"]).await;
    feed.shows("alice", |rows| rows.contains_key("local.alice")).await;
    // In a space of one account an agent can make the broker write its answers there (`wire.md`
    // §8).
    let target = |key: &str| mesh.space().kv_subject(Bucket::Membership, key);
    let god = mesh.god().await;
    for key in ["local.alice", "local.nobody", "nonsense"] {
        let garbage = god.publish_confirmed(target(key), None, "garbage".into(), None);
        garbage.await.expect("garbage in the bucket");
    }
    feed.shows("alice alone", |rows| rows.keys().eq(["local.alice"])).await;
    eventually("no garbage", || feed.raw("nonsense"), Option::is_none).await;
    eventually("no garbage", || feed.raw("local.nobody"), Option::is_none).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fed_2_without_its_credential_the_feed_alone_is_down_and_the_adoption_reply_says_why() {
    let mesh = Mesh::start().await;
    mesh.set_class("ops", DeliveryClass::Durable).await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let key = SecretKey::new(mesh.space(), SecretKind::MembershipRw);
    let writer = host.store.get(&key).expect("the store").expect("the writer's credential");
    host.store.delete(&key).expect("deleted");
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let feed = Feed::of(&mesh).await;
    let is_down = |why: &'static str| {
        let manager = &manager;
        move || async move {
            let down = manager.status().await.down;
            down.iter().any(|d| d.component == "the membership feed" && d.reason.contains(why))
        }
    };
    eventually("the status says why", is_down("membership-rw"), |&down| down).await;
    let Adoption::Skipped(why) = adopted(reload(&manager, None).await).membership else {
        panic!("adopted");
    };
    assert!(why.contains("membership-rw"), "{why}");
    delivers(&mesh, "first").await;
    host.store.put(&key, &writer).expect("stored");
    feed.is_live().await;

    // Its bucket is gone.
    let god = mesh.god().await;
    let call = format!("$JS.API.STREAM.DELETE.{}", mesh.space().kv_stream(Bucket::Membership));
    god.js_call::<Value>(&call, &json!({}), None).await.expect("deleted");
    eventually("the status says why", is_down("bucket"), |&down| down).await;
    let Adoption::Skipped(why) = adopted(reload(&manager, None).await).membership else {
        panic!("adopted");
    };
    assert!(why.contains("bucket"), "{why}");
    delivers(&mesh, "second").await;
    let (_, provisioner) =
        mesh.authority().connect(Office::Provisioner, &mesh.address()).await.expect("provisioner");
    provision_space(&provisioner, mesh.space(), Shape::Durable).await.expect("provisioned");
    feed.is_live().await;
    let reloaded = adopted(reload(&manager, None).await);
    assert!(matches!(reloaded.membership, Adoption::BrokerAccepted(_)), "{reloaded:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fed_2_without_a_census_the_heartbeat_stays_away_and_delivery_goes_on() {
    let mesh = Mesh::start().await;
    mesh.set_class("ops", DeliveryClass::Durable).await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let feed = Feed::of(&mesh).await;
    feed.is_live().await;
    let key = SecretKey::new(mesh.space(), SecretKind::MembershipObserver);
    let observer = host.store.get(&key).expect("the store").expect("the observer");
    host.store.delete(&key).expect("deleted");
    let why = || async {
        match adopted(reload(&manager, None).await).membership {
            Adoption::Skipped(why) => why,
            Adoption::BrokerAccepted(_) => String::new(),
        }
    };
    eventually("the reason", why, |why| why.contains("membership-observer")).await;
    let beat = feed.beat().await;
    delivers(&mesh, "meanwhile").await;
    assert_eq!(feed.beat().await, beat, "a heartbeat without a census");
    host.store.put(&key, &observer).expect("stored");
    feed.is_live().await;
}

/// A post reaches a durable member.
async fn delivers(mesh: &Mesh, id: &str) {
    let (from, to) = (format!("from_{id}"), format!("to_{id}"));
    let alice = mesh.peer(&from, &["ops"], &["ops"]).await;
    let bob = mesh.peer(&to, &["ops"], &["ops"]).await;
    bob.join("ops").await;
    alice.post("ops", id, &[]).await;
    assert_eq!(bob.receive(1).await, [id]);
}
