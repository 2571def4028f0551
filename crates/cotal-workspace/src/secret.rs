//! Secret texts and the keys they are stored under.

use std::fmt;

use cotal_wire::{Principal, Space};

/// A text that is never shown: `Debug` gives its length, and there is no `Display` or serialiser.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself; whoever calls this answers for where it goes.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Which credential of a space.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretKind {
    /// The daemon's own credential.
    Delivery,
    /// The writer of the membership feed.
    MembershipRw,
    /// The account-scoped `$SYS` observer.
    MembershipObserver,
    /// The kick-only `$SYS` user.
    ConnectionEvictor,
    /// The manager's credential.
    Supervisor,
    /// A provisioned agent's credential.
    Agent(Principal),
}

impl SecretKind {
    /// The kind's name; of an agent, `agents/<owner>.<actor>`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Delivery => "delivery".to_owned(),
            Self::MembershipRw => "membership-rw".to_owned(),
            Self::MembershipObserver => "membership-observer".to_owned(),
            Self::ConnectionEvictor => "connection-evictor".to_owned(),
            Self::Supervisor => "supervisor".to_owned(),
            Self::Agent(principal) => format!("agents/{principal}"),
        }
    }
}

/// The key of one secret: a space and a kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretKey {
    /// The space it belongs to.
    pub space: Space,
    /// Which credential it is.
    pub kind: SecretKind,
}

impl SecretKey {
    /// Names a credential of a space.
    #[must_use]
    pub fn new(space: &Space, kind: SecretKind) -> Self {
        Self { space: space.clone(), kind }
    }
}

/// The store key of a host's delivery credential.
#[must_use]
pub fn delivery_creds_key(space: &Space) -> SecretKey {
    SecretKey::new(space, SecretKind::Delivery)
}

/// The store key of a host's membership writer.
#[must_use]
pub fn membership_rw_creds_key(space: &Space) -> SecretKey {
    SecretKey::new(space, SecretKind::MembershipRw)
}

/// The store key of a host's account observer.
#[must_use]
pub fn membership_observer_creds_key(space: &Space) -> SecretKey {
    SecretKey::new(space, SecretKind::MembershipObserver)
}

/// The store key of the connection evictor, where a space's daemon kicks itself.
#[must_use]
pub fn connection_evictor_creds_key(space: &Space) -> SecretKey {
    SecretKey::new(space, SecretKind::ConnectionEvictor)
}

impl fmt::Display for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.space, self.kind.name())
    }
}
