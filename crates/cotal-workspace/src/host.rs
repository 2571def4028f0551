//! `host.json`: what a multi-space host says of its lanes, for whoever asks on its root.
//!
//! The file alone proves nothing of now: [`HostFile::load`] also tells whether the process that
//! wrote it still runs, which the kernel answers through the lock that a host holds for its life.

use std::path::PathBuf;

use cotal_wire::Space;
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, Privacy};
use crate::lock::{LockError, Reservation};
use crate::root::Root;
use crate::strict;

/// Why a host's state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HostFileError {
    /// The content is not a host's.
    #[error("{path} is not what a host writes: {problem}; the host replaces it", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The host's lock could not be asked.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// What a host last said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostFile {
    /// The host's process.
    pub pid: u32,
    /// The broker it dials.
    pub server: String,
    /// The manifest it read.
    pub manifest: PathBuf,
    /// When this was written, Unix milliseconds. A host that runs writes at least every ten
    /// seconds.
    pub written: i64,
    /// Its lanes.
    pub lanes: Vec<HostLane>,
}

/// One lane of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostLane {
    /// Its space.
    pub space: Space,
    /// Where it stands, in one word.
    pub state: String,
    /// Why, where there is a reason to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when, Unix milliseconds.
    pub since: i64,
}

impl HostFile {
    /// What the host that runs on `root` last said. `Ok(None)` when no host runs; what an earlier
    /// one left is then no news. `Ok(Some(None))` when one runs and has not said anything yet.
    ///
    /// # Errors
    /// When the file or the lock cannot be read, or the file is no host's.
    pub fn load(root: &Root) -> Result<Option<Option<Self>>, HostFileError> {
        let Some(holder) = Reservation::held(&root.host_lock())? else { return Ok(None) };
        let path = root.host_file();
        let Some(text) = files::read(&path)? else { return Ok(Some(None)) };
        let file: Self =
            strict::object(&text).map_err(|problem| HostFileError::Malformed { path, problem })?;
        // What a host before this one left says nothing of this one.
        let is_own = holder.is_none_or(|pid| pid == file.pid);
        Ok(Some(is_own.then_some(file)))
    }

    /// Replaces the root's `host.json`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn save(&self, root: &Root) -> Result<(), HostFileError> {
        let path = root.host_file();
        let text = serde_json::to_string(self)
            .map_err(|e| HostFileError::Malformed { path: path.clone(), problem: e.to_string() })?;
        Ok(files::replace(&path, format!("{text}\n").as_bytes(), Privacy::Public)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_said_is_believed_only_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        assert_eq!(HostFile::load(&root).unwrap(), None);
        let held = Reservation::try_acquire(&root.host_lock()).unwrap();
        assert_eq!(HostFile::load(&root).unwrap(), Some(None));
        let lane = HostLane {
            space: Space::parse("a").unwrap(),
            state: "refused".to_owned(),
            reason: Some("why".to_owned()),
            since: 1,
        };
        let mut said = HostFile {
            pid: std::process::id(),
            server: "nats://127.0.0.1:4222".to_owned(),
            manifest: "/m.json".into(),
            written: 2,
            lanes: vec![lane],
        };
        said.save(&root).unwrap();
        assert_eq!(HostFile::load(&root).unwrap(), Some(Some(said.clone())));
        said.pid += 1;
        said.save(&root).unwrap();
        assert_eq!(HostFile::load(&root).unwrap(), Some(None), "another host left it");
        drop(held);
        assert_eq!(HostFile::load(&root).unwrap(), None);
    }
}
