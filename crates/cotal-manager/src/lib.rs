//! Provisioning of spaces and agents, and the executor of everything that needs a signing key.
//!
//! Purpose: the privileged side of a mesh. It signs, so it never serves content: the delivery
//! daemon does that, and holds no signing key. Invariant: every operation can be repeated, changes
//! nothing that is right, and runs on a short-lived credential of exactly one of the wire's
//! profiles.
//!
//! - [`Authority`]: the keys of a space and the one-shot credentials of its offices.
//! - [`provision`]: streams, buckets and first rows.
//! - [`Agents`]: agents, provisioned in an order that a crash can repeat.
//! - [`ensure_daemon_credentials`]: what the daemon runs on, made and renewed.
//! - [`provision_host`], [`mint_creds`]: what a host on another machine runs on.
//! - [`write_back_rows`]: garbled ACL and channel rows, put back.
//! - [`Manager`]: the renewal owner of a space, and the keeper of its registration [`Gate`].
//! - [`launch`]: the broker's and the daemon's processes.
//! - [`Rail`]: the daemon's rails as this side asks on them.

mod agents;
mod authority;
mod claims;
pub mod clock;
mod credentials;
mod endpoints;
mod error;
mod flow;
mod gate;
mod isolate;
mod kick_signer;
pub mod launch;
mod manage;
mod mint;
mod provision;
mod rail;
mod repair;
pub mod rows;
mod usage;
mod write_back;

pub use agents::{
    Added, Agent, AgentName, Agents, Begun, Done, Losses, LostConsumer, MoreGrants, NewAgent,
    Provisioning, Retired, Retirement, Unfinished, find_losses, restore_consumers,
    unfinished_agents,
};
pub use authority::{Authority, BrokerAddress, Office};
pub use cotal_trust::UnfitError;
pub use credentials::{
    DAEMON_CREDENTIALS, Reason, Renewed, daemon_credentials, ensure_daemon_credentials,
    provision_host, read_stored_creds, renew_daemon_credentials, renew_in, set_aside_credential,
};
pub use endpoints::provision_endpoint;
pub use error::ManagerError;
pub use flow::stalled;
pub use gate::{Frozen, Gate};
pub use isolate::{Isolation, Move, Moved, isolate};
pub use kick_signer::KickSigner;
pub use manage::{
    Manager, ManagerOptions, Renewal, RenewalOutcome, Renewals, Sessions, renew_once,
};
pub use mint::{
    HostProfile, mint_connection_evictor_creds, mint_creds, mint_membership_observer_creds,
};
pub use provision::{Provisioned, Shape, provision, provision_space};
pub use rail::{Liveness, Rail};
pub use repair::SettingChange;
pub use usage::{AgentUsage, Freed, StreamUsage, Usage, free, usage};
pub use write_back::{WrittenBack, write_back_rows};
