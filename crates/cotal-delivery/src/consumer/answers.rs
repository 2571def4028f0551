//! Answers to pulled messages.

use cotal_nats::NatsError;
use cotal_wire::Space;
use tracing::debug;

/// An answer that does not reach the broker costs a redelivery, never a message; so it is noted.
pub(crate) fn log_failure(space: &Space, what: &str, outcome: Result<(), NatsError>) {
    if let Err(error) = outcome {
        debug!(space = %space, %error, "could not {what}");
    }
}
