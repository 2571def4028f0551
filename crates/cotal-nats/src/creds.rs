//! User credentials: the two blocks of a `.creds` file, and where a connection gets the current
//! ones.
//!
//! Invariant: a connection asks its [`CredsSource`] at every (re)connect and never keeps a JWT of
//! its own, so replacing the creds and reconnecting is the whole of a renewal.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cotal_wire::creds::{Claims, Creds as File};
use nkeys::KeyPair;
use tokio::sync::watch;

/// With less life than this the client would reconnect in a hot loop, each time expiring at once.
const MIN_LIFE_SECS: u64 = 2;

/// Why creds cannot be used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CredsError {
    /// The file or the JWT in it cannot be parsed.
    #[error(transparent)]
    Form(#[from] cotal_wire::creds::CredsError),
    /// The seed is not a user seed.
    #[error("the seed in the creds is no NATS user seed: {0}")]
    Seed(String),
    /// The JWT is for another key than the seed.
    #[error("the two halves of the credential, its JWT and its seed, are of different keys")]
    Mismatch {
        /// Subject of the JWT.
        jwt_of: String,
        /// Public key of the seed.
        seed_of: String,
    },
    /// The JWT has expired or is about to.
    #[error("the credential has expired, or expires within {MIN_LIFE_SECS} s: renew it")]
    Expired {
        /// Whose it is.
        nkey: String,
        /// Unix seconds.
        exp: i64,
    },
    /// The source now yields another identity than the connection was opened with.
    #[error("the credential is of another key than the one that this connection began with")]
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
            .field("sub", &self.claims.subject)
            .field("exp", &self.claims.expires_at)
            .finish_non_exhaustive()
    }
}

impl Creds {
    /// Reads the text of a `.creds` file.
    pub fn parse(text: &str) -> Result<Self, CredsError> {
        let File { jwt, seed, claims } = File::parse(text)?;
        Self::of(&jwt, &seed, claims)
    }

    /// Joins a JWT and the seed of its key.
    pub fn new(jwt: &str, seed: &str) -> Result<Self, CredsError> {
        Self::of(jwt, seed, Claims::parse(jwt)?)
    }

    fn of(jwt: &str, seed: &str, claims: Claims) -> Result<Self, CredsError> {
        let key = KeyPair::from_seed(seed).map_err(|e| CredsError::Seed(e.to_string()))?;
        let (jwt_of, seed_of) = (claims.subject.to_string(), key.public_key());
        if jwt_of != seed_of {
            return Err(CredsError::Mismatch { jwt_of, seed_of });
        }
        Ok(Self { jwt: jwt.into(), key: Arc::new(key), claims: Arc::new(claims) })
    }

    /// The user's nkey, which is also the connection id.
    pub fn nkey(&self) -> &str {
        self.claims.subject.as_str()
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let soonest = i64::try_from(now + MIN_LIFE_SECS).unwrap_or(i64::MAX);
        match self.claims.expires_at {
            Some(exp) if exp < soonest => {
                Err(CredsError::Expired { nkey: self.nkey().to_owned(), exp })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn sign(&self, nonce: &[u8]) -> Result<Vec<u8>, CredsError> {
        self.key.sign(nonce).map_err(|e| CredsError::Seed(e.to_string()))
    }
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
