//! Two hosts for one space, each with its own store and keys (STB-1, 2, 4).

use std::time::Duration;

use cotal_delivery::{Host, HostOptions, LaneState};
use cotal_manager::ensure_daemon_credentials;
use cotal_testkit::{God, Mesh, eventually};
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{MemoryStore, Secret, SecretKey, SecretKind, SecretStore};
use std::sync::Arc;
use tokio::time::Instant;

use super::support::{Caller, authority, connections, delivery, host, mesh, space, store, until};

async fn lease(god: &God) -> Option<(LeaseRow, u64)> {
    let entry = god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the lease bucket")?;
    let row = LeaseRow::parse(entry.live()?).ok()?;
    Some((row, entry.revision))
}

#[tokio::test(flavor = "multi_thread")]
async fn stb_1_the_other_host_reports_the_held_lease_opens_no_lane_and_takes_a_released_row() {
    let mesh = mesh(&["main"]).await;
    let (east, west) = (store(&mesh, &["main"]), store(&mesh, &["main"]));
    let (one, other) = (delivery(&*east, "main"), delivery(&*west, "main"));
    assert_ne!(one.nkey(), other.nkey(), "CRD-7: each host has its own key");
    let first = host(&mesh, east.clone(), &["main"]);
    until(&first, "main", LaneState::Serving).await;
    let god = God::of(&mesh).await;
    let (held, _) = lease(&god).await.unwrap();

    let second = host(&mesh, west.clone(), &["main"]);
    let waits = until(&second, "main", LaneState::Standby).await;
    assert_eq!(waits.reason, Some(format!("{} holds the lease", held.holder)));
    // The broker lists one connection of the waiting host, which binds nothing of the space.
    let own = other.jwt();
    let look = || async {
        let open = connections(&mesh, "main").await;
        open.into_iter().filter(|(_, jwt, _)| jwt == own).collect::<Vec<_>>()
    };
    let open = eventually(
        "the waiting connection",
        look,
        |open| matches!(&open[..], [(name, ..)] if name == "cotal-delivery main standby"),
    );
    let bound: Vec<_> =
        open.await[0].2.iter().filter(|s| !s.starts_with("_INBOX_")).cloned().collect();
    assert!(bound.is_empty(), "the waiting host bound {bound:?}");
    assert_eq!(lease(&god).await.unwrap().0, held, "the row was touched");

    let released = Instant::now();
    first.close().await;
    until(&second, "main", LaneState::Serving).await;
    let took = released.elapsed();
    assert!(took < Duration::from_secs(4), "it waited for the next question: {took:?}");
    assert_eq!(Caller::of(&mesh, "main").await.probe().await.as_deref(), Some("bound"));
    second.close().await;
}

/// The lease row is not read at an interval here, so only the watch can show the expiry.
#[tokio::test(flavor = "multi_thread")]
async fn stb_2_the_row_of_a_dead_holder_expires_the_standby_serves_and_who_comes_back_waits() {
    let mesh = mesh(&["main"]).await;
    let (east, west) = (store(&mesh, &["main"]), store(&mesh, &["main"]));
    let god = God::of(&mesh).await;
    god.shorten_lease(4).await;
    let first = host(&mesh, east.clone(), &["main"]);
    until(&first, "main", LaneState::Serving).await;
    let second = host(&mesh, west, &["main"]);
    until(&second, "main", LaneState::Standby).await;
    let died = Instant::now();
    drop(first);
    until(&second, "main", LaneState::Serving).await;
    assert!(died.elapsed() > Duration::from_secs(2), "the row of the dead holder did not hold");
    let (taken, _) = lease(&god).await.unwrap();

    let back = host(&mesh, east, &["main"]);
    let waits = until(&back, "main", LaneState::Standby).await;
    assert_eq!(waits.reason, Some(format!("{} holds the lease", taken.holder)));
    let (still, _) = lease(&god).await.unwrap();
    assert_eq!((still.holder, still.incarnation), (taken.holder, taken.incarnation));
    back.close().await;
    // Closing a waiting host leaves the holder's row unchanged.
    let (still, _) = lease(&god).await.unwrap();
    assert_eq!(still.since, taken.since);
    second.close().await;
}

/// A store spoiled by `spoil` must make the lane refused before any dial: the broker's port is
/// closed, so a lane that dialled would be closed, not refused.
async fn refuses(mesh: &Mesh, spoil: impl Fn(&MemoryStore), because: &str) {
    let store = store(mesh, &["main"]);
    spoil(&store);
    let options = HostOptions::new("nats://127.0.0.1:1");
    let host = Host::start(options, store, [space("main")]);
    let refused = until(&host, "main", LaneState::Refused).await;
    let reason = refused.reason.unwrap();
    assert!(reason.contains(because), "{because:?} is not in {reason:?}");
    host.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stb_4_a_host_that_is_not_provisioned_for_the_space_refuses_and_never_touches_the_lease() {
    let mesh = mesh(&["main", "beta"]).await;
    let key = |kind| SecretKey::new(&space("main"), kind);
    let delivery = key(SecretKind::Delivery);
    refuses(&mesh, |s| drop(s.delete(&delivery)), "no main/delivery credential").await;
    refuses(&mesh, |s| s.put(&delivery, &Secret::new("x")).unwrap(), "cannot be parsed").await;
    let observer = key(SecretKind::MembershipObserver);
    refuses(&mesh, |s| drop(s.delete(&observer)), "no main/membership-observer").await;

    // Another space's credential, and another space's observer.
    let beta = store(&mesh, &["beta"]);
    let of_beta = |kind| beta.get(&SecretKey::new(&space("beta"), kind)).unwrap().unwrap();
    let (foreign, other) = (of_beta(SecretKind::Delivery), of_beta(SecretKind::MembershipObserver));
    refuses(&mesh, |s| s.put(&delivery, &foreign).unwrap(), "is for space beta").await;
    refuses(&mesh, |s| s.put(&observer, &other).unwrap(), "observes another account").await;

    // The same space name of another operator: only the broker can tell, and it rejects the
    // credential.
    let elsewhere = super::support::mesh(&["main"]).await;
    let foreign = Arc::new(MemoryStore::new("foreign"));
    ensure_daemon_credentials(&authority(&elsewhere, "main"), &*foreign).unwrap();
    let god = God::of(&mesh).await;
    let stranger = host(&mesh, foreign, &["main"]);
    let refused = until(&stranger, "main", LaneState::Refused).await;
    assert!(refused.reason.unwrap().contains("rejects the credential"));
    assert_eq!(lease(&god).await, None, "the lease was touched");
    stranger.close().await;
}
