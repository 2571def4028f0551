//! The options of a host.

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::TlsMode;
use cotal_rules::upkeep::Upkeep;
use cotal_rules::watchdog::Windows;
use cotal_wire::Space;
use cotal_workspace::SecretStore;

use crate::census::kick_authority::{KickAuthority, Kicks};
use crate::lane::options::{LEASE_TTL, LaneOptions, SWEEP_EVERY};

/// Between the openings of two lanes. A thousand lanes take some seconds, so the broker can answer
/// the first ones while later ones open.
const OPEN_EVERY: Duration = Duration::from_millis(15);
/// Between two proofs that a lane makes progress; each asks the broker once.
const PROVE_EVERY: Duration = Duration::from_secs(60);

/// Bytes that a lane's connection reads at once: most lanes of a host read little, and each holds
/// its buffer all the time.
const READ_BUFFER: u16 = 16_384;

/// How to run the lanes of a host.
#[derive(Clone)]
pub struct HostOptions {
    /// The broker, such as `nats://127.0.0.1:4222`.
    pub server: String,
    /// Whether the transport of every connection must be encrypted.
    pub tls: TlsMode,
    /// How long the broker may be away before a lane closes (LIF-3, LIF-4).
    pub windows: Windows,
    /// How often the records of role requests are swept (ANY-6).
    pub sweep_every: Duration,
    /// The longest time for which a lane trusts its lease row after a write; less if the bucket
    /// keeps rows for less.
    pub lease_ttl: Duration,
    /// Signs the credentials for kicks, if the system account's seed was retained. The lanes open
    /// no kick credential in either case (EVC-5).
    pub kick_authority: Option<Arc<dyn KickAuthority>>,
    /// Between the openings of two lanes.
    pub open_every: Duration,
    /// Between two proofs that a lane makes progress. A lane whose loops do not answer is closed
    /// and reopened.
    pub prove_every: Duration,
}

impl HostOptions {
    /// Plaintext, and the default windows.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            tls: TlsMode::Plain,
            windows: Windows::new(None, None),
            sweep_every: SWEEP_EVERY,
            lease_ttl: LEASE_TTL,
            kick_authority: None,
            open_every: OPEN_EVERY,
            prove_every: PROVE_EVERY,
        }
    }

    /// The options of the lane of one space, one of `lanes`.
    pub(super) fn lane(
        &self,
        space: &Space,
        store: &Arc<dyn SecretStore>,
        lanes: usize,
    ) -> LaneOptions {
        LaneOptions {
            tls: self.tls.clone(),
            windows: self.windows,
            sweep_every: self.sweep_every,
            lease_ttl: self.lease_ttl,
            upkeep: Upkeep::of_one_in(lanes),
            read_buffer: READ_BUFFER,
            kicks: Kicks::Host(self.kick_authority.clone()),
            ..LaneOptions::new(space.clone(), self.server.as_str(), Arc::clone(store))
        }
    }
}
