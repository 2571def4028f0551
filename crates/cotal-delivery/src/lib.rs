//! The delivery daemon as a library: a [`Lane`] is one space's daemon.
//!
//! ```text
//! CHAT → fanout → INBOX → reader → DLV → the member's own consumer
//! ```
//!
//! Both loops run only while the lease is held. The registry changes memberships on request. The
//! view holds members, ACLs and channels in memory, and proves before every decision that they are
//! current. Decisions are made by `cotal-rules`; only `cotal-nats` talks to the broker. This crate
//! never depends on `cotal-trust`, so it cannot hold a signing key.
//!
//! # Embedding
//!
//! A [`Lane`] serves one space, a [`Host`] serves many. Both run on the caller's tokio runtime,
//! read their credentials from the [`SecretStore`] that they are given, and take nothing else from
//! their surroundings: no working directory, signals, environment or process exit. They log through
//! `tracing`, to whatever subscriber the program installed. Every type in their signatures is
//! exported here. `examples/two_spaces.rs` runs two spaces in one process.
//!
//! | future | if it is dropped |
//! |---|---|
//! | [`Lane::readiness`], [`Lane::ended`] | nothing changes |
//! | [`Lane::drain`] | the lane continues to drain |
//! | [`Lane::close`], [`Host::close`] | aborted without a release: the lease expires by itself |
//! | [`Host::set_spaces`] | changes that have begun continue; call it again for the rest |
//! | a [`Lane`] or [`Host`] itself | aborted without a release: the lease expires by itself |

mod census;
mod clock;
mod consumer;
mod control;
mod counters;
mod credentials;
mod daemon_message;
mod feed;
mod host;
mod lane;
mod lease;
mod loop_progress;
mod pipeline;
mod registry;
mod role_requests;
mod sidecar;
mod state;
mod striped_locks;
mod timers;

pub use census::kick_authority::{KickAuthority, Kicks};
pub use cotal_nats::TlsMode;
pub use cotal_rules::lease::Failure as LeaseFailure;
pub use cotal_rules::upkeep::Upkeep;
pub use cotal_rules::watchdog::Windows;
pub use cotal_wire::Space;
pub use cotal_workspace::{
    FileStore, MemoryStore, Secret, SecretKey, SecretKind, SecretStore, StoreError, StoreIdentity,
};
pub use credentials::CredentialError;
pub use host::Host;
pub use host::board::{LaneState, LaneStatus};
pub use host::options::HostOptions;
pub use lane::Lane;
pub use lane::error::LaneError;
pub use lane::options::LaneOptions;
pub use lane::stage::Stage;
pub use lease::error::LeaseError;
pub use loop_progress::{Progress, Stalled};
pub use state::stream_error::StreamError;
pub use state::view::ViewError;
