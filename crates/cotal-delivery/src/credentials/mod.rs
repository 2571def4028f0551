//! The credentials of a lane, read from its own store keys and checked before the broker is
//! dialled.

pub(crate) mod adoption;

use std::collections::BTreeSet;
use std::sync::Arc;

use cotal_nats::CredsSource;
use cotal_wire::accounts::inhabited;
use cotal_wire::creds::{Creds, CredsError, KICKS_ARE_THE_HOSTS};
use cotal_wire::names::sys;
use cotal_wire::{Principal, Space};
use cotal_workspace::{Secret, SecretKey, SecretKind, SecretStore, StoreError};

/// Why a lane has no usable credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store panicked, or the runtime is ending.
    #[error("the secret store did not answer: {0}")]
    StoreFailed(String),
    /// The store has no such key.
    #[error("there is no {0} credential in the store; run `cotal up` to mint it")]
    Missing(String),
    /// The text is not a credential.
    #[error("the {key} credential cannot be parsed: {source}")]
    Malformed {
        /// The key.
        key: String,
        /// What is wrong.
        source: CredsError,
    },
    /// The observer and the evictor are of different rotations.
    #[error(
        "the observer and the evictor of {0} are of different rotations: one was replaced without \
         the other; run `cotal up` to rotate both"
    )]
    Torn(Space),
    /// The credential is for something else.
    #[error("the {key} credential is not for {space}: {why}")]
    Foreign {
        /// The key.
        key: String,
        /// The lane's space.
        space: Space,
        /// What it is for.
        why: String,
    },
}

/// The delivery credential, and the principal that it gives the daemon.
pub(crate) struct Identity {
    pub(crate) source: CredsSource,
    pub(crate) principal: Principal,
    /// The accounts that the space's users are in; the observer must be pinned to them.
    pub(crate) accounts: Vec<String>,
    pub(crate) creds: Creds,
}

/// Reads a store on a blocking thread, because an embedder's store may ask a vault over the
/// network, and nothing else must wait for that.
pub(crate) async fn ask_store<T: Send + 'static>(
    store: &Arc<dyn SecretStore>,
    space: &Space,
    ask: impl FnOnce(&dyn SecretStore, &Space) -> Result<T, CredentialError> + Send + 'static,
) -> Result<T, CredentialError> {
    let (store, of) = (Arc::clone(store), space.clone());
    let asked = tokio::task::spawn_blocking(move || ask(&*store, &of)).await;
    asked.unwrap_or_else(|error| Err(CredentialError::StoreFailed(error.to_string())))
}

/// Reads one of the space's credentials.
pub(crate) fn read(
    store: &dyn SecretStore,
    space: &Space,
    kind: SecretKind,
) -> Result<Creds, CredentialError> {
    let key = SecretKey::new(space, kind);
    let secret = store.get(&key)?.ok_or_else(|| CredentialError::Missing(key.to_string()))?;
    Creds::parse(secret.expose())
        .map_err(|source| CredentialError::Malformed { key: key.to_string(), source })
}

fn foreign(kind: &SecretKind, space: &Space, why: String) -> CredentialError {
    CredentialError::Foreign { key: kind.name(), space: space.clone(), why }
}

/// Reads the delivery credential and checks that it is this space's. Then checks that the account
/// observer in the same store is pinned to exactly the accounts of this credential (EVC-1).
pub(crate) fn load(store: &dyn SecretStore, space: &Space) -> Result<Identity, CredentialError> {
    let creds = read(store, space, SecretKind::Delivery)?;
    let malformed = |source| CredentialError::Malformed {
        key: SecretKey::new(space, SecretKind::Delivery).to_string(),
        source,
    };
    let tagged = creds.claims.space().map_err(malformed)?;
    if tagged != *space {
        return Err(foreign(&SecretKind::Delivery, space, format!("it is for space {tagged}")));
    }
    let principal = creds.claims.principal().map_err(malformed)?;
    if let Some(grant) = creds.claims.unrestricted() {
        let why =
            format!("it is not scoped, {grant}; the daemon does not run with such a credential");
        return Err(foreign(&SecretKind::Delivery, space, why));
    }
    let accounts = inhabited(&creds.claims);
    check_observer(store, space, &accounts)?;
    let source = presentable(&creds, space, &SecretKind::Delivery)?;
    Ok(Identity { source, principal, accounts, creds })
}

