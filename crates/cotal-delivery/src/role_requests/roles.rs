//! Which role a caller holds, as the tags of its own connections say.
//!
//! The broker lets every agent with a role ask for a take, of any sequence. Without this an agent
//! of one role could take the requests of another, unseen, and so keep them from their holders. A
//! role belongs to a credential; the account's census shows it. Where no census can be had, roles
//! are not told apart; a caller that a census does not show has proven nothing, for it may have
//! left on purpose.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cotal_wire::{Principal, Role};
use tokio::sync::Mutex as TurnMutex;
use tracing::warn;

use crate::census::Scanner;

/// A credential can be replaced by one of another role; then this is how long the old one counts.
const BELIEVED_FOR: Duration = Duration::from_secs(600);
/// Callers of the wrong role make a new census at most this often.
const RESCAN: Duration = Duration::from_secs(5);
/// A census that could not be had is tried again after this long.
const RETRY: Duration = Duration::from_secs(60);

/// What is known of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// It holds this role: the wanted one, if it holds that too.
    Role(Role),
    /// No connection of it with a role is there.
    Unseen,
    /// Roles cannot be told apart here.
    Untold,
}

/// The roles of everyone who was connected at the last census.
pub(super) struct Roles {
    scanner: Scanner,
    last: Mutex<Option<Census>>,
    scanning: TurnMutex<()>,
}

struct Census {
    began: Instant,
    /// `None` when it could not be had.
    roles: Option<HashMap<Principal, BTreeSet<Role>>>,
}

impl Census {
    /// What it says of a caller that asked at `asked`, unless one that is taken now could say
    /// something else.
    fn says(&self, caller: &Principal, wanted: &Role, asked: Instant) -> Option<Held> {
        let roles = self.roles.as_ref();
        let held = roles.map(|roles| roles.get(caller));
        let (answer, good_for) = match held {
            None => (Held::Untold, RETRY),
            Some(Some(held)) if held.contains(wanted) => (Held::Role(wanted.clone()), BELIEVED_FOR),
            Some(Some(held)) => (held.first().cloned().map_or(Held::Unseen, Held::Role), RESCAN),
            Some(None) => (Held::Unseen, Duration::ZERO),
        };
        (self.began >= asked || self.began.elapsed() < good_for).then_some(answer)
    }
}

impl Roles {
    pub(super) fn new(scanner: Scanner) -> Self {
        Self { scanner, last: Mutex::default(), scanning: TurnMutex::default() }
    }

    /// What `caller` holds of what a request wants.
    pub(super) async fn of(&self, caller: &Principal, wanted: &Role) -> Held {
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
                warn!(%space, %error, "the roles of callers cannot be told apart");
                None
            }
        };
        let census = Census { began, roles };
        let held = census.says(caller, wanted, asked);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(census);
        held.unwrap_or(Held::Unseen)
    }

    fn known(&self, caller: &Principal, wanted: &Role, asked: Instant) -> Option<Held> {
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
        // Whoever left before it was looked at has proven nothing.
        assert_eq!(after.says(&who("gone"), &wanted, asked), Some(Held::Unseen));
        assert_eq!(after.says(&who("eve"), &wanted, asked), Some(Held::Role(role("cook"))));
        assert_eq!(after.says(&who("eve"), &role("cook"), asked), Some(Held::Role(role("cook"))));
        // One from before the question shows only who was there already.
        let earlier = census(asked, Some(roles));
        let later = asked + Duration::from_millis(1);
        assert_eq!(earlier.says(&who("new"), &wanted, later), None);
        assert_eq!(earlier.says(&who("eve"), &role("cook"), later), Some(Held::Role(role("cook"))));
        assert_eq!(census(asked, None).says(&who("eve"), &wanted, later), Some(Held::Untold));
    }
}
