//! The credentials that a host needs for kicks, signed by whoever holds the system account's seed.

use std::sync::Arc;

use cotal_wire::Space;
use cotal_workspace::Secret;

/// Signs the credentials that a host needs for kicks. The system account's seed stays with the
/// implementor: this crate never sees a signing key. The calls may block; they run on blocking
/// threads.
pub trait KickAuthority: Send + Sync {
    /// An observer of `accounts`, for the host's own census of them.
    ///
    /// # Errors
    /// If it cannot be signed; the text is shown to people.
    fn observer(&self, space: &Space, accounts: &[String]) -> Result<Secret, String>;

    /// A credential for one kick: it may kick connections of the server `server`, and nothing else.
    ///
    /// # Errors
    /// If it cannot be signed; the text is shown to people.
    fn kick_only(&self, space: &Space, server: &str) -> Result<Secret, String>;
}

/// Who kicks for a lane.
#[derive(Clone, Default)]
pub enum Kicks {
    /// The lane itself, with the kick credential of its store, unless the observer there says that
    /// only the host may kick.
    #[default]
    Own,
    /// The host, with a credential signed for each kick. `None`: nobody, because the system
    /// account's seed was not retained. The lane opens no kick credential (EVC-5).
    Host(Option<Arc<dyn KickAuthority>>),
}
