//! The decisions of the delivery service as pure functions and small state machines.
//!
//! Every decision of the daemon is made here, over wire types, and returned as data; the daemon
//! then acts on it. Invariant: no I/O, no clock, no randomness. `now_ms` and ids are arguments, so
//! a table can test every decision and a model every interleaving.

pub mod anycast;
pub mod authorize;
pub mod backoff;
pub mod cadence;
pub mod directory;
pub mod eviction;
pub mod family;
pub mod fanout;
pub mod feed;
pub mod lease;
pub mod lifecycle;
pub mod membership;
pub mod misses;
pub mod overflow;
pub mod positions;
pub mod progress;
pub mod refusals;
pub mod renewal;
pub mod reopen;
pub mod shares;
pub mod timers;
pub mod trim;
pub mod unrouted;
pub mod upkeep;
pub mod waiting;
pub mod watchdog;

#[cfg(test)]
mod testing;

pub use authorize::{DenyReason, Verdict, verdict};
pub use directory::{Acl, Applied, Directory, GarbledMember, Membership, Resolved};
pub use fanout::{Copy, Plan, Post, plan};
pub use lease::LeaseKeeper;
