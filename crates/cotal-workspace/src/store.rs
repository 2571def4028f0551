//! Where credentials are kept: under a root, or wherever an embedder keeps its secrets.
//!
//! The calls may block; an async caller makes them on a blocking thread. A `put` is atomic: a
//! reader gets the old or the new secret, never a part.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, Privacy};
use crate::root::{Root, Segment};
use crate::secret::{Secret, SecretKey, SecretKind};

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} the secret {key}: {source}")]
pub struct StoreError {
    /// What was tried: `read`, `write` or `delete`.
    pub operation: &'static str,
    /// The key it was tried on.
    pub key: String,
    /// Why it failed.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl StoreError {
    /// Reports a failed operation on a key.
    pub fn new(
        operation: &'static str,
        key: &SecretKey,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { operation, key: key.to_string(), source: source.into() }
    }
}

/// Which store a process reads, in the form that `reloadStoreIdentity` answers.
///
/// A manager renews a daemon's credentials only when both name the same store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum StoreIdentity {
    /// The files under a root.
    Fs {
        /// The root's absolute path.
        root: PathBuf,
    },
    /// An embedder's own store.
    Injected {
        /// What tells it from other stores; it is shown, so it holds no secret.
        coordinate: String,
    },
}

/// A place that keeps credentials.
///
/// The calls may block; whoever is asynchronous makes them on a thread for that. What they are made
/// for:
///
/// | key | needed by | without it |
/// |---|---|---|
/// | [`SecretKind::Delivery`] | a delivery lane, at its start and at each renewal | the lane does not start |
/// | [`SecretKind::MembershipObserver`] | a lane, to see which connections an agent has | the lane does not start |
/// | [`SecretKind::ConnectionEvictor`] | a lane, to end an agent's connections | evictions are `unavailable` |
/// | [`SecretKind::MembershipRw`] | the writer of the membership feed | no feed |
/// | [`SecretKind::Agent`] | the manager, which gives an agent its credential | none is kept |
///
/// The delivery credential lives 24 h. Its owner, which is `cotal_manager::Manager` where it runs
/// on the same store, signs the same key anew past half of its life, and puts it under the same
/// key; the lane reads it at 75 % of the life it holds, or when it is told to (`reloadCreds`). An
/// embedder without a manager does the same by itself: the same nkey, a later expiry, one atomic
/// `put`. A lane whose credential expired waits for a renewal as long as for a broker that is gone,
/// then it ends. Observer and evictor are pinned to the same account and rotated together, with one
/// `rotation` tag; a pair of two rotations is refused.
pub trait SecretStore: Send + Sync {
    /// The secret under `key`, if there is one.
    ///
    /// # Errors
    /// When the store cannot tell.
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, StoreError>;

    /// Creates or replaces the secret under `key`, atomically.
    ///
    /// # Errors
    /// When it is not stored; the old secret then stands.
    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), StoreError>;

    /// Removes the secret under `key`; tells whether there was one.
    ///
    /// # Errors
    /// When the store cannot remove it.
    fn delete(&self, key: &SecretKey) -> Result<bool, StoreError>;

    /// Which store this is.
    fn identity(&self) -> StoreIdentity;
}

/// The credential files under a root (`wire.md` §9).
#[derive(Debug, Clone)]
pub struct FileStore {
    root: Root,
}

/// The store of a workspace root, which every process of that root reads.
#[must_use]
pub fn workspace_secret_store(root: &Root) -> FileStore {
    FileStore::new(root.clone())
}

impl FileStore {
    /// The store of a root.
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self { root }
    }

    /// The file that holds the secret under `key`.
    #[must_use]
    pub fn path(&self, key: &SecretKey) -> PathBuf {
        let segment = Segment::from(&key.space);
        match &key.kind {
            SecretKind::Agent(principal) => self.root.agent_creds(&segment, principal),
            kind => self.root.creds_file(&segment, &kind.name()),
        }
    }

    fn write(&self, key: &SecretKey, secret: &Secret) -> Result<(), FileError> {
        files::private_dir(&self.root.space_dir(&Segment::from(&key.space)))?;
        files::replace(&self.path(key), secret.expose().as_bytes(), Privacy::Secret)
    }
}

impl SecretStore for FileStore {
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, StoreError> {
        let text = files::read(&self.path(key)).map_err(|e| StoreError::new("read", key, e))?;
        Ok(text.map(Secret::new))
    }

    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), StoreError> {
        self.write(key, secret).map_err(|e| StoreError::new("write", key, e))
    }

    fn delete(&self, key: &SecretKey) -> Result<bool, StoreError> {
        files::remove(&self.path(key)).map_err(|e| StoreError::new("delete", key, e))
    }

    fn identity(&self) -> StoreIdentity {
        StoreIdentity::Fs { root: self.root.dir().to_owned() }
    }
}

