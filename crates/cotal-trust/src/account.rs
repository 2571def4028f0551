//! Account keys and the account of a space.

use std::collections::BTreeMap;
use std::fmt;

use cotal_wire::Space;
use nkeys::{KeyPair, KeyPairType};

use crate::claims;
use crate::error::MintError;
use crate::jwt::{Envelope, sign};

/// An account's signing key: its identity key, which signs its users directly.
///
/// A separate signing key would let the key be rotated without a new account, at the price of a
/// second secret that must be kept beside the first on the same disk.
pub struct AccountKeys {
    name: String,
    pair: KeyPair,
}

impl AccountKeys {
    /// A fresh account.
    #[must_use]
    pub fn generate(name: impl Into<String>) -> Self {
        Self { name: name.into(), pair: KeyPair::new_account() }
    }

    pub(crate) fn from_seed(name: impl Into<String>, seed: &str) -> Result<Self, String> {
        let pair = KeyPair::from_seed(seed).map_err(|_| "its seed does not read".to_owned())?;
        if pair.key_pair_type() != KeyPairType::Account {
            return Err("its seed is not an account's".to_owned());
        }
        Ok(Self { name: name.into(), pair })
    }

    /// The account's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The account's id: `A…`.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.pair.public_key()
    }

    pub(crate) fn key_pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(crate) fn sign_account(
        &self,
        operator: &KeyPair,
        jetstream: bool,
        revocations: &BTreeMap<String, i64>,
        issued_at: i64,
    ) -> Result<String, MintError> {
        let envelope = Envelope {
            jti: None,
            iat: issued_at,
            iss: String::new(),
            name: &self.name,
            sub: &self.public_key(),
            exp: None,
            nats: claims::Account::new(jetstream, revocations),
        };
        sign(envelope, operator)
    }
}

impl fmt::Debug for AccountKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountKeys({} {})", self.name, self.public_key())
    }
}

/// The account of a space as it stands on disk.
#[derive(Debug)]
pub struct SpaceAccount {
    pub(crate) space: Space,
    pub(crate) keys: AccountKeys,
    pub(crate) revocations: BTreeMap<String, i64>,
    pub(crate) jwt: String,
}

impl SpaceAccount {
    /// The space.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// What signs the space's users.
    #[must_use]
    pub fn keys(&self) -> &AccountKeys {
        &self.keys
    }

    /// The account's id: `A…`.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.keys.public_key()
    }

    /// The account JWT, for the broker's resolver and for a push at run time. It changes only
    /// with a revocation.
    #[must_use]
    pub fn jwt(&self) -> &str {
        &self.jwt
    }

    /// Revoked users: nkey → the instant (Unix seconds) up to which their JWTs are refused.
    #[must_use]
    pub fn revocations(&self) -> &BTreeMap<String, i64> {
        &self.revocations
    }
}
