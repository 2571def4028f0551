//! Account keys and the accounts of a space.

use std::collections::BTreeMap;
use std::fmt;

use cotal_wire::Space;
use cotal_wire::accounts::{AGENTS_TAG, Account, Topology};
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
        let pair = KeyPair::from_seed(seed).map_err(|_| "its seed cannot be parsed".to_owned())?;
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
        claims: claims::Account<'_>,
        issued_at: i64,
    ) -> Result<String, MintError> {
        let envelope = Envelope {
            jti: None,
            iat: issued_at,
            iss: String::new(),
            name: &self.name,
            sub: &self.public_key(),
            exp: None,
            nats: claims,
        };
        sign(envelope, operator)
    }
}

impl fmt::Debug for AccountKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountKeys({} {})", self.name, self.public_key())
    }
}

/// One account of a space as it stands on disk.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) keys: AccountKeys,
    pub(crate) revocations: BTreeMap<String, i64>,
    pub(crate) jwt: String,
}

/// The accounts of a space as they stand on disk: one, or three.
#[derive(Debug)]
pub struct SpaceAccount {
    pub(crate) space: Space,
    pub(crate) durable: Signed,
    pub(crate) isolated: Option<Isolated>,
}

/// What a space of three accounts has beside the durable one.
#[derive(Debug)]
pub(crate) struct Isolated {
    pub(crate) agents: Signed,
    pub(crate) shared: Signed,
    pub(crate) moving: bool,
}

impl SpaceAccount {
    /// The space.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// How many accounts it has.
    #[must_use]
    pub fn topology(&self) -> Topology {
        if self.isolated.is_some() { Topology::Three } else { Topology::One }
    }

    /// Whether it had one account and its move to three is not finished.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.isolated.as_ref().is_some_and(|isolated| isolated.moving)
    }

    fn of(&self, account: Account) -> &Signed {
        match (account, &self.isolated) {
            (Account::Agents, Some(isolated)) => &isolated.agents,
            (Account::Shared, Some(isolated)) => &isolated.shared,
            (Account::Durable, _) | (_, None) => &self.durable,
        }
    }

    /// What signs the users of the durable account: the daemon's and the manager's, and in a space
    /// of one account everybody's.
    #[must_use]
    pub fn keys(&self) -> &AccountKeys {
        self.keys_of(Account::Durable)
    }

    /// What signs the users of one of its accounts.
    #[must_use]
    pub fn keys_of(&self, account: Account) -> &AccountKeys {
        &self.of(account).keys
    }

    /// The id of the durable account: `A…`.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.keys().public_key()
    }

    /// The accounts that users of the space live in, the durable one first: what a census looks at.
    #[must_use]
    pub fn inhabited(&self) -> Vec<String> {
        let mut inhabited = vec![self.public_key()];
        inhabited.extend(self.isolated.iter().map(|isolated| isolated.agents.keys.public_key()));
        inhabited
    }

    /// The JWT of one of its accounts, for the broker's resolver and for a push at run time. It
    /// changes only with a revocation, and when the space is moved to three accounts.
    #[must_use]
    pub fn jwt_of(&self, account: Account) -> &str {
        &self.of(account).jwt
    }

    /// Every account's id and JWT, in the order in which a broker is told.
    #[must_use]
    pub fn jwts(&self) -> Vec<(String, String)> {
        let all = match self.topology() {
            Topology::One => vec![Account::Durable],
            Topology::Three => Account::ALL.to_vec(),
        };
        all.into_iter()
            .map(|account| (self.keys_of(account).public_key(), self.jwt_of(account).to_owned()))
            .collect()
    }

    /// Revoked users of an account: nkey → the instant (Unix seconds) up to which their JWTs are
    /// refused.
    #[must_use]
    pub fn revocations_of(&self, account: Account) -> &BTreeMap<String, i64> {
        &self.of(account).revocations
    }

    /// What the credentials of a user of `account` say of the space's accounts.
    #[must_use]
    pub fn tags_of(&self, account: Account) -> Vec<String> {
        match &self.isolated {
            Some(isolated) if account == Account::Durable => vec![
                format!("{AGENTS_TAG}:{}", isolated.agents.keys.public_key()),
                self.space.api_tag(),
            ],
            _ => Vec::new(),
        }
    }
}
