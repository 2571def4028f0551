//! Why nothing could be scanned or kicked.

use cotal_nats::NatsError;

use crate::credentials::CredentialError;

/// Why nothing could be scanned or kicked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("the {what} cannot be used: {source}")]
    Broker { what: &'static str, source: NatsError },
    #[error(
        "{stay} connections stay and nobody may kick them here: the broker hosts several spaces, so \
         only a host (`cotal deliver --spaces`) kicks, on a root that retained the system account's seed"
    )]
    NobodyKicks { stay: usize },
    #[error("the host cannot sign what it kicks with: {0}")]
    NotSigned(String),
    #[error("the host kicks nothing, because its own census of the account is not complete: {0}")]
    HostCensus(String),
}
