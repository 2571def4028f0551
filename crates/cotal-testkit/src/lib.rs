//! A real broker per test, fault injection, and short ways to say what a test means.
//!
//! Every [`Mesh`] owns its temporary root, its port and its processes, and takes them down when it
//! is dropped. Nothing here is mocked: the broker is `nats-server` with JWT auth, the agents hold
//! the credentials that `cotal agent add` would mint.

mod daemon;
mod god;
mod logs;
mod mesh;
mod peer;
mod proxy;
mod raw;
mod supervisor;
mod wait;

pub use cotal_manager::clock::unix_millis;
pub use daemon::DaemonProcess;
pub use god::{God, with_member};
pub use logs::{init_logs, logged};
pub use mesh::{Mesh, MeshOptions, broker_binary, serving};
pub use peer::{Peer, ask};
pub use proxy::Proxy;
pub use raw::RawPublisher;
pub use supervisor::Supervisor;
pub use wait::eventually;
