//! Users: a key, a permissions block and an expiry, signed by their account.

use std::fmt;

use cotal_wire::creds::Creds;
use cotal_wire::ids::{ConnId, IdError, Principal};
use cotal_wire::limits::MAX_CONTROL_LINE;
use cotal_wire::permissions::Permissions;
use cotal_workspace::Secret;
use nkeys::{KeyPair, KeyPairType};

use crate::account::AccountKeys;
use crate::claims;
use crate::error::MintError;
use crate::jwt::{Envelope, sign};

/// What a CONNECT line holds beside the JWT: signature, client name, language, version and flags.
pub const CONNECT_HEADROOM: usize = 1_024;

/// The key that a user proves its identity with.
pub struct UserKey(KeyPair);

impl UserKey {
    /// A fresh key from the kernel's randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self(KeyPair::new_user())
    }

    /// The key of an existing seed, so that an identity outlives a renewal (CRD-7).
    ///
    /// # Errors
    /// When the text is not a user seed.
    pub fn from_seed(seed: &Secret) -> Result<Self, MintError> {
        let key = KeyPair::from_seed(seed.expose().trim())?;
        if key.key_pair_type() == KeyPairType::User {
            Ok(Self(key))
        } else {
            Err(MintError::NotAUserSeed(key.public_key()))
        }
    }

    /// Its seed, to be kept where only its owner reads.
    ///
    /// # Errors
    /// Never for a key that was made here.
    pub fn seed(&self) -> Result<Secret, MintError> {
        Ok(Secret::new(self.0.seed()?))
    }

    /// The connection id: `U…`.
    #[must_use]
    pub fn public_key(&self) -> String {
        self.0.public_key()
    }
}

impl UserKey {
    /// `local.<nkey>`: the principal of a user that is nobody's agent, such as the daemon.
    ///
    /// # Errors
    /// Never for a user key; the wire's parser decides.
    pub fn principal(&self) -> Result<Principal, IdError> {
        Principal::new("local", &self.public_key())
    }

    /// The connection id, parsed.
    ///
    /// # Errors
    /// Never for a user key; the wire's parser decides.
    pub fn conn_id(&self) -> Result<ConnId, IdError> {
        ConnId::parse(&self.public_key())
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserKey({})", self.public_key())
    }
}

/// Everything that a user JWT says.
#[derive(Debug)]
pub struct UserSpec<'a> {
    /// A name for people.
    pub name: &'a str,
    /// The user's key.
    pub key: &'a UserKey,
    /// Tags (`key:value`), which keep their case.
    pub tags: Vec<String>,
    /// What it may do; default-deny, so an empty list denies everything.
    pub permissions: Permissions,
    /// Unix seconds.
    pub issued_at: i64,
    /// Unix seconds; `None` for a user that lives until it is revoked.
    pub expires_at: Option<i64>,
}

/// A credential that was just made. `Debug` shows its user only.
#[derive(Clone)]
pub struct Minted {
    /// The user's nkey.
    pub public_key: String,
    /// The user's JWT.
    pub jwt: String,
    /// The whole two-block `.creds` text.
    pub creds: Secret,
}

impl fmt::Debug for Minted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Minted").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

/// Signs a user of `account`.
///
/// # Errors
/// When the expiry is not after the issue, the JWT would not fit the CONNECT line, or signing
/// fails.
pub fn mint_user(account: &AccountKeys, spec: &UserSpec<'_>) -> Result<Minted, MintError> {
    if let Some(expires_at) = spec.expires_at
        && expires_at <= spec.issued_at
    {
        return Err(MintError::AlreadyExpired {
            name: spec.name.to_owned(),
            issued_at: spec.issued_at,
            expires_at,
        });
    }
    let public_key = spec.key.public_key();
    let envelope = Envelope {
        jti: None,
        iat: spec.issued_at,
        iss: String::new(),
        name: spec.name,
        sub: &public_key,
        exp: spec.expires_at,
        nats: claims::User::new(&spec.permissions, &spec.tags),
    };
    let jwt = sign(envelope, account.key_pair())?;
    check_connect_line(&jwt)?;
    let creds = Secret::new(Creds::render(&jwt, &spec.key.0.seed()?));
    Ok(Minted { public_key, jwt, creds })
}

