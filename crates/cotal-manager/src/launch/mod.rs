//! The broker's, the daemon's and the manager's processes: started, proven, stopped.
//!
//! Invariant: what is stopped is what was started on this root. A process is known by the lock that
//! it holds for as long as it lives ([`cotal_workspace::identity`]); a record is believed only
//! together with the process behind it.

mod broker;
mod certificate;
mod daemon;
mod manager;
mod process;
mod program;
mod tls;

pub use broker::{BrokerLaunch, moved_from, running_broker, stop_broker, store_limit};
pub use daemon::{
    Daemon, Started, WhileStopping, daemon_record, dead_daemon, running_daemon, stop_daemon,
};
pub use manager::{ManagerProcess, Readiness, manager_record, running_manager, stop_manager};
pub use process::{Process, Stop, Stopped};
pub use program::Launch;
pub use tls::{OwnCertificate, certificate_ends, ensure_certificate, judge_certificate};
