//! What can go wrong with trust material; no message ever holds a seed.

use std::path::{Path, PathBuf};

use cotal_wire::Space;
use cotal_wire::ids::IdError;
use cotal_workspace::FileError;
use cotal_workspace::lock::LockError;

/// Why trust material could not be made, read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file of the trust material does not hold what it must.
    #[error(
        "{path} is not usable trust material: {problem}; restore it from a backup, for nothing \
         else can sign for this mesh",
        path = path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file is gone that must have existed before another one that is there.
    #[error(
        "{missing} is missing although {witness} exists: restore it from a backup; a new one would \
         make credentials of this mesh worthless",
        missing = missing.display(),
        witness = witness.display()
    )]
    Lost {
        /// The file that should be there.
        missing: PathBuf,
        /// The file that shows that it was.
        witness: PathBuf,
    },
    /// There is no trust material at all.
    #[error("{operator} does not exist: run `cotal up` first", operator = .0.display())]
    NoOperator(PathBuf),
    /// The space has no account.
    #[error("space {0} has no account on this root: add it with `cotal space add {0}`")]
    NoAccount(Space),
    /// A JWT could not be made.
    #[error(transparent)]
    Mint(#[from] MintError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The lock on the trust material could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Says of a file what is wrong with it.
pub(crate) fn malformed(path: &Path) -> impl FnOnce(String) -> TrustError {
    let path = path.to_owned();
    move |problem| TrustError::Malformed { path, problem }
}

/// Why a JWT was not minted.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The given seed is not a user's.
    #[error("the seed given for user {0:?} is not a user seed")]
    NotAUserSeed(String),
    /// The credential would be dead on arrival.
    #[error("user {name:?} would expire at {expires_at}, not after its issue at {issued_at}")]
    AlreadyExpired {
        /// The user.
        name: String,
        /// When it would be issued, Unix seconds.
        issued_at: i64,
        /// When it would expire, Unix seconds.
        expires_at: i64,
    },
    /// The broker would refuse the connection before it reads the credential.
    #[error(
        "the credential is {bytes} bytes, and the broker accepts at most {limit} in a CONNECT \
         line: grant fewer channels, or wider patterns such as team.>"
    )]
    TooLarge {
        /// The size of the JWT.
        bytes: usize,
        /// The largest JWT that fits.
        limit: usize,
    },
    /// The user's key does not give an identity of the wire.
    #[error(transparent)]
    Identity(#[from] IdError),
    /// The key library refused; its message holds no key.
    #[error("cannot sign: {0}")]
    Key(#[from] nkeys::error::Error),
    /// The claims could not be encoded.
    #[error("cannot encode the claims: {0}")]
    Encode(#[from] serde_json::Error),
}
