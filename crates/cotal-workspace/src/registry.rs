//! The user's registry of meshes: which root and broker serve a space (LIF-13).
//!
//! Several processes change the file; each change reads, edits and replaces it under a lock, so
//! none is lost. The path is an argument, because only the binary reads the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cotal_wire::Space;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, Privacy};
use crate::lock::{FileLock, LockError};
use crate::mesh::check_server;
use crate::strict;

/// Why the registry could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The content is not a registry.
    #[error(
        "{path} is not a mesh registry: {problem}; repair it or move it away",
        path = path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The lock could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Where a space is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshEntry {
    /// The workspace root that owns the space.
    pub root: PathBuf,
    /// The broker's URL.
    pub server: String,
    /// Whether connections demand TLS.
    pub tls: bool,
    /// The certificate authority to trust, when it is not the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    meshes: BTreeMap<Space, MeshEntry>,
}

/// The registry file, `$XDG_CONFIG_HOME/cotal/meshes.json`.
#[derive(Debug, Clone)]
pub struct MeshRegistry {
    path: PathBuf,
}

impl MeshRegistry {
    /// The registry at `path`; nothing is touched yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The registry's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entry of one space.
    ///
    /// # Errors
    /// When the file is unreadable or malformed.
    pub fn get(&self, space: &Space) -> Result<Option<MeshEntry>, RegistryError> {
        Ok(self.all()?.remove(space))
    }

    /// Every entry; an absent file has none.
    ///
    /// # Errors
    /// When the file is unreadable or malformed.
    pub fn all(&self) -> Result<BTreeMap<Space, MeshEntry>, RegistryError> {
        let Some(text) = files::read(&self.path)? else {
            return Ok(BTreeMap::new());
        };
        let content: Content = strict::object(&text).map_err(|p| self.malformed(p))?;
        for entry in content.meshes.values() {
            check_server(&entry.server).map_err(|p| self.malformed(p))?;
        }
        Ok(content.meshes)
    }

    /// Makes sure that entries can be recorded, before something is done that they are to tell of.
    ///
    /// # Errors
    /// When the file cannot be locked or read, or is malformed.
    pub fn check(&self) -> Result<(), RegistryError> {
        let _held = FileLock::exclusive(&self.lock_path())?;
        self.all().map(drop)
    }

    /// Records where a space is served and returns what was recorded before.
    ///
    /// # Errors
    /// When the entry is malformed, or the file cannot be locked, read or replaced.
    pub fn insert(
        &self,
        space: &Space,
        entry: MeshEntry,
    ) -> Result<Option<MeshEntry>, RegistryError> {
        check_server(&entry.server).map_err(|p| self.malformed(p))?;
        let _held = FileLock::exclusive(&self.lock_path())?;
        let mut meshes = self.all()?;
        if meshes.get(space) == Some(&entry) {
            return Ok(Some(entry));
        }
        let before = meshes.insert(space.clone(), entry);
        self.save(meshes)?;
        Ok(before)
    }

    /// Forgets a space if `root` is the one recorded for it; tells whether it was.
    ///
    /// # Errors
    /// When the file cannot be locked, read or replaced.
    pub fn remove(&self, space: &Space, root: &Path) -> Result<bool, RegistryError> {
        let _held = FileLock::exclusive(&self.lock_path())?;
        let mut meshes = self.all()?;
        if meshes.get(space).is_none_or(|entry| entry.root != root) {
            return Ok(false);
        }
        meshes.remove(space);
        self.save(meshes)?;
        Ok(true)
    }

    fn save(&self, meshes: BTreeMap<Space, MeshEntry>) -> Result<(), RegistryError> {
        let text = serde_json::to_string_pretty(&Content { meshes })
            .map_err(|e| self.malformed(e.to_string()))?;
        Ok(files::replace(&self.path, format!("{text}\n").as_bytes(), Privacy::Public)?)
    }

    fn lock_path(&self) -> PathBuf {
        self.path.with_extension("json.lock")
    }

    fn malformed(&self, problem: String) -> RegistryError {
        RegistryError::Malformed { path: self.path.clone(), problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(root: &str) -> MeshEntry {
        MeshEntry {
            root: root.into(),
            server: "nats://127.0.0.1:4222".into(),
            tls: false,
            ca: None,
        }
    }

    fn space(name: &str) -> Space {
        Space::parse(name).unwrap()
    }

    #[test]
    fn lif_13_an_entry_is_recorded_replaced_and_forgotten_by_its_own_root() {
        let dir = tempfile::tempdir().unwrap();
        let registry = MeshRegistry::new(dir.path().join("cotal/meshes.json"));
        let alpha = space("alpha");
        assert_eq!(registry.get(&alpha).unwrap(), None);
        assert_eq!(registry.insert(&alpha, entry("/a")).unwrap(), None);
        assert_eq!(registry.insert(&alpha, entry("/b")).unwrap(), Some(entry("/a")));
        assert!(!registry.remove(&alpha, Path::new("/a")).unwrap());
        assert_eq!(registry.get(&alpha).unwrap(), Some(entry("/b")));
        assert!(registry.remove(&alpha, Path::new("/b")).unwrap());
        assert_eq!(registry.all().unwrap(), BTreeMap::new());
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        let registry = MeshRegistry::new(dir.path().join("meshes.json"));
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let registry = registry.clone();
                scope.spawn(move || {
                    for n in 0..10 {
                        registry.insert(&space(&format!("s{writer}_{n}")), entry("/r")).unwrap();
                    }
                });
            }
        });
        assert_eq!(registry.all().unwrap().len(), 80);
    }

    #[test]
    fn a_malformed_registry_is_named_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meshes.json");
        let registry = MeshRegistry::new(&path);
        for (text, problem) in [
            ("{", "EOF"),
            ("{}", "missing field `meshes`"),
            (
                r#"{"meshes": {"a b": {"root": "/", "server": "nats://h:1", "tls": false}}}"#,
                "space",
            ),
            (r#"{"meshes": {"a": {"root": "/", "server": "h", "tls": false}}}"#, "is not nats://"),
            (r#"{"meshes": {"a": {"root": "/", "server": "nats://h:1"}}}"#, "missing field `tls`"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = registry.insert(&space("x"), entry("/r")).unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains("meshes.json"), "{message}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
