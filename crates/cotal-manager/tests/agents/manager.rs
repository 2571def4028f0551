//! The renewal owner: what it signs, whose it is, and what becomes of it (CRD-2, CRD-7).

use std::sync::Arc;

use cotal_manager::rows::bucket;
use cotal_manager::{DAEMON_CREDENTIALS, Manager, ManagerError, Renewal, RenewalOutcome, Renewals};
use cotal_nats::Entry;
use cotal_testkit::{God, Mesh, eventually};
use cotal_wire::Principal;
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, RENEWAL_KEY, manager_key};
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{FileStore, MemoryStore, SecretKey, SecretKind, SecretStore};

use super::support::{Running, options};

fn held(mesh: &Mesh, kind: SecretKind) -> Creds {
    let store = FileStore::new(mesh.root().clone());
    let secret = store.get(&SecretKey::new(mesh.space(), kind)).unwrap().unwrap();
    Creds::parse(secret.expose()).unwrap()
}

async fn offered(mesh: &Mesh, kind: &SecretKind) -> Option<Renewal> {
    Renewals::load(mesh.root(), mesh.space()).unwrap().of(kind).cloned()
}

/// 40 s of life, of which 21 are over: past half, and before the daemon's own look at 75 %.
#[tokio::test(flavor = "multi_thread")]
async fn crd_2_the_manager_signs_at_half_of_the_life_and_the_daemon_adopts_it_at_once() {
    let mesh = Mesh::start().await;
    mesh.set_delivery_life(21, 19);
    let before = held(&mesh, SecretKind::Delivery);
    let _lane = mesh.lane().await;
    let running = Running::start(options(&mesh)).await;
    let adopted = || offered(&mesh, &SecretKind::Delivery);
    let is_adopted = |seen: &Option<Renewal>| {
        seen.as_ref().is_some_and(|renewal| renewal.outcome == RenewalOutcome::Adopted)
    };
    let adopted = eventually("the adoption", adopted, is_adopted).await.unwrap();
    let after = held(&mesh, SecretKind::Delivery);
    assert_eq!(adopted.fingerprint, after.fingerprint());
    assert_ne!(after.jwt, before.jwt);
    assert_eq!(after.claims.subject, before.claims.subject, "the nkey is kept (CRD-7)");
    let membership = offered(&mesh, &SecretKind::MembershipRw).await.unwrap();
    let own = held(&mesh, SecretKind::MembershipRw);
    assert_eq!(membership.fingerprint, own.fingerprint());
    running.stop().await;
}

/// The manager owns ACL and channel rows, so garbage over them does not wait for the next `up`.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_manager_puts_garbled_rows_back() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let kv = bucket(&god.connection, mesh.space(), Bucket::Channels);
    let valid = br#"{"deliveryClass":"durable"}"#.to_vec();
    kv.put("team.backend", valid.clone().into()).await.unwrap();
    let garbled = kv.put("team.backend", b"{\"stream\":1".to_vec().into()).await.unwrap();
    let _lane = mesh.lane().await;
    let running = Running::start(options(&mesh)).await;
    let look = || async { kv.get("team.backend").await.unwrap() };
    let back = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.revision > garbled);
    let row = eventually("the row to be put back", look, back).await.unwrap();
    assert_eq!(row.value, valid);
    running.stop().await;
}

/// More garbage than the history holds: the manager has seen what stood before.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_manager_puts_back_what_the_history_lost() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let kv = bucket(&god.connection, mesh.space(), Bucket::Channels);
    let valid = br#"{"deliveryClass":"durable"}"#.to_vec();
    kv.put("team.backend", valid.clone().into()).await.unwrap();
    let _lane = mesh.lane().await;
    let running = Running::start(options(&mesh)).await;
    let look = || async { kv.get("team.backend").await.unwrap() };
    // The first garbage tells that it watches; the rest is more than the history holds.
    for burst in [1, 9] {
        let mut garbled = 0;
        for _ in 0..burst {
            garbled = kv.put("team.backend", b"{\"stream\":1".to_vec().into()).await.unwrap();
        }
        let back = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.revision > garbled);
        let row = eventually("the row to be put back", look, back).await.unwrap();
        assert_eq!(row.value, valid);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_of_another_store_never_renews() {
    let mesh = Mesh::start().await;
    let files = FileStore::new(mesh.root().clone());
    let elsewhere = Arc::new(MemoryStore::new("vault/other"));
    for kind in DAEMON_CREDENTIALS {
        let key = SecretKey::new(mesh.space(), kind);
        elsewhere.put(&key, &files.get(&key).unwrap().unwrap()).unwrap();
    }
    mesh.set_delivery_life(21, 19);
    let before = held(&mesh, SecretKind::Delivery);
    let mut lane = mesh.lane_options();
    lane.store = elsewhere;
    let _lane = mesh.serve(lane).await;
    let refused = Manager::start(options(&mesh)).await.unwrap_err();
    assert!(matches!(refused, ManagerError::OtherStore { .. }), "{refused}");
    assert!(refused.to_string().contains("vault/other"), "{refused}");
    assert_eq!(held(&mesh, SecretKind::Delivery).jwt, before.jwt);
}

