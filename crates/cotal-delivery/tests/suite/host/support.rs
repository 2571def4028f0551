//! Hosts for tests, each with its own store and its own keys.

use std::sync::Arc;
use std::time::Duration;

use cotal_delivery::{Host, HostOptions, LaneState, LaneStatus};
use cotal_manager::{Authority, ensure_daemon_credentials};
use cotal_nats::{Creds, CredsSource};
use cotal_testkit::{Mesh, MeshOptions, eventually};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::Space;
use cotal_wire::names::{DELIVERY, sys};
use cotal_wire::profile::Profile;
use cotal_workspace::{
    FileStore, MemoryStore, Secret, SecretKey, SecretKind, SecretStore, StoreError, StoreIdentity,
};
use serde_json::{Value, json};

pub(crate) fn space(name: &str) -> Space {
    Space::parse(name).expect("a space")
}

/// A mesh of these spaces; the testkit's helpers use the first one.
pub(crate) async fn mesh(spaces: &[&str]) -> Mesh {
    let spaces = spaces.iter().map(|&name| name.to_owned()).collect();
    Mesh::with(MeshOptions { spaces, ..MeshOptions::default() }).await
}

pub(crate) fn authority(mesh: &Mesh, name: &str) -> Authority {
    Authority::open(mesh.root(), &space(name)).expect("trust material")
}

/// The store of one host, provisioned for `spaces` with its own keys.
pub(crate) fn store(mesh: &Mesh, spaces: &[&str]) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new("a host of a test"));
    for name in spaces {
        ensure_daemon_credentials(&authority(mesh, name), &*store).expect("credentials");
    }
    store
}

/// A host with short retry intervals.
pub(crate) fn host(mesh: &Mesh, store: Arc<dyn SecretStore>, spaces: &[&str]) -> Host {
    Host::start(HostOptions::new(mesh.url()), store, spaces.iter().map(|name| space(name)))
}

pub(crate) fn lane(host: &Host, name: &str) -> Option<LaneStatus> {
    host.lanes().into_iter().find(|lane| lane.space.as_str() == name)
}

/// Waits until a lane is in `state`.
pub(crate) async fn until(host: &Host, name: &str, state: LaneState) -> LaneStatus {
    let look = || async { lane(host, name) };
    let is_there = |lane: &Option<LaneStatus>| lane.as_ref().is_some_and(|l| l.state == state);
    let seen = eventually(&format!("{name} {state}"), look, is_there).await;
    seen.expect("a lane")
}

/// A caller of a space that may probe its daemon.
pub(crate) struct Caller {
    pub(crate) peer: cotal_testkit::Peer,
}

impl Caller {
    pub(crate) async fn of(mesh: &Mesh, name: &str) -> Self {
        let key = UserKey::generate();
        let own = key.principal().expect("a principal");
        let now = cotal_manager::clock::unix_seconds();
        let profile = Profile::Operator(own.clone());
        let authority = authority(mesh, name);
        let minted = mint_profile(authority.account(), &key, &profile, now, Some(now + 600));
        let creds = minted.expect("a credential").creds;
        let source = CredsSource::new(Creds::parse(creds.expose()).expect("a credential"));
        let options = cotal_nats::ConnectOptions::new(mesh.url(), "test", source);
        let connection = cotal_nats::Connection::connect(options).await.expect("a connection");
        let uid = cotal_wire::LifecycleUid::from_random([0; 26]);
        let lifecycle = cotal_wire::Lifecycle::new(own, uid);
        Self { peer: cotal_testkit::Peer { connection, space: space(name), lifecycle } }
    }

    /// The answer of the space's responder.
    pub(crate) async fn probe(&self) -> Option<String> {
        let subject = self.peer.space.live(DELIVERY, self.peer.principal());
        let reply = self.peer.ask(subject, "{}".into(), Duration::from_secs(5)).await.ok()?;
        let reply: Value = serde_json::from_slice(&reply).expect("JSON");
        reply["state"].as_str().map(str::to_owned)
    }
}

/// The open connections of a space's account, as the broker lists them: name, JWT, subscriptions.
pub(crate) async fn connections(mesh: &Mesh, name: &str) -> Vec<(String, String, Vec<String>)> {
    let files = FileStore::new(mesh.root().clone());
    let key = SecretKey::new(&space(name), SecretKind::MembershipObserver);
    let secret = files.get(&key).expect("the store").expect("the observer");
    let observer = mesh.connect(secret.expose()).await;
    let account = authority(mesh, name).account().public_key();
    let body = json!({ "subscriptions": true, "auth": true }).to_string();
    let reply = observer.request(sys::connz(&account), None, body.into(), None).await;
    let reply: Value = serde_json::from_slice(&reply.expect("a census").payload).expect("JSON");
    let list = reply["data"]["connections"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
    let one = |c: &Value| (text(&c["name"]), text(&c["jwt"]), texts(&c["subscriptions_list"]));
    list.iter().map(one).collect()
}

/// A stored delivery credential.
pub(crate) fn delivery(store: &dyn SecretStore, name: &str) -> Creds {
    let secret = store.get(&SecretKey::new(&space(name), SecretKind::Delivery));
    let secret = secret.expect("the store").expect("a credential");
    Creds::parse(secret.expose()).expect("a credential")
}

/// A store that does not answer for one space until the test lets it.
pub(crate) struct StuckStore {
    pub(crate) inner: Arc<MemoryStore>,
    pub(crate) stuck: Space,
    pub(crate) open: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl SecretStore for StuckStore {
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, StoreError> {
        if key.space == self.stuck {
            let _ = self.open.lock().expect("a lock").recv();
        }
        self.inner.get(key)
    }

    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), StoreError> {
        self.inner.put(key, secret)
    }

    fn delete(&self, key: &SecretKey) -> Result<bool, StoreError> {
        self.inner.delete(key)
    }

    fn identity(&self) -> StoreIdentity {
        self.inner.identity()
    }
}
