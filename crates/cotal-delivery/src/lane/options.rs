//! The options of a lane.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::TlsMode;
use cotal_rules::upkeep::Upkeep;
use cotal_rules::watchdog::Windows;
use cotal_wire::Space;
use cotal_workspace::SecretStore;

use crate::census::kick_authority::Kicks;

/// How often the records of role requests are swept.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// The time to live of the lease bucket (`docs/wire.md` §4).
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(30);

/// Bytes that the resident connection reads at once.
const READ_BUFFER: u16 = u16::MAX;

/// How to run a lane.
#[derive(Clone)]
pub struct LaneOptions {
    /// The space.
    pub space: Space,
    /// The broker, such as `nats://127.0.0.1:4222`.
    pub server: String,
    /// Whether the transport must be encrypted.
    pub tls: TlsMode,
    /// Where the lane's credentials are kept.
    pub store: Arc<dyn SecretStore>,
    /// How long the broker may be away before the lane ends (LIF-3, LIF-4).
    pub windows: Windows,
    /// How often the records of role requests are swept (ANY-6).
    pub sweep_every: Duration,
    /// The longest time for which the lane trusts its lease row after a write; less if the bucket
    /// keeps rows for less. Three renewals fit into it.
    pub lease_ttl: Duration,
    /// How often the lane looks whether everything still stands.
    pub upkeep: Upkeep,
    /// Bytes that the resident connection reads at once, and holds for as long as it stands.
    pub read_buffer: u16,
    /// Who kicks the connections that an eviction finds.
    pub kicks: Kicks,
}

impl LaneOptions {
    /// Plaintext, and the default window of 15 s.
    pub fn new(space: Space, server: impl Into<String>, store: Arc<dyn SecretStore>) -> Self {
        Self {
            space,
            server: server.into(),
            tls: TlsMode::Plain,
            store,
            windows: Windows::new(None, None),
            sweep_every: SWEEP_EVERY,
            lease_ttl: LEASE_TTL,
            upkeep: Upkeep::default(),
            read_buffer: READ_BUFFER,
            kicks: Kicks::Own,
        }
    }
}
