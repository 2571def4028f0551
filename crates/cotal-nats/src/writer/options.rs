//! How a writer confirms, and its limits.

use std::time::Duration;

use crate::connection::Connection;

/// How messages are confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Bursts by fast ingest (ADR-50), anything else one by one.
    FastIngest,
    /// Every message by its own answer.
    Pipelined,
}

impl Engine {
    /// The fastest that stream and broker offer.
    pub fn best(connection: &Connection, allow_batched: bool) -> Self {
        if allow_batched && connection.server_at_least(2, 14, 0) {
            Self::FastIngest
        } else {
            Self::Pipelined
        }
    }
}

/// Limits of a writer.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// How to confirm.
    pub engine: Engine,
    /// Messages submitted and not yet confirmed; beyond it `submit` waits.
    pub max_pending: usize,
    /// Messages on the wire and not yet confirmed.
    pub max_in_flight: usize,
    /// Silence after which what is in flight is sent again.
    pub ack_timeout: Duration,
    /// Age at which an unconfirmed message fails.
    pub give_up_after: Duration,
}

impl WriterOptions {
    /// The defaults for this engine.
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            max_pending: 8_192,
            max_in_flight: 1_024,
            ack_timeout: Duration::from_secs(5),
            give_up_after: Duration::from_secs(20),
        }
    }
}
