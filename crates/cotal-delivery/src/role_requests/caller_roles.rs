//! The role of a caller, from the tags of its own connections.
//!
//! The broker lets every agent with a role request a take of any sequence. Without this check an
//! agent of one role could take the requests of another role, unnoticed, and so keep them from
//! their holders. The role is in the credential, and the account's census shows it. If no census is
//! possible, roles are not checked. A caller that a census does not show is refused, because it may
//! have disconnected on purpose. left on purpose.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cotal_wire::{Principal, Role};
use tokio::sync::Mutex as TurnMutex;
use tracing::warn;

use crate::census::Scanner;

/// How long a role from a census counts; the credential may have been replaced by one of another
/// role.
const ROLE_REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Callers of the wrong role cause a new census at most this often.
const RESCAN_AFTER: Duration = Duration::from_secs(5);
/// How long after a failed census the next one is tried.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// What is known of a caller's role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeldRole {
    /// It holds this role; if it holds several, the requested one.
    Role(Role),
    /// It has no connection with a role.
    Unseen,
    /// Roles cannot be checked here.
    Untold,
}

/// The roles of every principal that was connected at the last census.
pub(super) struct Roles {
    scanner: Scanner,
    last: Mutex<Option<Census>>,
    scanning: TurnMutex<()>,
}

struct Census {
    began: Instant,
    /// `None` if the census failed.
    roles: Option<HashMap<Principal, BTreeSet<Role>>>,
}

impl Census {
    /// What this census says about a caller that asked at `asked`; `None` if a new census could say
    /// something else.
    fn says(&self, caller: &Principal, wanted: &Role, asked: Instant) -> Option<HeldRole> {
        let roles = self.roles.as_ref();
        let held = roles.map(|roles| roles.get(caller));
        let (answer, good_for) = match held {
            None => (HeldRole::Untold, RETRY_AFTER),
            Some(Some(held)) if held.contains(wanted) => {
                (HeldRole::Role(wanted.clone()), ROLE_REMEMBERED_FOR)
            }
            Some(Some(held)) => {
                (held.first().cloned().map_or(HeldRole::Unseen, HeldRole::Role), RESCAN_AFTER)
            }
            Some(None) => (HeldRole::Unseen, Duration::ZERO),
        };
        (self.began >= asked || self.began.elapsed() < good_for).then_some(answer)
    }
}

impl Roles {
    pub(super) fn new(scanner: Scanner) -> Self {
        Self { scanner, last: Mutex::default(), scanning: TurnMutex::default() }
    }

    /// The role of `caller`, for a request to the role `wanted`.
    pub(super) async fn of(&self, caller: &Principal, wanted: &Role) -> HeldRole {
        let asked = Instant::now();
        if let Some(held) = self.known(caller, wanted, asked) {
            return held;
        }
        // Callers that arrive together wait for one census.
        let _turn = self.scanning.lock().await;
        if let Some(held) = self.known(caller, wanted, asked) {
            return held;
        }
        let began = Instant::now();
        let roles = match self.scanner.roles().await {
            Ok(roles) => Some(roles),
            Err(error) => {
                let space = self.scanner.space();
                warn!(%space, %error, "the roles of callers cannot be checked");
                None
            }
        };
        let census = Census { began, roles };
        let held = census.says(caller, wanted, asked);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(census);
        held.unwrap_or(HeldRole::Unseen)
    }

    fn known(&self, caller: &Principal, wanted: &Role, asked: Instant) -> Option<HeldRole> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref()?.says(caller, wanted, asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(text: &str) -> Role {
        Role::parse(text).expect("a role")
    }

    #[test]
    fn any_1_only_a_census_taken_since_says_that_a_caller_holds_nothing() {
        let who = |actor| Principal::new("local", actor).expect("a principal");
        let asked = Instant::now();
        let began = asked + Duration::from_millis(1);
        let roles = HashMap::from([(who("eve"), BTreeSet::from([role("cook")]))]);
        let census = |began, roles| Census { began, roles };
        let after = census(began, Some(roles.clone()));
        let wanted = role("reviewer");
        // A caller that left before the census is not proven to hold the role.
        assert_eq!(after.says(&who("gone"), &wanted, asked), Some(HeldRole::Unseen));
        assert_eq!(after.says(&who("eve"), &wanted, asked), Some(HeldRole::Role(role("cook"))));
        assert_eq!(
            after.says(&who("eve"), &role("cook"), asked),
            Some(HeldRole::Role(role("cook")))
        );
        // A census from before the question shows only principals that were connected by then.
        let earlier = census(asked, Some(roles));
        let later = asked + Duration::from_millis(1);
        assert_eq!(earlier.says(&who("new"), &wanted, later), None);
        assert_eq!(
            earlier.says(&who("eve"), &role("cook"), later),
            Some(HeldRole::Role(role("cook")))
        );
        assert_eq!(census(asked, None).says(&who("eve"), &wanted, later), Some(HeldRole::Untold));
    }
}
