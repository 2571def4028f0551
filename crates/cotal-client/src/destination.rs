//! Where a message was sent to, and on which way it came.

use std::fmt;

use cotal_wire::Channel;

/// Where a message was sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A channel.
    Channel {
        /// The kind of credential.
        channel: Channel,
        /// Its number in the channel stream, where the copy tells it.
        seq: Option<u64>,
    },
    /// This agent alone.
    Direct,
}

impl Destination {
    /// The channel, unless it is a direct message.
    #[must_use]
    pub fn channel(&self) -> Option<&Channel> {
        match self {
            Self::Channel { channel, .. } => Some(channel),
            Self::Direct => None,
        }
    }
}

/// The way on which a message reached this endpoint first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// While it was being posted.
    Live,
    /// From the channel's history.
    Backfilled,
    /// Through the agent's delivery durable.
    Durable,
    /// Through the agent's direct-message durable.
    Direct,
}

impl Source {
    /// As in listings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Backfilled => "backfilled",
            Self::Durable => "durable",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
