//! What is demanded of the transport to the broker.

use std::path::PathBuf;
use std::time::Duration;

/// How long the broker may take to answer a dial.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The transport that is demanded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Plaintext unless the broker itself asks for TLS.
    #[default]
    Plain,
    /// TLS or nothing: a plaintext listener is refused.
    Required {
        /// Trusted roots in PEM; the system's when absent.
        ca: Option<PathBuf>,
    },
}
