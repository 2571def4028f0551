//! Why a lane ends.

use cotal_nats::{NatsError, PullError};

use crate::credentials::CredentialError;
use crate::lease::error::LeaseError;
use crate::state::stream_error::StreamError;
use crate::state::view::ViewError;

/// Why a lane ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// It has no usable credential.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// It does not hold the lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The broker could not be reached, or refused something that the lane needs.
    #[error("{what}: {source}")]
    Broker {
        /// What was attempted.
        what: &'static str,
        /// The broker's answer.
        source: NatsError,
    },
    /// The view of the space cannot be kept current.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A stream is not the one that the lane started with.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A consumer cannot be pulled from.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The broker is away for longer than the window.
    #[error("broker connection unavailable (broker unreachable), exiting (coupled to the broker)")]
    BrokerGone,
    /// The broker is away for so long that no stall of this process can be the reason.
    #[error(
        "broker connection unavailable past backstop (broker unreachable), exiting (coupled to \
         the broker)"
    )]
    BrokerGonePastBackstop,
    /// The credential expired, and no renewal was proved in time.
    #[error("credential expired without renewal")]
    NotRenewed,
    /// It was started outside a runtime.
    #[error("a lane needs a Tokio runtime: start it inside one")]
    NoRuntime,
    /// It had ended before; the first caller was given the error itself.
    #[error("the lane has already ended: {0}")]
    EndedBefore(String),
    /// A component of the lane panicked; that is a defect.
    #[error("a part of the lane failed: {0}")]
    Defect(String),
}

/// Adds what was attempted to an error of the broker.
pub(crate) fn broker(what: &'static str) -> impl Fn(NatsError) -> LaneError {
    move |source| LaneError::Broker { what, source }
}
