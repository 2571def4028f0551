//! The durable half of a join: what it can be.

use std::fmt;
use std::time::Duration;

use cotal_nats::Operation;
use cotal_wire::control::Code;

use crate::control::ControlError;

/// Why a durable channel's backstop is not established.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortfall {
    /// No daemon serves the space.
    NoDaemon,
    /// A daemon may be there and did not reply in time.
    Silent {
        /// How long it was waited for.
        after: Duration,
    },
    /// The broker forbids this credential the request.
    Denied {
        /// What was attempted.
        operation: Operation,
        /// On which subject.
        subject: String,
    },
    /// Part of what was to be copied is gone already.
    Evicted,
    /// A newer join or leave came between.
    Superseded,
    /// The daemon refused.
    Refused {
        /// What kind of refusal.
        code: Option<Code>,
        /// The daemon's sentence.
        message: String,
    },
    /// The connection closed before the reply.
    ConnectionLost,
    /// The endpoint was closed before the reply.
    Stopped,
    /// The request or its reply failed otherwise.
    Failed(String),
}

impl Shortfall {
    /// Whether the endpoint goes on trying by itself, and tells with
    /// [`Notice::BackstopEstablished`] or [`Notice::BackstopRefused`] what came of it. What a
    /// caller or an operator must change first is not tried again.
    ///
    /// [`Notice::BackstopEstablished`]: crate::Notice::BackstopEstablished
    /// [`Notice::BackstopRefused`]: crate::Notice::BackstopRefused
    #[must_use]
    pub fn is_retried(&self) -> bool {
        match self {
            Self::NoDaemon
            | Self::Silent { .. }
            | Self::Evicted
            | Self::ConnectionLost
            | Self::Failed(_) => true,
            Self::Refused { code, .. } => {
                matches!(code, Some(Code::NotReady | Code::Unavailable | Code::NotProvisioned))
            }
            Self::Denied { .. } | Self::Superseded | Self::Stopped => false,
        }
    }
}

impl From<ControlError> for Shortfall {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Denied { operation, subject } => Self::Denied { operation, subject },
            ControlError::NoResponders { .. } => Self::NoDaemon,
            ControlError::Timeout { after, .. } => Self::Silent { after },
            ControlError::Refused { code, message, .. } => Self::Refused { code, message },
            ControlError::ConnectionLost => Self::ConnectionLost,
            ControlError::Stopped => Self::Stopped,
            ControlError::Malformed(_) => Self::Failed(error.to_string()),
            ControlError::Nats(error) => Self::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon => f.write_str("no delivery daemon answers"),
            Self::Silent { after } => {
                write!(f, "the delivery daemon did not reply within {after:?}")
            }
            Self::Denied { operation, subject } => {
                write!(f, "the broker forbids this credential to {operation} {subject}")
            }
            Self::Evicted => f.write_str("part of what was posted meanwhile is gone already"),
            Self::Superseded => f.write_str("a newer join or leave came between"),
            Self::Refused { message, .. } => write!(f, "the delivery daemon refused: {message}"),
            Self::ConnectionLost => f.write_str("the broker connection closed before the reply"),
            Self::Stopped => f.write_str("the endpoint was closed before the reply"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// The durable half of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backstop {
    /// Posts are kept while the agent is away.
    Durable {
        /// The membership's generation.
        generation: u64,
    },
    /// The channel is durable, and they are not kept, for this reason.
    Unestablished(Shortfall),
    /// The channel is live: nothing but mentions is ever kept.
    NotDurable,
}
