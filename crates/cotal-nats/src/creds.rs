//! User credentials: the two blocks of a `.creds` file, and where a connection gets the current
//! ones.
//!
//! Invariant: a connection asks its [`CredsSource`] at every (re)connect and never keeps a JWT of
//! its own, so replacing the creds and reconnecting is the whole of a renewal.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde::Deserialize;
use tokio::sync::watch;

/// With less life than this the client would reconnect in a hot loop, each time expiring at once.
const MIN_LIFE_SECS: u64 = 2;

/// Why creds cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CredsError {
    /// A block is missing.
    #[error("the creds hold no {0} block")]
    MissingBlock(&'static str),
    /// The seed is not a user seed.
    #[error("the seed in the creds is no NATS user seed: {0}")]
    Seed(String),
    /// The JWT cannot be decoded.
    #[error("the JWT in the creds is malformed: {0}")]
    Jwt(String),
    /// The JWT is for another key than the seed.
    #[error("the JWT in the creds is for {jwt_of}, the seed is of {seed_of}")]
    Mismatch {
        /// Subject of the JWT.
        jwt_of: String,
        /// Public key of the seed.
        seed_of: String,
    },
    /// The JWT has expired or is about to.
    #[error("the JWT of {nkey} expired or expires within {MIN_LIFE_SECS} s (exp {exp}): renew it")]
    Expired {
        /// Whose it is.
        nkey: String,
        /// Unix seconds.
        exp: u64,
    },
    /// The source now yields another identity than the connection was opened with.
    #[error("the creds are of {found}, this connection belongs to {expected}")]
    Identity {
        /// The connection's nkey.
        expected: String,
        /// The creds' nkey.
        found: String,
    },
    /// The source failed.
    #[error("the creds cannot be read: {0}")]
    Source(String),
}

/// What this crate reads of a user JWT. Nothing here is verified: only the broker judges a
/// signature.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Claims {
    /// The user's nkey.
    #[serde(default)]
    pub sub: String,
    /// The signing key.
    #[serde(default)]
    pub iss: String,
    /// Display name.
    #[serde(default)]
    pub name: String,
    /// Issued at, Unix seconds.
    #[serde(default)]
    pub iat: u64,
    /// Expires at, Unix seconds; 0 is never.
    #[serde(default)]
    pub exp: u64,
    /// The NATS part.
    #[serde(default)]
    pub nats: NatsClaims,
}

/// The NATS part of a user JWT, as far as it is read here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct NatsClaims {
    /// The account, when a signing key issued the JWT.
    #[serde(default)]
    pub issuer_account: String,
    /// Tags, case kept.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Where it may publish.
    #[serde(default, rename = "pub")]
    pub publish: Allowed,
}

/// The allow-list of a permission; an empty one allows everything.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Allowed {
    /// Subjects.
    #[serde(default)]
    pub allow: Vec<String>,
}

impl Allowed {
    /// Whether `subject` is allowed in so many words.
    pub(crate) fn names(&self, subject: &str) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|allowed| allowed == subject)
    }
}

impl Claims {
    /// The account this user belongs to.
    pub fn account(&self) -> &str {
        if self.nats.issuer_account.is_empty() { &self.iss } else { &self.nats.issuer_account }
    }

    /// The value of the first tag `<name>:<value>`.
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.nats.tags.iter().find_map(|tag| tag.strip_prefix(name)?.strip_prefix(':'))
    }
}

/// A user JWT with its key. Cheap to clone; its `Debug` shows no secret.
#[derive(Clone)]
pub struct Creds {
    jwt: Arc<str>,
    key: Arc<KeyPair>,
    claims: Arc<Claims>,
}

impl fmt::Debug for Creds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Creds")
            .field("sub", &self.claims.sub)
            .field("exp", &self.claims.exp)
            .finish_non_exhaustive()
    }
}

impl Creds {
    /// Reads the text of a `.creds` file.
    pub fn parse(text: &str) -> Result<Self, CredsError> {
        let jwt = block(text, "NATS USER JWT").ok_or(CredsError::MissingBlock("NATS USER JWT"))?;
        let seed =
            block(text, "USER NKEY SEED").ok_or(CredsError::MissingBlock("USER NKEY SEED"))?;
        Self::new(jwt, seed)
    }

