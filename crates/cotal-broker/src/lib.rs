//! Find, configure, start and stop a `nats-server`.
//!
//! The broker is a program that this project does not ship, so everything that can differ from one
//! machine to the next is settled here: which binary is used and whether it is new enough
//! ([`locate()`]), what it is told ([`ServerConfig`]), when it is ready and how it ends
//! ([`Broker`]), and what a listener says about itself before anybody authenticates ([`probe()`]).
//!
//! Invariant: a [`Broker`] that was returned is *this* process's server answering on the URL it
//! reports. A foreign server that happens to own the port is never mistaken for it.
//!
//! Nothing here reads the environment; the caller passes in what it read.

pub mod config;
pub mod descriptors;
pub mod locate;
pub mod probe;
pub mod process;
mod version;
pub mod wheel;

pub use config::{Auth, Cluster, JetStream, Jwt, ListenPort, ServerConfig, Sync, Tls};
pub use locate::{BrokerBinary, LocateError, LocateOptions, Source, cache_dir, locate};
pub use probe::{ProbeError, ServerInfo, probe};
pub use process::{Broker, BrokerError, SpawnOptions, Stopped, listens_at};
pub use version::{BadVersion, Version};
