//! What a lane refuses before it dials (CRD-1, EVC-1), and how it adopts a renewed credential.

mod adoption;
mod race;
pub(crate) mod support;

use cotal_delivery::{CredentialError, Lane, LaneError};
use cotal_manager::mint_connection_evictor_creds;
use cotal_testkit::{God, Mesh, MeshOptions, Supervisor};
use cotal_trust::{UserKey, UserSpec, mint_user};
use cotal_wire::control::Code;
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::permissions::Permissions;
use cotal_workspace::{FileStore, Secret, SecretKey, SecretKind, SecretStore as _};
use serde_json::json;

async fn two_spaces() -> (Mesh, FileStore) {
    let options =
        MeshOptions { spaces: vec!["main".into(), "other".into()], ..MeshOptions::default() };
    let mesh = Mesh::with(options).await;
    let store = FileStore::new(mesh.root().clone());
    (mesh, store)
}

fn key(space: &str, kind: SecretKind) -> SecretKey {
    SecretKey::new(&cotal_wire::Space::parse(space).expect("a space"), kind)
}

fn text(store: &FileStore, space: &str, kind: SecretKind) -> String {
    let secret = store.get(&key(space, kind)).expect("the store").expect("a credential");
    secret.expose().to_owned()
}

/// Why a lane of `main` ends when no broker listens: the error was found without a dial.
async fn refused(mesh: &Mesh) -> CredentialError {
    let mut options = mesh.lane_options();
    options.server = "nats://127.0.0.1:1".into();
    match Lane::start(options).ended().await {
        Err(LaneError::Credential(error)) => error,
        other => panic!("not refused for its credential: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_1_a_missing_malformed_or_foreign_credential_is_refused_before_any_dial() {
    let (mesh, store) = two_spaces().await;
    let own = key("main", SecretKind::Delivery);
    let good = text(&store, "main", SecretKind::Delivery);
    let jwt_of_other =
        Creds::parse(&text(&store, "other", SecretKind::Delivery)).expect("creds").jwt;
    let seed = Creds::parse(&good).expect("creds").seed;
    let put = |text: String| store.put(&own, &Secret::new(text)).expect("stored");

    put(text(&store, "other", SecretKind::Delivery));
    assert!(matches!(refused(&mesh).await, CredentialError::Foreign { .. }));
    // Another space's complete set of credentials is consistent, and foreign all the same.
    let observer = SecretKind::MembershipObserver;
    let foreign = Secret::new(text(&store, "other", observer.clone()));
    store.put(&key("main", observer), &foreign).expect("stored");
    let why = refused(&mesh).await;
    assert!(why.to_string().contains("it is for space other"), "{why}");
    put("nonsense".into());
    assert!(matches!(refused(&mesh).await, CredentialError::Malformed { .. }));
    put(Creds::render(&jwt_of_other, &seed));
    refused(&mesh).await;
    store.delete(&own).expect("deleted");
    assert!(matches!(refused(&mesh).await, CredentialError::Missing(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_1_a_missing_or_foreign_observer_is_refused_before_any_dial() {
    let (mesh, store) = two_spaces().await;
    let own = key("main", SecretKind::MembershipObserver);
    let foreign = text(&store, "other", SecretKind::MembershipObserver);
    store.put(&own, &Secret::new(foreign)).expect("stored");
    assert!(matches!(refused(&mesh).await, CredentialError::Foreign { .. }));
    store.put(&own, &Secret::new("nonsense")).expect("stored");
    assert!(matches!(refused(&mesh).await, CredentialError::Malformed { .. }));
    store.delete(&own).expect("deleted");
    assert!(matches!(refused(&mesh).await, CredentialError::Missing(_)));
    let god = God::of(&mesh).await;
    assert!(god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the bucket").is_none());
}

/// Any other credential gets no lease, and no credential of a mesh allows everything.
#[tokio::test(flavor = "multi_thread")]
async fn crd_1_the_daemon_runs_on_a_scoped_credential_and_on_no_other() {
    let (mesh, store) = two_spaces().await;
    let own = key("main", SecretKind::Delivery);
    let good = text(&store, "main", SecretKind::Delivery);
    let claims = Creds::parse(&good).expect("creds").claims;
    assert!(!claims.pub_allow.is_empty());
    for subject in &claims.pub_allow {
        let reach = subject.split('.').next().expect("a token");
        assert!(!reach.contains(['*', '>']) && !subject.starts_with("$SYS"), "{subject}");
    }
    let expires = claims.expires_at.expect("a lifetime");
    assert!(expires - cotal_manager::clock::unix_seconds() <= 24 * 3_600, "outlives its renewals");

    let agent = mesh.add_agent("bob", &["team.>"], &["team.>"], None).await;
    store.put(&own, &Secret::new(agent)).expect("stored");
    let ended = ended(&mesh).await.expect_err("an agent's credential is no daemon's");
    assert!(!matches!(ended, LaneError::Defect(_)), "{ended}");
    let god = God::of(&mesh).await;
    assert!(god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the bucket").is_none());
}

async fn ended(mesh: &Mesh) -> Result<(), LaneError> {
    Lane::start(mesh.lane_options()).ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn evc_1_a_torn_rotation_is_refused_before_any_dial() {
    let (mesh, store) = two_spaces().await;
    // The evictor of another rotation, as after a crash between the two writes.
    let other = UserKey::generate();
    let other = mint_connection_evictor_creds(&mesh.authority(), &other, "another");
    let evictor = key("main", SecretKind::ConnectionEvictor);
    store.put(&evictor, &other.expect("a credential")).expect("stored");
    assert!(matches!(refused(&mesh).await, CredentialError::Torn(_)));
    // Minting repairs it: the pair is rotated together.
    cotal_manager::ensure_daemon_credentials(&mesh.authority(), &store).expect("credentials");
    drop(mesh.lane().await);
}

/// The pair is torn while the daemon serves: then scans and kicks prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn evc_1_a_rotation_that_is_torn_after_the_start_is_refused_when_it_is_used() {
    let (mesh, store) = two_spaces().await;
    let _lane = mesh.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let args = json!({ "principal": "local.nobody" });
    let whole = manager.request("evictPrincipal", args.clone()).await.expect("a reply");
    assert!(whole.ok, "{whole:?}");
    let other = UserKey::generate();
    let other = mint_connection_evictor_creds(&mesh.authority(), &other, "another");
    let evictor = key("main", SecretKind::ConnectionEvictor);
    store.put(&evictor, &other.expect("a credential")).expect("stored");
    let torn = manager.request("evictPrincipal", args).await.expect("a reply");
    assert_eq!(torn.code, Some(Code::Unavailable), "{torn:?}");
    assert!(torn.error.unwrap_or_default().contains("different rotations"));
}

/// A user of the account that may do everything, with the daemon's tags.
#[tokio::test(flavor = "multi_thread")]
async fn crd_1_a_credential_that_is_not_scoped_is_refused_before_any_dial() {
    let mesh = Mesh::start().await;
    let store = FileStore::new(mesh.root().clone());
    let own = key("main", SecretKind::Delivery);
    let good = Creds::parse(&text(&store, "main", SecretKind::Delivery)).expect("creds");
    let user = UserKey::from_seed(&Secret::new(good.seed)).expect("a seed");
    let wide = |publish: &[&str]| Permissions {
        pub_allow: publish.iter().map(|&subject| subject.to_owned()).collect(),
        sub_allow: good.claims.sub_allow.clone(),
        ..Permissions::default()
    };
    for permissions in [wide(&[]), wide(&[">"]), wide(&["cotal.main.live.>", "$JS.>"])] {
        let now = cotal_manager::clock::unix_seconds();
        let spec = UserSpec {
            name: "delivery",
            key: &user,
            tags: good.claims.tags.clone(),
            permissions,
            issued_at: now,
            expires_at: Some(now + 600),
        };
        let minted = mint_user(mesh.authority().account().keys(), &spec).expect("minted");
        store.put(&own, &minted.creds).expect("stored");
        let why = refused(&mesh).await.to_string();
        assert!(why.contains("it is not scoped"), "{why}");
    }
}

/// A lane is given its broker and its store, and looks nowhere else.
#[test]
fn lif_13_a_lane_with_an_injected_store_consults_no_registry() {
    let mut open = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut read = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).expect("sources").map(|e| e.expect("one").path()));
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        for word in ["MeshRegistry", "meshes.json", "XDG_CONFIG_HOME", "MeshFile"] {
            assert!(!text.contains(word), "{} knows {word}", path.display());
        }
        read += 1;
    }
    assert!(read > 10, "the sources were not found");
}

/// A store that answers only when the test lets it, on the same thread as the lane.
#[derive(Debug)]
struct SlowStore {
    inner: FileStore,
    asked: tokio::sync::watch::Sender<bool>,
    answer: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl cotal_workspace::SecretStore for SlowStore {
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, cotal_workspace::StoreError> {
        if !self.asked.send_replace(true) {
            let answer = self.answer.lock().expect("the lock");
            let within = std::time::Duration::from_secs(20);
            answer
                .recv_timeout(within)
                .map_err(|_| cotal_workspace::StoreError::new("read", key, "nobody let it"))?;
        }
        self.inner.get(key)
    }

    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), cotal_workspace::StoreError> {
        self.inner.put(key, secret)
    }

    fn delete(&self, key: &SecretKey) -> Result<bool, cotal_workspace::StoreError> {
        self.inner.delete(key)
    }

    fn identity(&self) -> cotal_workspace::StoreIdentity {
        self.inner.identity()
    }
}

/// On one thread: if the store blocked it, the test could never let it answer.
#[tokio::test(flavor = "current_thread")]
async fn a_store_that_takes_its_time_holds_up_nothing_else_of_the_runtime() {
    let mesh = Mesh::start().await;
    let (let_it, answer) = std::sync::mpsc::channel();
    let store = std::sync::Arc::new(SlowStore {
        inner: FileStore::new(mesh.root().clone()),
        asked: tokio::sync::watch::channel(false).0,
        answer: std::sync::Mutex::new(answer),
    });
    let mut asked = store.asked.subscribe();
    let mut options = mesh.lane_options();
    options.store = store;
    let mut lane = Lane::start(options);
    asked.wait_for(|asked| *asked).await.expect("the store is asked");
    let_it.send(()).expect("the store waits");
    let mut stage = lane.stage();
    let ready = stage.wait_for(|stage| *stage != cotal_delivery::Stage::Starting);
    let reached = *ready.await.expect("a stage");
    assert!(!matches!(reached, cotal_delivery::Stage::Ended { .. }), "{reached:?}");
    lane.stop();
    lane.ended().await.expect("a clean end");
}
