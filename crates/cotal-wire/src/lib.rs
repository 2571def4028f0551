//! The Cotal wire contract: every name, shape and permission that crosses a process boundary.
//!
//! Purpose: a value of one of these types is well-formed by construction, and no subject, stream,
//! consumer, bucket or key is spelled anywhere else. Invariant: no I/O, no clock, no randomness.
//! The rules come from the project's `docs/wire.md`; each module names its section.

pub mod accounts;
pub mod anycast;
pub mod attempts;
pub mod channel;
pub mod control;
pub mod creds;
pub mod envelope;
pub mod ids;
mod json;
pub mod limits;
pub mod names;
pub mod permissions;
pub mod posts;
pub mod profile;
pub mod rows;
pub mod streams;
pub mod timers;

pub use channel::{Channel, ChannelPattern};
pub use ids::{ConnId, EndpointName, Lifecycle, LifecycleUid, Principal, Role};
pub use names::Space;
pub use timers::Timer;