/// Whether a CONNECT line with this JWT is one that the broker reads.
///
/// # Errors
/// [`MintError::TooLarge`] when it is not.
pub fn check_connect_line(jwt: &str) -> Result<(), MintError> {
    let limit = MAX_CONTROL_LINE - CONNECT_HEADROOM;
    if jwt.len() > limit {
        return Err(MintError::TooLarge { bytes: jwt.len(), limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(key: &UserKey) -> UserSpec<'_> {
        UserSpec {
            name: "bob",
            key,
            tags: vec!["principal:local.Bob".to_owned()],
            permissions: Permissions::default(),
            issued_at: 100,
            expires_at: Some(200),
        }
    }

    fn claims_of(minted: &Minted) -> serde_json::Value {
        let body = minted.jwt.split('.').nth(1).unwrap();
        serde_json::from_slice(&data_encoding::BASE64URL_NOPAD.decode(body.as_bytes()).unwrap())
            .unwrap()
    }

    #[test]
    fn the_wire_reads_what_was_minted() {
        let (account, key) = (AccountKeys::generate("alpha"), UserKey::generate());
        let minted = mint_user(&account, &spec(&key)).unwrap();
        let creds = Creds::parse(minted.creds.expose()).unwrap();
        assert_eq!(creds.jwt, minted.jwt);
        assert_eq!(creds.claims.subject.as_str(), key.public_key());
        assert_eq!(creds.claims.account, account.public_key());
        assert_eq!((creds.claims.issued_at, creds.claims.expires_at), (100, Some(200)));
        assert_eq!(creds.claims.tags, ["principal:local.Bob"]);
        let again = UserKey::from_seed(&Secret::new(creds.seed)).unwrap();
        assert_eq!(again.public_key(), key.public_key());
        assert_eq!(mint_user(&account, &spec(&again)).unwrap().jwt, minted.jwt);
    }

    #[test]
    fn an_empty_allow_list_is_said_as_deny_all() {
        let (account, key) = (AccountKeys::generate("alpha"), UserKey::generate());
        let claims = claims_of(&mint_user(&account, &spec(&key)).unwrap());
        let denied = serde_json::json!({"deny": [">"]});
        assert_eq!((&claims["nats"]["pub"], &claims["nats"]["sub"]), (&denied, &denied));

        let only_denies = Permissions { pub_deny: vec!["a".to_owned()], ..Permissions::default() };
        let spec = UserSpec { permissions: only_denies, ..spec(&key) };
        let claims = claims_of(&mint_user(&account, &spec).unwrap());
        assert_eq!(claims["nats"]["pub"], denied);
    }

    #[test]
    fn a_credential_that_is_dead_or_too_large_is_refused() {
        let (account, key) = (AccountKeys::generate("alpha"), UserKey::generate());
        let dead = UserSpec { expires_at: Some(100), ..spec(&key) };
        assert!(matches!(mint_user(&account, &dead), Err(MintError::AlreadyExpired { .. })));
        let many = (0..3_000).map(|n| format!("cotal.alpha.chat.*.*.channel{n}")).collect();
        let large = UserSpec {
            permissions: Permissions { sub_allow: many, ..Permissions::default() },
            ..spec(&key)
        };
        let error = mint_user(&account, &large).unwrap_err();
        assert!(error.to_string().contains("CONNECT line"), "{error}");
    }

    #[test]
    fn seeds_of_another_kind_are_refused_and_none_is_shown() {
        let account = KeyPair::new_account();
        let seed = Secret::new(account.seed().unwrap());
        assert!(matches!(UserKey::from_seed(&seed), Err(MintError::NotAUserSeed(_))));
        assert!(UserKey::from_seed(&Secret::new("garbage")).is_err());
        let (account, key) = (AccountKeys::generate("alpha"), UserKey::generate());
        let minted = mint_user(&account, &spec(&key)).unwrap();
        let shown = format!("{account:?} {key:?} {minted:?} {:?}", spec(&key));
        assert!(!shown.contains(&key.0.seed().unwrap()), "{shown}");
        assert!(!shown.contains(&account.key_pair().seed().unwrap()), "{shown}");
        assert!(!shown.contains(&minted.jwt), "{shown}");
    }
}
