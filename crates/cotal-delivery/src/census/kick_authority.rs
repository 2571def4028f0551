//! What a host needs in order to kick, signed by whoever holds the system account's seed.

use std::sync::Arc;

use cotal_wire::Space;
use cotal_workspace::Secret;

/// Signs what a host presents for a kick. The system account's seed stays with whoever implements
/// it: this crate never sees a signing key. The calls may block; they are made beside the async
/// loops.
pub trait KickAuthority: Send + Sync {
    /// An observer of `accounts`, for the host's own census of them.
    ///
    /// # Errors
    /// When it cannot be signed; the sentence is shown.
    fn observer(&self, space: &Space, accounts: &[String]) -> Result<Secret, String>;

    /// A user that may kick connections of the server `server` and do nothing else, for one kick.
    ///
    /// # Errors
    /// When it cannot be signed; the sentence is shown.
    fn kick_only(&self, space: &Space, server: &str) -> Result<Secret, String>;
}

/// Who kicks for a lane.
#[derive(Clone, Default)]
pub enum Kicks {
    /// The lane itself, with the kick credential of its store, unless the observer there says that
    /// kicks are the host's.
    #[default]
    Own,
    /// The host, with a user signed for each kick; nobody where the system account's seed was not
    /// retained. The lane opens no kick credential (EVC-5).
    Host(Option<Arc<dyn KickAuthority>>),
}
