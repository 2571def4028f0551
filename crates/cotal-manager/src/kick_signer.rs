//! What a multi-space host kicks with, signed for each use (EVC-5).

use cotal_trust::{AccountKeys, UserKey, mint_one_use, retained_system};
use cotal_wire::Space;
use cotal_wire::profile::SystemProfile;
use cotal_workspace::{Root, Secret};

use crate::clock::unix_seconds;
use crate::error::ManagerError;

/// Seconds that a signed user lives: for one census, or one kick.
const ONE_USE: i64 = 60;

/// Signs with the system account's seed that a root retained.
#[derive(Debug)]
pub struct KickSigner {
    system: AccountKeys,
}

impl KickSigner {
    /// The signer of a root; none where it did not retain the seed.
    ///
    /// # Errors
    /// When the seed's file is malformed or unreadable.
    pub fn of(root: &Root) -> Result<Option<Self>, ManagerError> {
        Ok(retained_system(root)?.map(|system| Self { system }))
    }

    /// An observer of a space's accounts, for one census.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn observer(&self, space: &Space, accounts: &[String]) -> Result<Secret, ManagerError> {
        self.sign(space, &SystemProfile::MembershipObserver { accounts: accounts.to_vec() })
    }

    /// A user that may kick on one server, for one kick.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn kick_only(&self, space: &Space, server: &str) -> Result<Secret, ManagerError> {
        self.sign(space, &SystemProfile::Kick { server: server.to_owned() })
    }

    fn sign(&self, space: &Space, profile: &SystemProfile) -> Result<Secret, ManagerError> {
        let key = UserKey::generate();
        Ok(mint_one_use(&self.system, &key, profile, space, unix_seconds(), ONE_USE)?.creds)
    }
}
