//! `mesh.json`: what the processes of a root must agree on.

use std::path::PathBuf;

use cotal_wire::Space;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, Privacy};
use crate::root::Root;
use crate::strict;

/// Why `mesh.json` could not be used.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// The content is not a mesh.
    #[error(
        "{path} is not usable: {problem}; repair it, or run `cotal down`, move it away and run \
         `cotal up`",
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
}

/// Whether connections must authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Accounts, credentials and a delivery daemon.
    #[default]
    Auth,
    /// Development without credentials: live-only, no delivery daemon (LIF-14).
    Open,
}

/// What a power failure may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The broker's own sync interval.
    #[default]
    Default,
    /// Every write is synced before it is acknowledged.
    Strict,
}

/// The content of `mesh.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MeshFile {
    /// The broker's URL (`nats://…` or `tls://…`).
    pub server: String,
    /// Whether every connection demands TLS and refuses a plaintext listener (LIF-1).
    pub tls: bool,
    /// The certificate authority to trust, when it is not the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Whether connections authenticate.
    #[serde(default)]
    pub mode: Mode,
    /// What a power failure may take.
    #[serde(default)]
    pub durability: Durability,
    /// The spaces of this root, in the order they were added; the first is the default.
    pub spaces: Vec<Space>,
}

impl MeshFile {
    /// Reads the root's `mesh.json`; `None` when there is none.
    ///
    /// # Errors
    /// When it is unreadable or malformed; the message names the file and the problem.
    pub fn load(root: &Root) -> Result<Option<Self>, MeshError> {
        let path = root.mesh_file();
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        Self::parse(&text).map(Some).map_err(|problem| MeshError::Malformed { path, problem })
    }

    /// Replaces the root's `mesh.json`.
    ///
    /// # Errors
    /// When this value could not be read back, or the system refuses.
    pub fn save(&self, root: &Root) -> Result<(), MeshError> {
        let path = root.mesh_file();
        let text = self
            .check()
            .and_then(|()| serde_json::to_string_pretty(self).map_err(|e| e.to_string()))
            .map_err(|problem| MeshError::Malformed { path: path.clone(), problem })?;
        Ok(files::replace(&path, format!("{text}\n").as_bytes(), Privacy::Public)?)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mesh: Self = strict::object(text)?;
        mesh.check()?;
        Ok(mesh)
    }

    fn check(&self) -> Result<(), String> {
        check_server(&self.server)?;
        strict::distinct(&self.spaces)
    }
}

/// Refuses what no client could dial; `Err` is the sentence for people.
pub(crate) fn check_server(server: &str) -> Result<(), String> {
    let authority = server.strip_prefix("nats://").or_else(|| server.strip_prefix("tls://"));
    match authority.map(|a| a.trim_end_matches('/')) {
        Some(a) if a.contains('@') => {
            Err("the server URL holds a user; credentials belong in .creds files".to_owned())
        }
        Some(a) if !a.is_empty() && !a.contains(['/', ' ', ',']) => Ok(()),
        _ => Err(format!("server {server:?} is not nats://host:port or tls://host:port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> MeshFile {
        MeshFile {
            server: "nats://127.0.0.1:4222".to_owned(),
            tls: false,
            ca: None,
            mode: Mode::Auth,
            durability: Durability::Default,
            spaces: vec![Space::parse("main").unwrap()],
        }
    }

    #[test]
    fn it_reads_back_what_it_saved() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        assert_eq!(MeshFile::load(&root).unwrap(), None);
        let strict =
            MeshFile { durability: Durability::Strict, ca: Some("ca.pem".into()), ..mesh() };
        for wanted in [mesh(), strict] {
            wanted.save(&root).unwrap();
            assert_eq!(MeshFile::load(&root).unwrap(), Some(wanted));
        }
    }

    #[test]
    fn a_minimal_file_is_an_authenticated_mesh() {
        let text = r#"{"server": "tls://h:4222", "tls": true, "spaces": []}"#;
        let mesh = MeshFile::parse(text).unwrap();
        assert_eq!((mesh.mode, mesh.durability), (Mode::Auth, Durability::Default));
    }

    #[test]
    fn malformed_files_are_refused_by_name_and_problem() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        for (text, problem) in [
            ("", "not a JSON object"),
            (r#"["nats://h:1", false, []]"#, "not a JSON object"),
            (r#"{"tls": false, "spaces": []}"#, "missing field `server`"),
            (r#"{"server": "nats://h:1", "spaces": []}"#, "missing field `tls`"),
            (r#"{"server": "http://h", "tls": false, "spaces": []}"#, "is not nats://"),
            (r#"{"server": "nats://u:p@h:1", "tls": false, "spaces": []}"#, "holds a user"),
            (r#"{"server": "nats://h:1", "tls": false, "spaces": ["a b"]}"#, "not a space"),
            (r#"{"server": "nats://h:1", "tls": false, "spaces": ["a", "a"]}"#, "named twice"),
            (
                r#"{"server": "nats://h:1", "tls": false, "mode": "x", "spaces": []}"#,
                "unknown variant",
            ),
            (r#"{"server": "nats://h:1", "tls": false, "spaces": [], "x": 1}"#, "unknown field"),
        ] {
            std::fs::write(root.mesh_file(), text).unwrap();
            let message = MeshFile::load(&root).unwrap_err().to_string();
            assert!(
                message.contains(problem) && message.contains("mesh.json"),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn what_could_not_be_read_back_is_not_saved() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let bad =
            MeshFile { spaces: vec![mesh().spaces[0].clone(), mesh().spaces[0].clone()], ..mesh() };
        assert!(matches!(bad.save(&root), Err(MeshError::Malformed { .. })));
        assert!(!root.mesh_file().exists());
    }
}
