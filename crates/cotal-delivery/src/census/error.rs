//! Why a census or a kick was not possible.

use cotal_nats::NatsError;

use crate::credentials::CredentialError;

/// Why a census or a kick was not possible.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("the {what} cannot be used: {source}")]
    Broker { what: &'static str, source: NatsError },
    #[error(
        "{stay} connections are left, and this daemon may not kick them: the broker hosts several \
         spaces, so only a host (`cotal deliver --spaces`) kicks, on a root that retained the \
         system account's seed"
    )]
    NobodyKicks { stay: usize },
    #[error("the host cannot sign the credential for a kick: {0}")]
    NotSigned(String),
    #[error(
        "the host kicks no connection, because its own census of the account is incomplete: {0}"
    )]
    HostCensus(String),
}
