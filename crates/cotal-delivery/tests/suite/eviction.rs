//! Verified eviction with the account's observer, against a real broker.

use cotal_testkit::Mesh;
use cotal_wire::control::{Eviction, PrincipalLiveness};
use cotal_wire::profile::Profile;
use cotal_wire::{Lifecycle, LifecycleUid};
use serde_json::json;

/// The manager's side, as a plain protocol client on the admin rail.
async fn supervisor(mesh: &Mesh) -> cotal_testkit::Peer {
    let creds = mesh.creds(Profile::Supervisor);
    let claims = cotal_wire::creds::Creds::parse(&creds).expect("a credential").claims;
    let principal = claims.principal().expect("a principal");
    let connection = mesh.connect(&creds).await;
    let lifecycle = Lifecycle::new(principal, LifecycleUid::from_random([0; 26]));
    cotal_testkit::Peer { connection, space: mesh.space().clone(), lifecycle }
}

fn forget_evictor(mesh: &Mesh) {
    let store = cotal_workspace::FileStore::new(mesh.root().clone());
    let kind = cotal_workspace::SecretKind::ConnectionEvictor;
    let key = cotal_workspace::SecretKey::new(mesh.space(), kind);
    cotal_workspace::SecretStore::delete(&store, &key).expect("deleted");
}

async fn liveness(supervisor: &cotal_testkit::Peer, principal: &str) -> PrincipalLiveness {
    let args = json!({ "principal": principal });
    let reply = supervisor.control("delivery-admin", "principalLiveness", args).await;
    serde_json::from_value(reply.expect("an answer").data.expect("data")).expect("a liveness")
}

async fn evict(supervisor: &cotal_testkit::Peer, principal: &str) -> Eviction {
    let args = json!({ "principal": principal });
    let reply = supervisor.control("delivery-admin", "evictPrincipal", args).await;
    let reply = reply.expect("an answer");
    serde_json::from_value(reply.data.unwrap_or_else(|| panic!("refused: {:?}", reply.error)))
        .expect("an eviction")
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_6_liveness_is_live_then_gone_by_the_observers_own_census() {
    let mesh = Mesh::start().await;
    // Reading needs no kick credential, so none is opened.
    forget_evictor(&mesh);
    let _lane = mesh.lane().await;
    let manager = supervisor(&mesh).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;
    let live = liveness(&manager, "local.bob").await;
    assert_eq!((live.state, live.scan_complete), (cotal_wire::control::LiveState::Live, true));
    bob.connection.close(std::time::Duration::from_secs(5)).await;
    let gone = liveness(&manager, "local.bob").await;
    assert_eq!((gone.state, gone.scan_complete), (cotal_wire::control::LiveState::Gone, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_3_a_kick_is_never_success_a_scan_that_sees_nothing_is() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let manager = supervisor(&mesh).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;

    // The client reconnects within milliseconds: kicked, but not gone.
    let cid = bob.connection.client_id();
    let undone = evict(&manager, "local.bob").await;
    assert_eq!((undone.kicked, undone.verified_gone, undone.scan_complete), (1, false, true));
    assert!(undone.remaining >= 1);
    bob.connection.round_trip().await.expect("a connection");
    assert_ne!(bob.connection.client_id(), cid, "it is another connection than the one kicked");

    bob.connection.close(std::time::Duration::from_secs(5)).await;
    let gone = evict(&manager, "local.bob").await;
    assert_eq!((gone.kicked, gone.remaining, gone.verified_gone), (0, 0, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_2_without_an_evictor_eviction_is_refused_and_the_rest_serves() {
    let mesh = Mesh::start().await;
    forget_evictor(&mesh);
    let _lane = mesh.lane().await;
    let manager = supervisor(&mesh).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;
    let args = json!({ "principal": "local.bob" });
    let refused = manager.control("delivery-admin", "evictPrincipal", args).await;
    let refused = refused.expect("an answer");
    assert!(!refused.ok && refused.error.is_some_and(|why| why.contains("connection-evictor")));
    let live = liveness(&manager, "local.bob").await;
    assert_eq!((live.state, live.scan_complete), (cotal_wire::control::LiveState::Live, true));
    assert!(bob.join("a").await.durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_4_a_connection_id_that_a_caller_supplies_selects_nothing() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let manager = supervisor(&mesh).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;
    let carol = mesh.peer("carol", &["a"], &[]).await;
    let cid = carol.connection.client_id();
    // Bob is connected and reconnects, so the daemon keeps scanning for as long as a kick takes to
    // show.
    let args = json!({ "principal": "local.bob", "cid": cid, "cids": [cid] });
    let reply = manager.control("delivery-admin", "evictPrincipal", args).await;
    let data = reply.expect("an answer").data.expect("an eviction");
    let eviction: Eviction = serde_json::from_value(data).expect("an eviction");
    assert_eq!((eviction.kicked, eviction.verified_gone), (1, false));
    carol.connection.round_trip().await.expect("a connection");
    assert_eq!(carol.connection.client_id(), cid, "carol was not touched");
    drop(bob);
}
