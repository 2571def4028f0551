//! The record of a provisioning that has begun and is not complete.
//!
//! It is written before anything of the agent exists, so that a crash anywhere is continued under
//! the same incarnation, and it is removed once the ACL row stands. It holds the incarnation's uid,
//! which is a capability (`wire.md` §8), so it is as private as a credential.

use std::path::{Path, PathBuf};

use cotal_wire::rows::Frontier;
use cotal_wire::{Lifecycle, Principal};
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{Root, Segment};
use serde::{Deserialize, Serialize};

use crate::error::ManagerError;

/// What was decided before anything was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pending {
    /// `<owner>.<actor>.<uid>`.
    lifecycle: String,
    /// Where the incarnation begins.
    pub(crate) activated: Frontier,
}

impl Pending {
    pub(crate) fn new(lifecycle: &Lifecycle, activated: Frontier) -> Self {
        Self { lifecycle: lifecycle.dotted(), activated }
    }

    /// Where the record of a principal lies.
    pub(crate) fn path(root: &Root, segment: &Segment, principal: &Principal) -> PathBuf {
        root.agents_dir(segment).join(format!("{principal}.pending"))
    }

    /// Reads the record at `path`; `None` when there is none.
    pub(crate) fn load(
        path: &Path,
        principal: &Principal,
    ) -> Result<Option<(Lifecycle, Self)>, ManagerError> {
        let Some(text) = files::read(path)? else {
            return Ok(None);
        };
        let malformed =
            |problem: String| ManagerError::PendingRecord { path: path.to_owned(), problem };
        let pending: Self = serde_json::from_str(&text).map_err(|e| malformed(e.to_string()))?;
        let lifecycle =
            Lifecycle::parse(&pending.lifecycle).map_err(|e| malformed(e.to_string()))?;
        if lifecycle.principal != *principal {
            return Err(malformed(format!("it is of {}", lifecycle.principal)));
        }
        Ok(Some((lifecycle, pending)))
    }

    pub(crate) fn save(&self, path: &Path) -> Result<(), ManagerError> {
        let text = serde_json::to_string(self).map_err(|e| ManagerError::PendingRecord {
            path: path.to_owned(),
            problem: e.to_string(),
        })?;
        Ok(files::replace(path, text.as_bytes(), Privacy::Secret)?)
    }

    pub(crate) fn remove(path: &Path) -> Result<(), ManagerError> {
        files::remove(path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_is_as_private_as_a_credential() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let life = Lifecycle::parse(&format!("local.bob.{}", "b".repeat(26))).unwrap();
        let bob = life.principal.clone();
        let path = Pending::path(&root, &Segment::of("main").unwrap(), &bob);
        assert_eq!(Pending::load(&path, &bob).unwrap(), None);
        let pending = Pending::new(&life, Frontier { chat: 1, dm: 2, task: 3 });
        pending.save(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Pending::load(&path, &bob).unwrap(), Some((life, pending)));
        let eve = Principal::parse("local.eve").unwrap();
        assert!(Pending::load(&path, &eve).is_err(), "a record of somebody else");
        std::fs::write(&path, "{").unwrap();
        assert!(Pending::load(&path, &bob).is_err());
        Pending::remove(&path).unwrap();
        Pending::remove(&path).unwrap();
        assert!(!path.exists());
    }
}
