//! The delivery daemon as a library: a [`Lane`] is one space's daemon.
//!
//! ```text
//! CHAT → fanout → INBOX → reader → DLV → the member's own consumer
//! ```
//!
//! The lease gates both loops; the registry changes membership on the control rail; the view holds
//! members, ACLs and channels in memory and proves its freshness before every decision. Decisions
//! are `cotal-rules`; what is performed here is performed through `cotal-nats` alone. This crate
//! never depends on `cotal-trust`, so it cannot hold a signing key.

mod admin;
mod anycast;
mod caps;
mod clock;
mod counters;
mod credentials;
mod dead;
mod evicted;
mod fanout;
mod gate;
mod hasten;
mod intake;
mod joins;
mod lane;
mod lease;
mod members;
mod pulse;
mod queues;
mod rail;
mod reader;
mod recall;
mod registry;
mod renewal;
mod retired;
mod returned;
mod room;
mod scan;
mod view;
mod watchdog;

pub use cotal_rules::lease::Failure as LeaseFailure;
pub use cotal_rules::watchdog::Windows;
pub use credentials::CredentialError;
pub use lane::{Lane, LaneError, LaneOptions, Stage};
pub use lease::LeaseError;
pub use pulse::{Progress, Stalled};
pub use view::ViewError;