    /// Joins a JWT and the seed of its key.
    pub fn new(jwt: &str, seed: &str) -> Result<Self, CredsError> {
        let key = KeyPair::from_seed(seed).map_err(|e| CredsError::Seed(e.to_string()))?;
        let claims = decode(jwt)?;
        if claims.sub != key.public_key() {
            return Err(CredsError::Mismatch { jwt_of: claims.sub, seed_of: key.public_key() });
        }
        Ok(Self { jwt: jwt.into(), key: Arc::new(key), claims: Arc::new(claims) })
    }

    /// The user's nkey, which is also the connection id.
    pub fn nkey(&self) -> &str {
        &self.claims.sub
    }

    /// The JWT itself.
    pub fn jwt(&self) -> &str {
        &self.jwt
    }

    /// The decoded claims.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Refuses creds that the broker would expire at once.
    pub fn check_life(&self) -> Result<(), CredsError> {
        let exp = self.claims.exp;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        if exp != 0 && exp < now + MIN_LIFE_SECS {
            return Err(CredsError::Expired { nkey: self.nkey().to_owned(), exp });
        }
        Ok(())
    }

    pub(crate) fn sign(&self, nonce: &[u8]) -> Result<Vec<u8>, CredsError> {
        self.key.sign(nonce).map_err(|e| CredsError::Seed(e.to_string()))
    }
}

/// The first non-empty line between a block's markers.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("---") && line.contains("BEGIN") && line.contains(name))?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with("---"))
}

fn decode(jwt: &str) -> Result<Claims, CredsError> {
    let payload = jwt
        .split('.')
        .nth(1)
        .ok_or_else(|| CredsError::Jwt("it has no payload part".to_owned()))?;
    let bytes =
        BASE64URL_NOPAD.decode(payload.as_bytes()).map_err(|e| CredsError::Jwt(e.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|e| CredsError::Jwt(e.to_string()))
}

type Provider = dyn Fn() -> Result<Creds, CredsError> + Send + Sync;

#[derive(Clone)]
enum Kind {
    Anonymous,
    Cell(Arc<watch::Sender<Creds>>),
    Provider(Arc<Provider>),
}

/// Where a connection gets the creds to present now. Clones share one source.
#[derive(Clone)]
pub struct CredsSource(Kind);

impl fmt::Debug for CredsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Anonymous => "CredsSource::Anonymous",
            Kind::Cell(_) => "CredsSource::Cell",
            Kind::Provider(_) => "CredsSource::Provider",
        })
    }
}

impl CredsSource {
    /// No creds at all: an open development mesh.
    pub fn anonymous() -> Self {
        Self(Kind::Anonymous)
    }

    /// These creds until [`replace`](Self::replace) is called on any clone.
    pub fn new(creds: Creds) -> Self {
        Self(Kind::Cell(Arc::new(watch::Sender::new(creds))))
    }

    /// Asks `provider` at every connect. It must not block for long.
    pub fn from_fn(
        provider: impl Fn() -> Result<Creds, CredsError> + Send + Sync + 'static,
    ) -> Self {
        Self(Kind::Provider(Arc::new(provider)))
    }

    /// Makes every later connect present `creds`; returns whether this source can be replaced.
    pub fn replace(&self, creds: Creds) -> bool {
        let Kind::Cell(cell) = &self.0 else {
            return false;
        };
        cell.send_replace(creds);
        true
    }

    /// Tells of every replacement from now on, so that a connection can be moved onto it.
    pub fn replacements(&self) -> Replacements {
        Replacements(match &self.0 {
            Kind::Cell(cell) => Some(cell.subscribe()),
            Kind::Anonymous | Kind::Provider(_) => None,
        })
    }

    /// The creds to present now; `None` when anonymous.
    pub fn current(&self) -> Result<Option<Creds>, CredsError> {
        match &self.0 {
            Kind::Anonymous => Ok(None),
            Kind::Cell(cell) => Ok(Some(cell.borrow().clone())),
            Kind::Provider(provider) => provider().map(Some),
        }
    }
}

/// The replacements of a source's creds.
#[derive(Debug)]
pub struct Replacements(Option<watch::Receiver<Creds>>);

impl Replacements {
    /// Waits for the next one; for ever when the source can have none. Cancel-safe.
    pub async fn next(&mut self) {
        let replaced = match &mut self.0 {
            Some(replaced) => replaced.changed().await.is_ok(),
            None => false,
        };
        if !replaced {
            std::future::pending::<()>().await;
        }
    }
}

impl From<Creds> for CredsSource {
    fn from(creds: Creds) -> Self {
        Self::new(creds)
    }
}
