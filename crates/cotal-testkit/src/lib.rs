//! A real broker per test, fault injection, and short ways to say what a test means.
//!
//! Every [`Mesh`] owns its temporary root, its port and its processes, and takes them down when it
//! is dropped. Nothing here is mocked: the broker is `nats-server` with JWT auth, the agents hold
//! the credentials that `cotal agent add` would mint.

mod daemon;
mod mesh;
mod peer;
mod proxy;
mod wait;

pub use daemon::DaemonProcess;
pub use mesh::{Mesh, MeshOptions, broker_binary, serving};
pub use peer::Peer;
pub use proxy::Proxy;
pub use wait::eventually;

/// Logs of a test run, shown for failing tests; `RUST_LOG` chooses what.
pub fn init_logs() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second test of the same process finds the subscriber installed already.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}
