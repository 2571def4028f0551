//! Which role a caller holds, as the tags of its own connections say.
//!
//! The broker lets every agent with a role ask for a take, of any sequence. Without this an agent of
//! one role could take the requests of another, unseen, and so keep them from their holders. A role
//! belongs to a credential; the account's census shows it. Where no census can be had, roles are
//! not told apart.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cotal_wire::{Principal, Role};
use tokio::sync::Mutex;
use tracing::warn;

use crate::scan::Scanner;

/// A credential can be replaced by one of another role; then this is how long the old one counts.
const BELIEVED_FOR: Duration = Duration::from_secs(600);
/// Callers of the wrong role make a new census at most this often.
const RESCAN: Duration = Duration::from_secs(5);

/// The roles of everyone who was connected at the last census.
pub(super) struct Roles {
    scanner: Scanner,
    last: Mutex<Option<Census>>,
}

struct Census {
    at: Instant,
    roles: HashMap<Principal, BTreeSet<Role>>,
}

impl Census {
    /// Whether a new census could say something else.
    fn settles(&self, caller: &Principal, wanted: &Role) -> bool {
        let age = self.at.elapsed();
        match self.roles.get(caller) {
            Some(roles) if roles.contains(wanted) => age < BELIEVED_FOR,
            Some(_) => age < RESCAN,
            None => false,
        }
    }

    fn of(&self, caller: &Principal, wanted: &Role) -> Option<Role> {
        let roles = self.roles.get(caller)?;
        roles.get(wanted).or_else(|| roles.first()).cloned()
    }
}

impl Roles {
    pub(super) fn new(scanner: Scanner) -> Self {
        Self { scanner, last: Mutex::new(None) }
    }

    /// The role of `caller`: `wanted` if it holds that too. `None`: it cannot be told.
    pub(super) async fn of(&self, caller: &Principal, wanted: &Role) -> Option<Role> {
        // Callers that arrive together wait for one census.
        let mut last = self.last.lock().await;
        if let Some(census) = last.as_ref().filter(|census| census.settles(caller, wanted)) {
            return census.of(caller, wanted);
        }
        match self.scanner.roles().await {
            Ok(roles) => {
                let census = Census { at: Instant::now(), roles };
                last.insert(census).of(caller, wanted)
            }
            Err(error) => {
                let space = &self.scanner.space;
                warn!(%space, %error, "the roles of callers cannot be told apart");
                None
            }
        }
    }
}