/// [`load`] on a blocking thread.
pub(crate) async fn load_blocking(
    store: &Arc<dyn SecretStore>,
    space: &Space,
) -> Result<Identity, CredentialError> {
    ask_store(store, space, load).await
}

/// The client's form of a credential; an error if its key pair cannot be parsed.
fn presentable(
    creds: &Creds,
    space: &Space,
    kind: &SecretKind,
) -> Result<CredsSource, CredentialError> {
    let read = client(creds).map_err(|why| foreign(kind, space, why))?;
    Ok(CredsSource::new(read))
}

/// The client's form of a delivery credential.
pub(crate) fn client_creds(
    creds: &Creds,
    space: &Space,
) -> Result<cotal_nats::Creds, CredentialError> {
    client(creds).map_err(|why| foreign(&SecretKind::Delivery, space, why))
}

fn client(creds: &Creds) -> Result<cotal_nats::Creds, String> {
    let text = Creds::render(&creds.jwt, &creds.seed);
    cotal_nats::Creds::parse(&text).map_err(|e| format!("its key pair cannot be parsed: {e}"))
}

/// Reads a `$SYS` credential for immediate use. The observer must be pinned to the lane's own
/// accounts, and the pair must be of one rotation (EVC-1).
pub(crate) fn system(
    store: &dyn SecretStore,
    space: &Space,
    kind: &SecretKind,
    accounts: &[String],
) -> Result<CredsSource, CredentialError> {
    // The pair is checked each time, because one of them may have been replaced since the start.
    check_observer(store, space, accounts)?;
    presentable(&read(store, space, kind.clone())?, space, kind)
}

/// Whether the space's observer says that no daemon of a space may kick, because the broker was
/// provisioned for several spaces.
pub(crate) fn kicks_are_the_hosts(
    store: &dyn SecretStore,
    space: &Space,
) -> Result<bool, CredentialError> {
    let observer = read(store, space, SecretKind::MembershipObserver)?;
    Ok(observer.claims.tag("rotation") == Some(KICKS_ARE_THE_HOSTS))
}

/// The client's form of a credential that was signed for one use.
pub(crate) fn signed_for_now(secret: &Secret) -> Result<CredsSource, String> {
    let creds = Creds::parse(secret.expose()).map_err(|error| error.to_string())?;
    client(&creds).map(CredsSource::new)
}

/// Whether an observer sees exactly these accounts. If it saw fewer, it would report connections as
/// gone that it cannot see.
fn observes(observer: &Creds, accounts: &[String]) -> bool {
    let seen: BTreeSet<&str> =
        observer.claims.pub_allow.iter().filter_map(|subject| sys::observed(subject)).collect();
    seen == accounts.iter().map(String::as_str).collect()
}

fn other_account(space: &Space) -> CredentialError {
    let why = "it observes another account than the delivery credential's".to_owned();
    foreign(&SecretKind::MembershipObserver, space, why)
}

fn check_observer(
    store: &dyn SecretStore,
    space: &Space,
    accounts: &[String],
) -> Result<(), CredentialError> {
    let observer = read(store, space, SecretKind::MembershipObserver)?;
    if !observes(&observer, accounts) {
        return Err(other_account(space));
    }
    // Without an evictor, eviction is unavailable, and a revocation only denies new connections
    // (EVC-2).
    let evictor = match read(store, space, SecretKind::ConnectionEvictor) {
        Ok(evictor) => evictor,
        Err(CredentialError::Missing(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let rotation = |creds: &Creds| creds.claims.tag("rotation").map(str::to_owned);
    let same = rotation(&observer) == rotation(&evictor);
    if same && observer.claims.account == evictor.claims.account {
        Ok(())
    } else {
        Err(CredentialError::Torn(space.clone()))
    }
}
