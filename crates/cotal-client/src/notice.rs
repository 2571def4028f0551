//! What an endpoint tells about itself, beside its messages.

use std::fmt;

use cotal_wire::posts::MissedPosts;
use cotal_wire::{Channel, Role, Space};

use crate::backstop::Shortfall;

/// Why the plane that was reached delivers nothing at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseCondition {
    /// No daemon holds the space's lease.
    Missing,
    /// A daemon holds it and does not serve yet, or not at the moment.
    NotReady,
    /// A daemon holds it and says that it does not serve, or its process is gone.
    NotServing,
    /// The lease is held and was not renewed since the last look, and its daemon does not answer.
    Silent,
    /// The lease row is not a lease.
    Garbled,
    /// The lease row cannot be read, for this reason.
    Unreadable(String),
}

impl fmt::Display for LeaseCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no delivery daemon holds the space's lease"),
            Self::NotReady => f.write_str("the lease is held and not ready"),
            Self::NotServing => {
                f.write_str("the lease is held, and no delivery daemon answers for the space")
            }
            Self::Silent => f.write_str("the lease is held, and its delivery daemon is silent"),
            Self::Garbled => f.write_str("the lease row is garbled"),
            Self::Unreadable(why) => write!(f, "the lease row cannot be read: {why}"),
        }
    }
}

/// Why a holder's requests wait on the queue (ANY-8).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoTakes {
    /// No daemon answers.
    NoDaemon,
    /// A daemon serves the space and does not know takes.
    DaemonPredates,
    /// The credential was minted before takes.
    CredentialPredates,
    /// The daemon, or the broker, refuses for this reason.
    Refused(String),
}

impl fmt::Display for NoTakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon => f.write_str("no delivery daemon is answering"),
            Self::DaemonPredates => {
                f.write_str("the delivery daemon predates takes: restart the daemon")
            }
            Self::CredentialPredates => f.write_str(
                "this seat's credential predates takes: respawn the seat with a new credential",
            ),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// Something about the endpoint itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The delivery durable is bound, and nothing delivers through it at the moment (AGT-1).
    NoReadyLease {
        /// The durable.
        durable: String,
        /// The space.
        space: Space,
        /// What was found instead of a ready lease.
        condition: LeaseCondition,
    },
    /// A daemon delivers again.
    LeaseReady {
        /// The space.
        space: Space,
    },
    /// Posts were lost to the cap of the agent's store before they were read: their copies are
    /// gone, the channels' history may still have them.
    PostsMissed(MissedPosts),
    /// A durable backstop that a join could not establish stands now: posts are kept from here on.
    BackstopEstablished {
        /// The channel.
        channel: Channel,
        /// The membership's generation.
        generation: u64,
    },
    /// A durable backstop that a join could not establish is refused, and not asked for any more.
    BackstopRefused {
        /// The channel.
        channel: Channel,
        /// Why.
        why: Shortfall,
    },
    /// A durable cannot be read; binding it is tried again.
    DurableUnreadable {
        /// The durable.
        durable: String,
        /// What the broker said.
        reason: String,
    },
    /// Requests to the role wait on the queue: no take can be recorded (ANY-8).
    RequestsWait {
        /// The role.
        role: Role,
        /// The space.
        space: Space,
        /// Why.
        why: NoTakes,
    },
    /// Takes are recorded again.
    RequestsServed {
        /// The role.
        role: Role,
        /// The space.
        space: Space,
    },
    /// A message was not surfaced because it is garbled or forged.
    Rejected {
        /// Where it was found.
        found_in: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A live subscription ended.
    LiveEnded {
        /// The channel.
        channel: Channel,
        /// What the broker said.
        reason: String,
    },
    /// A channel's history could not be read, wholly or in part.
    HistoryUnread {
        /// The channel.
        channel: Channel,
        /// Why.
        reason: String,
    },
    /// The agent does not show up as present.
    PresenceUnwritten {
        /// Why.
        reason: String,
    },
    /// The broker connection dropped; it is being dialled again.
    Disconnected,
    /// The broker connection is back, and the broker holds every subscription again.
    Reconnected,
    /// The broker does not accept the credential any more.
    CredentialRefused {
        /// What happened.
        reason: String,
    },
    /// Live copies came faster than they were read and were dropped; told about once a second while
    /// it lasts, each copy counted once.
    Overrun {
        /// The channel.
        channel: Channel,
        /// How many live copies were dropped since it was told last.
        dropped: u64,
        /// Whether the durable copy of each still comes. Otherwise the channel's history has them.
        durable: bool,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoReadyLease { durable, space, condition } => write!(
                f,
                "{durable} is bound in space {space}, but {condition}: nothing is delivered through it \
                 until a daemon serves here; if another plane serves {space}, reconnect against that one"
            ),
            Self::LeaseReady { space } => write!(f, "a delivery daemon serves space {space}"),
            Self::PostsMissed(MissedPosts { from, to, missed, .. }) => write!(
                f,
                "{missed} posts were lost before they were read, because more waited than are kept: they \
                 lie between number {from} and number {to}; read more often"
            ),
            Self::BackstopEstablished { channel, generation } => {
                write!(f, "{channel}: joined durable now (generation {generation})")
            }
            Self::BackstopRefused { channel, why } => {
                write!(f, "{channel}: the durable backstop is not established: {why}")
            }
            Self::DurableUnreadable { durable, reason } => {
                write!(f, "{durable} cannot be read, trying again: {reason}")
            }
            Self::RequestsWait { role, space, why } => {
                write!(f, "requests to {role} wait on the queue in space {space}: {why}")
            }
            Self::RequestsServed { role, space } => {
                write!(f, "requests to {role} are processed again in space {space}")
            }
            Self::Rejected { found_in, reason } => {
                write!(f, "a message in {found_in} was not accepted: {reason}")
            }
            Self::LiveEnded { channel, reason } => {
                write!(f, "live delivery on {channel} ended: {reason}")
            }
            Self::HistoryUnread { channel, reason } => {
                write!(f, "the history of {channel} could not be read: {reason}")
            }
            Self::PresenceUnwritten { reason } => {
                write!(f, "other agents do not see this agent as online: {reason}")
            }
            Self::Disconnected => f.write_str("the broker connection dropped; reconnecting"),
            Self::Reconnected => f.write_str("the broker connection is back"),
            Self::CredentialRefused { reason } => {
                write!(f, "the broker does not accept the credential: {reason}")
            }
            Self::Overrun { channel, dropped, durable } => {
                write!(f, "{dropped} live messages on {channel} were dropped, because they came ")?;
                f.write_str("faster than they were read: ")?;
                f.write_str(if *durable {
                    "their durable copies still come"
                } else {
                    "they are in the channel's history only, no durable copy is known to come"
                })
            }
        }
    }
}
