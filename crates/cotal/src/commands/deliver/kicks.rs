//! The host's way to a kick: the root's signer behind the trait that the daemon's library knows.

use cotal_delivery::KickAuthority;
use cotal_manager::KickSigner;
use cotal_wire::Space;
use cotal_workspace::Secret;

/// Signs with what the root retained.
pub(super) struct RetainedSeed(pub(super) KickSigner);

impl KickAuthority for RetainedSeed {
    fn observer(&self, space: &Space, accounts: &[String]) -> Result<Secret, String> {
        self.0.observer(space, accounts).map_err(|error| error.to_string())
    }

    fn kick_only(&self, space: &Space, server: &str) -> Result<Secret, String> {
        self.0.kick_only(space, server).map_err(|error| error.to_string())
    }
}
