//! How to pull, and why a pull brings nothing.

use std::time::Duration;

use crate::error::NatsError;

/// Heartbeats in the life of one pull, where few are asked for. The broker demands two.
const HEARTBEATS_A_PULL: u32 = 8;

/// How to pull.
#[derive(Clone, Copy, Debug)]
pub struct PullOptions {
    /// Messages asked for and not yet delivered.
    pub batch: usize,
    /// Bytes per pull request; 0 is no limit.
    pub max_bytes: usize,
    /// Lifetime of one pull request at the broker.
    pub expires: Duration,
    /// The broker says this often that it is there; silence for twice as long is an error.
    pub idle_heartbeat: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            batch: 1_000,
            max_bytes: 0,
            expires: Duration::from_secs(30),
            idle_heartbeat: Duration::from_secs(5),
        }
    }
}

impl PullOptions {
    /// The same with heartbeats that lie at least `apart`, and pulls that live for several of them.
    pub(crate) fn no_more_often_than(self, apart: Duration) -> Self {
        Self {
            idle_heartbeat: self.idle_heartbeat.max(apart),
            expires: self.expires.max(apart * HEARTBEATS_A_PULL),
            ..self
        }
    }
}

/// When a batch is large enough not to wait for more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gather {
    /// With as many messages no more are waited for.
    pub enough: usize,
    /// How long more are waited for.
    pub within: Duration,
}

/// Why a pull brought nothing. After [`PullError::is_fatal`] the consumer must be opened anew.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PullError {
    /// Someone deleted the consumer while it was pulled from.
    #[error("consumer {consumer} on {stream} was deleted")]
    ConsumerDeleted {
        /// Its stream.
        stream: String,
        /// Its name.
        consumer: String,
    },
    /// There is no such consumer (or no such stream).
    #[error("there is no consumer {consumer} on {stream}")]
    NoSuchConsumer {
        /// Its stream.
        stream: String,
        /// Its name.
        consumer: String,
    },
    /// Neither messages nor heartbeats came; pulls are sent anew at the next call.
    #[error("no heartbeat of consumer {consumer} on {stream} for {silence:?}")]
    MissedHeartbeat {
        /// Its stream.
        stream: String,
        /// Its name.
        consumer: String,
        /// How long nothing came.
        silence: Duration,
    },
    /// The broker ended the pull for its own reason.
    #[error("the broker ended the pull from {consumer} on {stream}: {description} (code {code})")]
    Refused {
        /// Its stream.
        stream: String,
        /// Its name.
        consumer: String,
        /// HTTP-like class.
        code: u16,
        /// The broker's sentence, verbatim.
        description: String,
    },
    /// Denied, closed, and what else can befall a connection.
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl PullError {
    /// Whether pulling on is pointless.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::ConsumerDeleted { .. } | Self::NoSuchConsumer { .. } => true,
            Self::MissedHeartbeat { .. } | Self::Refused { .. } => false,
            Self::Nats(error) => matches!(error, NatsError::Denied { .. } | NatsError::Closed),
        }
    }
}