/// Secrets in memory, for embedders that bring their own and for tests.
#[derive(Debug)]
pub struct MemoryStore {
    coordinate: String,
    secrets: Mutex<BTreeMap<SecretKey, Secret>>,
}

impl MemoryStore {
    /// An empty store; `coordinate` tells it from other stores and is shown.
    #[must_use]
    pub fn new(coordinate: impl Into<String>) -> Self {
        Self { coordinate: coordinate.into(), secrets: Mutex::default() }
    }

    /// A panic elsewhere cannot leave half a change in the map, so its lock stays usable.
    fn secrets(&self) -> std::sync::MutexGuard<'_, BTreeMap<SecretKey, Secret>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SecretStore for MemoryStore {
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, StoreError> {
        Ok(self.secrets().get(key).cloned())
    }

    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), StoreError> {
        self.secrets().insert(key.clone(), secret.clone());
        Ok(())
    }

    fn delete(&self, key: &SecretKey) -> Result<bool, StoreError> {
        Ok(self.secrets().remove(key).is_some())
    }

    fn identity(&self) -> StoreIdentity {
        StoreIdentity::Injected { coordinate: self.coordinate.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cotal_wire::{Principal, Space};

    use super::*;

    fn keys(space: &str) -> Vec<SecretKey> {
        let space = Space::parse(space).unwrap();
        let agent = |name| SecretKind::Agent(Principal::new("local", name).unwrap());
        [
            SecretKind::Delivery,
            SecretKind::MembershipRw,
            SecretKind::MembershipObserver,
            SecretKind::ConnectionEvictor,
            SecretKind::Supervisor,
            agent("alice"),
            agent("bob"),
            agent("delivery"),
        ]
        .map(|kind| SecretKey::new(&space, kind))
        .to_vec()
    }

    /// What every store must do.
    fn keeps_each_key_apart(store: &dyn SecretStore) {
        let all: Vec<_> = keys("alpha").into_iter().chain(keys("beta")).collect();
        for key in &all {
            assert_eq!(store.get(key).unwrap(), None, "{key}");
            store.put(key, &Secret::new("old")).unwrap();
            store.put(key, &Secret::new(key.to_string())).unwrap();
        }
        for key in &all {
            assert_eq!(store.get(key).unwrap().unwrap().expose(), key.to_string());
        }
        for key in &all {
            assert!(store.delete(key).unwrap(), "{key}");
            assert!(!store.delete(key).unwrap(), "{key}");
            assert_eq!(store.get(key).unwrap(), None, "{key}");
        }
    }

    #[test]
    fn both_stores_keep_each_key_apart() {
        let dir = tempfile::tempdir().unwrap();
        keeps_each_key_apart(&FileStore::new(Root::init(dir.path()).unwrap()));
        keeps_each_key_apart(&MemoryStore::new("vault/team"));
    }

    #[test]
    fn the_files_are_where_wire_md_says_and_private_all_the_way_up() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let store = FileStore::new(root.clone());
        for key in keys("alpha") {
            store.put(&key, &Secret::new("x")).unwrap();
        }
        for file in [
            "delivery.creds",
            "membership-rw.creds",
            "membership-observer.creds",
            "connection-evictor.creds",
            "agents/local.bob.creds",
        ] {
            let path = root.dot_dir().join("alpha").join(file);
            let mode = |p: &std::path::Path| p.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o600, "{file}");
            for dir in path.ancestors().skip(1).take_while(|p| *p != root.dir()) {
                assert_eq!(mode(dir), 0o700, "{}", dir.display());
            }
        }
    }

    #[test]
    fn identities_are_what_the_rail_answers() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let fs = serde_json::to_value(FileStore::new(root.clone()).identity()).unwrap();
        assert_eq!(fs, serde_json::json!({"kind": "fs", "root": root.dir()}));
        let injected = serde_json::to_value(MemoryStore::new("vault/team").identity()).unwrap();
        assert_eq!(injected, serde_json::json!({"kind": "injected", "coordinate": "vault/team"}));
    }

    #[test]
    fn a_secret_shows_in_no_message() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let store = FileStore::new(root.clone());
        let key = &keys("alpha")[0];
        let secret = Secret::new("SUAHIDDEN");
        std::fs::write(root.dot_dir().join("alpha"), "in the way").unwrap();
        let error = store.put(key, &secret).unwrap_err();
        assert!(error.to_string().contains("alpha/delivery"), "{error}");
        let memory = MemoryStore::new("m");
        memory.put(key, &secret).unwrap();
        for shown in [format!("{error:?}{error}"), format!("{secret:?}"), format!("{memory:?}")] {
            assert!(!shown.contains("HIDDEN"), "{shown}");
        }
    }
}
