//! Who kicks on a host of several spaces (EVC-5).

use std::sync::{Arc, Mutex};

use cotal_delivery::{Host, HostOptions, KickAuthority, LaneState};
use cotal_manager::KickSigner;
use cotal_nats::Connection;
use cotal_testkit::{Mesh, Supervisor};
use cotal_wire::Space;
use cotal_wire::control::{Eviction, Reply, op};
use cotal_workspace::{Secret, SecretKey, SecretKind, SecretStore as _};
use serde_json::json;

use super::support::{mesh, space, store, until};

const CLOSE_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

/// Signs as the product does, and records each request.
struct Noted {
    signer: KickSigner,
    /// Closed before the host takes its own census: the lane saw it, the host does not.
    leaving: Mutex<Option<Connection>>,
    signed: Mutex<Vec<String>>,
}

impl Noted {
    fn of(mesh: &Mesh) -> Arc<Self> {
        let signer = KickSigner::of(mesh.root()).unwrap().expect("the root retained the seed");
        Arc::new(Self { signer, leaving: Mutex::default(), signed: Mutex::default() })
    }

    fn signed(&self) -> Vec<String> {
        self.signed.lock().unwrap().clone()
    }
}

impl KickAuthority for Noted {
    fn observer(&self, space: &Space, accounts: &[String]) -> Result<Secret, String> {
        self.signed.lock().unwrap().push("observer".to_owned());
        if let Some(leaving) = self.leaving.lock().unwrap().take() {
            tokio::runtime::Handle::current().block_on(leaving.close(CLOSE_WITHIN));
        }
        self.signer.observer(space, accounts).map_err(|error| error.to_string())
    }

    fn kick_only(&self, space: &Space, server: &str) -> Result<Secret, String> {
        self.signed.lock().unwrap().push("kick".to_owned());
        self.signer.kick_only(space, server).map_err(|error| error.to_string())
    }
}

async fn serving(mesh: &Mesh, authority: Option<Arc<dyn KickAuthority>>) -> Host {
    let store = store(mesh, &["main", "beta"]);
    for name in ["main", "beta"] {
        let evictor = SecretKey::new(&space(name), SecretKind::ConnectionEvictor);
        assert_eq!(store.get(&evictor).unwrap(), None, "a space was given a kick credential");
    }
    let mut options = HostOptions::new(mesh.url());
    options.kick_authority = authority;
    let host = Host::start(options, store, [space("main"), space("beta")]);
    until(&host, "main", LaneState::Serving).await;
    host
}

async fn evict(mesh: &Mesh, principal: &str) -> Reply {
    let supervisor = Supervisor::of(mesh).await;
    let args = json!({ "principal": principal });
    supervisor.request(op::EVICT_PRINCIPAL, args).await.expect("an answer")
}

fn eviction(reply: Reply) -> Eviction {
    let data = reply.data.unwrap_or_else(|| panic!("refused: {:?}", reply.error));
    serde_json::from_value(data).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_5_the_host_kicks_what_its_own_census_lists_with_a_user_signed_for_each_kick() {
    let mesh = mesh(&["main", "beta"]).await;
    let authority = Noted::of(&mesh);
    let host = serving(&mesh, Some(authority.clone())).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;
    let carol = mesh.peer("carol", &["a"], &[]).await;
    let (cid, other) = (bob.connection.client_id(), carol.connection.client_id());
    let done = eviction(evict(&mesh, "local.bob").await);
    assert_eq!((done.kicked, done.scan_complete), (1, true));
    bob.connection.round_trip().await.expect("it redials");
    assert_ne!(bob.connection.client_id(), cid, "it is the connection that was to be kicked");
    assert_eq!(carol.connection.client_id(), other, "another one was kicked");
    assert_eq!(authority.signed(), ["observer", "kick"], "one user for the one kick");

    bob.connection.close(CLOSE_WITHIN).await;
    let gone = eviction(evict(&mesh, "local.bob").await);
    assert_eq!((gone.kicked, gone.verified_gone), (0, true));
    assert_eq!(authority.signed().len(), 2, "nothing is signed where nothing is to be kicked");
    host.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_5_what_the_hosts_own_census_does_not_list_is_not_kicked() {
    let mesh = mesh(&["main", "beta"]).await;
    let authority = Noted::of(&mesh);
    let host = serving(&mesh, Some(authority.clone())).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;
    *authority.leaving.lock().unwrap() = Some(bob.connection.clone());
    let gone = eviction(evict(&mesh, "local.bob").await);
    assert_eq!((gone.kicked, gone.verified_gone), (0, true));
    assert_eq!(authority.signed(), ["observer"], "a kick was signed for what was not listed");
    host.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_5_without_the_seed_nobody_is_kicked_and_who_is_gone_is_still_proven_gone() {
    let mesh = mesh(&["main", "beta"]).await;
    let host = serving(&mesh, None).await;
    let bob = mesh.peer("bob", &["a"], &[]).await;
    let cid = bob.connection.client_id();
    let reply = evict(&mesh, "local.bob").await;
    assert!(!reply.ok && reply.error.unwrap().contains("this daemon may not kick them"));
    assert_eq!(bob.connection.client_id(), cid, "it was kicked");
    bob.connection.close(CLOSE_WITHIN).await;
    let gone = eviction(evict(&mesh, "local.bob").await);
    assert_eq!((gone.kicked, gone.verified_gone), (0, true));
    host.close().await;
}
