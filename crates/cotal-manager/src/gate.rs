//! The registration gate of a space: while it is frozen no agent is provisioned (ADM-6).
//!
//! Invariant: it is shut on the disk before the first eviction of a predecessor, and opens only
//! once every holder is verified gone. A record that cannot be parsed counts as frozen.

use std::path::PathBuf;

use cotal_wire::Space;
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{Root, Segment};
use serde::{Deserialize, Serialize};

use crate::clock::unix_millis;
use crate::error::ManagerError;

/// Why a gate is frozen, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// Unix milliseconds.
    pub since: i64,
    /// A sentence for people.
    pub reason: String,
}

/// The gate of one space on one root.
#[derive(Debug, Clone)]
pub struct Gate {
    path: PathBuf,
    space: Space,
}

impl Gate {
    /// The gate of a space; nothing is touched yet.
    #[must_use]
    pub fn of(root: &Root, space: &Space) -> Self {
        Self { path: root.gate_file(&Segment::from(space)), space: space.clone() }
    }

    /// Why it is frozen; `None` while it is open.
    ///
    /// # Errors
    /// When the record exists and cannot be read.
    pub fn frozen(&self) -> Result<Option<Frozen>, ManagerError> {
        let garbled = |problem| Frozen { since: 0, reason: format!("its record is {problem}") };
        let text = files::read(&self.path)?;
        Ok(text.map(|text| {
            serde_json::from_str(&text).unwrap_or_else(|error| garbled(format!("damaged: {error}")))
        }))
    }

    /// Shuts it, or changes the reason of one that is shut.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn freeze(&self, reason: &str) -> Result<(), ManagerError> {
        let since = self.frozen()?.map_or_else(unix_millis, |frozen| frozen.since);
        let text = serde_json::to_string(&Frozen { since, reason: reason.to_owned() })?;
        Ok(files::replace(&self.path, text.as_bytes(), Privacy::Secret)?)
    }

    /// Opens it.
    ///
    /// # Errors
    /// When the record cannot be removed.
    pub fn open(&self) -> Result<(), ManagerError> {
        files::remove(&self.path)?;
        Ok(())
    }

    /// Lets a provisioning through, unless it is frozen.
    pub(crate) fn pass(&self) -> Result<(), ManagerError> {
        match self.frozen()? {
            None => Ok(()),
            Some(Frozen { reason, .. }) => {
                Err(ManagerError::GateFrozen { space: self.space.clone(), reason })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adm_6_a_gate_is_frozen_until_it_is_opened_and_garbage_does_not_open_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::init(dir.path()).unwrap();
        let space = Space::parse("main").unwrap();
        let gate = Gate::of(&root, &space);
        gate.pass().unwrap();
        gate.freeze("one").unwrap();
        let first = gate.frozen().unwrap().unwrap();
        gate.freeze("two").unwrap();
        let second = gate.frozen().unwrap().unwrap();
        assert_eq!((second.since, second.reason.as_str()), (first.since, "two"));
        let refused = gate.pass().unwrap_err();
        assert!(refused.to_string().contains("two"), "{refused}");
        std::fs::write(root.gate_file(&Segment::from(&space)), "{").unwrap();
        assert!(matches!(gate.pass(), Err(ManagerError::GateFrozen { .. })));
        gate.open().unwrap();
        gate.open().unwrap();
        gate.pass().unwrap();
    }
}
