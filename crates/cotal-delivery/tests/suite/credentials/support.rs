//! A daemon whose credential a test mints, and its connection as the broker shows it.

use std::sync::Arc;
use std::time::Duration;

use cotal_delivery::{Lane, LaneOptions};
use cotal_manager::clock::unix_seconds;
use cotal_manager::{Authority, daemon_credentials};
use cotal_nats::Connection;
use cotal_testkit::{Mesh, Supervisor, eventually, serving};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::control::{Code, Reloaded, Reply, op};
use cotal_wire::creds::Creds;
use cotal_wire::names::sys;
use cotal_wire::profile::Profile;
use cotal_workspace::{FileStore, MemoryStore, Secret, SecretKey, SecretKind, SecretStore as _};
use serde_json::{Value, json};

const RAIL: &str = "cotal.main.ctl.delivery-admin.*.*";

/// The store of one host, with a delivery key of its own.
pub(crate) struct Host<'a> {
    pub(crate) mesh: &'a Mesh,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) key: UserKey,
    observer: Connection,
}

/// The daemon's resident connection, as the broker lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) cid: u64,
    pub(crate) jwt: String,
}

impl<'a> Host<'a> {
    /// A host of the mesh without a delivery credential.
    pub(crate) async fn of(mesh: &'a Mesh) -> Self {
        let files = FileStore::new(mesh.root().clone());
        let store = Arc::new(MemoryStore::new("test"));
        for kind in daemon_credentials(&mesh.authority()).expect("spaces") {
            let key = SecretKey::new(mesh.space(), kind);
            let secret = files.get(&key).expect("the store").expect("a credential");
            if key.kind != SecretKind::Delivery {
                store.put(&key, &secret).expect("stored");
            }
        }
        let key = SecretKey::new(mesh.space(), SecretKind::MembershipObserver);
        let observer = store.get(&key).expect("the store").expect("the observer");
        let observer = mesh.connect(observer.expose()).await;
        Self { mesh, store, key: UserKey::generate(), observer }
    }

    /// A host with a credential issued `ago` seconds ago that lives for `left` more seconds.
    pub(crate) async fn with_life(mesh: &'a Mesh, ago: i64, left: i64) -> Self {
        let host = Self::of(mesh).await;
        host.put(&host.mint(ago, left));
        host
    }

    /// A daemon's credential for the host's key.
    pub(crate) fn mint(&self, ago: i64, left: i64) -> String {
        mint_by(&self.mesh.authority(), &self.key, ago, left)
    }

    pub(crate) fn put(&self, text: &str) {
        let key = SecretKey::new(self.mesh.space(), SecretKind::Delivery);
        self.store.put(&key, &Secret::new(text)).expect("stored");
    }

    pub(crate) fn remove(&self) {
        let key = SecretKey::new(self.mesh.space(), SecretKind::Delivery);
        self.store.delete(&key).expect("deleted");
    }

    pub(crate) fn options(&self) -> LaneOptions {
        LaneOptions { store: Arc::clone(&self.store) as _, ..self.mesh.lane_options() }
    }

    pub(crate) async fn lane(&self) -> Lane {
        serving(Lane::start(self.options())).await
    }

    /// The connections that the daemon opened with its delivery credential; closed ones if `state`
    /// is 1.
    pub(crate) async fn census(&self, state: u8) -> Vec<Value> {
        let account = self.mesh.authority().account().public_key();
        let body = json!({ "subscriptions": true, "auth": true, "state": state }).to_string();
        let reply = self.observer.request(sys::connz(&account), None, body.into(), None).await;
        let reply: Value = serde_json::from_slice(&reply.expect("a census").payload).expect("JSON");
        let list = reply["data"]["connections"].as_array().cloned().unwrap_or_default();
        list.into_iter().filter(|c| c["name"] == "cotal-delivery main").collect()
    }

    /// The connection that carries the rails, if there is one.
    pub(crate) async fn resident(&self) -> Option<Resident> {
        let found = self.census(0).await.into_iter().find(carries_the_rails)?;
        let jwt = found["jwt"].as_str().expect("a JWT").to_owned();
        Some(Resident { cid: found["cid"].as_u64().expect("a cid"), jwt })
    }

    /// Waits until the resident connection uses this credential.
    pub(crate) async fn runs_on(&self, text: &str) -> Resident {
        let jwt = jwt(text);
        let on_it = |seen: &Option<Resident>| seen.as_ref().is_some_and(|r| r.jwt == jwt);
        eventually("the daemon on that credential", || self.resident(), on_it)
            .await
            .expect("a connection")
    }
}

pub(crate) fn carries_the_rails(connection: &Value) -> bool {
    let subs = connection["subscriptions_list"].as_array();
    subs.is_some_and(|subs| subs.iter().any(|sub| sub == RAIL))
}

/// A daemon's credential for `key`, signed by any authority.
pub(crate) fn mint_by(authority: &Authority, key: &UserKey, ago: i64, left: i64) -> String {
    let now = unix_seconds();
    let profile = Profile::Delivery(key.principal().expect("a principal"));
    let minted = mint_profile(authority.account(), key, &profile, now - ago, Some(now + left));
    minted.expect("a credential").creds.expose().to_owned()
}

pub(crate) fn jwt(text: &str) -> String {
    Creds::parse(text).expect("creds").jwt
}

pub(crate) fn fingerprint(text: &str) -> String {
    Creds::parse(text).expect("creds").fingerprint()
}

/// Requests an adoption; `expected` is the text that the store must hold.
pub(crate) async fn reload(supervisor: &Supervisor, expected: Option<&str>) -> Reply {
    let args = match expected {
        Some(text) => json!({ "expected": { "delivery": fingerprint(text) } }),
        None => json!({}),
    };
    supervisor.request(op::RELOAD_CREDS, args).await.expect("an answer")
}

/// What was adopted.
pub(crate) fn adopted(reply: Reply) -> Reloaded {
    assert!(reply.ok, "refused: {reply:?}");
    serde_json::from_value(reply.data.expect("data")).expect("an adoption")
}

/// Why nothing was adopted.
pub(crate) fn refused(reply: Reply) -> (Option<Code>, String) {
    assert!(!reply.ok, "adopted: {reply:?}");
    (reply.code, reply.error.expect("a reason"))
}

/// The time of day of an RFC 3339 time in UTC.
pub(crate) fn time_of_day(text: &str) -> Duration {
    let clock = text.split_once('T').expect("a time").1.trim_end_matches('Z');
    let parts: Vec<f64> = clock.split(':').map(|part| part.parse().expect("a number")).collect();
    Duration::from_secs_f64(parts[0] * 3_600.0 + parts[1] * 60.0 + parts[2])
}
