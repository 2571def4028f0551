//! Answers to pulled messages.

use cotal_nats::NatsError;
use cotal_wire::Space;
use tracing::debug;

/// Logs an answer that did not reach the broker. That costs a redelivery, never a message.
pub(crate) fn log_failure(space: &Space, what: &str, outcome: Result<(), NatsError>) {
    if let Err(error) = outcome {
        debug!(space = %space, %error, "could not {what}");
    }
}