/// Another owner's row stands: nothing is renewed. It goes: this manager takes over.
#[tokio::test(flavor = "multi_thread")]
async fn one_manager_renews_a_space_by_the_renewal_lease() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    mesh.set_delivery_life(300, 280);
    let before = held(&mesh, SecretKind::Delivery);
    let _lane = mesh.lane().await;
    let kv = bucket(&god.connection, mesh.space(), Bucket::Manager);
    let row = LeaseRow {
        holder: Principal::parse("local.other").unwrap(),
        incarnation: "another host".into(),
        since: 0,
        ready: true,
    };
    let row = serde_json::to_vec(&row).unwrap();
    kv.put(RENEWAL_KEY, row.clone().into()).await.unwrap();
    let manager = Manager::start(options(&mesh)).await.unwrap();
    let own = manager_key(manager.instance());
    let renewing = manager.renewing();
    let stop = tokio_util::sync::CancellationToken::new();
    let task = tokio::spawn(manager.run(stop.clone()));
    // Its own row is written before each look at the lease: the second one follows a look.
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 2 {
        let look = || async { kv.get(&own).await.unwrap().map(|entry| entry.revision) };
        let known = seen.clone();
        let new = |revision: &Option<u64>| revision.is_some_and(|r| !known.contains(&r));
        seen.insert(eventually("a row of the manager", look, new).await.unwrap());
        kv.put(RENEWAL_KEY, row.clone().into()).await.unwrap();
    }
    assert!(!*renewing.borrow());
    assert_eq!(held(&mesh, SecretKind::Delivery).jwt, before.jwt, "renewed beside the owner");

    kv.delete(RENEWAL_KEY, None).await.unwrap();
    let now = || async { held(&mesh, SecretKind::Delivery).jwt };
    eventually("the renewal", now, |jwt| *jwt != before.jwt).await;
    assert!(*renewing.borrow());
    stop.cancel();
    task.await.unwrap().unwrap();
    let left = kv.get(RENEWAL_KEY).await.unwrap();
    assert!(left.is_none_or(|entry| entry.live().is_none()), "the lease is released");
}

/// The row of a manager that was killed stands for ten seconds; its successor is the same identity,
/// and has proved it gone.
#[tokio::test(flavor = "multi_thread")]
async fn adm_7_a_restarted_manager_takes_up_the_lease_that_its_predecessor_left() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let _lane = mesh.lane().await;
    let kv = bucket(&god.connection, mesh.space(), Bucket::Manager);
    let first = Manager::start(options(&mesh)).await.unwrap();
    let row = LeaseRow {
        holder: first.principal().clone(),
        incarnation: "killed".into(),
        since: 0,
        ready: true,
    };
    drop(first);
    let row = serde_json::to_vec(&row).unwrap();
    let left = kv.put(RENEWAL_KEY, row.into()).await.unwrap();
    let running = Running::start(options(&mesh)).await;
    // It was written over by revision, so it had not run out.
    let stream = mesh.space().kv_stream(Bucket::Manager);
    let subject = mesh.space().kv_subject(Bucket::Manager, RENEWAL_KEY);
    let over = || async {
        let stored = god.stored(&stream, &subject).await;
        let headers = stored.first().and_then(|row| row.headers.clone());
        headers.and_then(|h| h.get("Nats-Expected-Last-Subject-Sequence").map(ToString::to_string))
    };
    let left = left.to_string();
    eventually("the lease is taken up", over, |seen| seen.as_ref() == Some(&left)).await;
    running.stop().await;
}
