//! Everything that `status` knows.

use cotal_wire::anycast::ListedRequest;
use cotal_wire::control::DeliveryStatus;
use serde::Serialize;

use crate::commands::doctor::{Certificate, Disk};

/// Everything that `status` knows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) root: std::path::PathBuf,
    pub(super) mode: cotal_workspace::Mode,
    pub(super) durability: cotal_workspace::Durability,
    /// The disk that all of it is stored on.
    pub(super) disk: Disk,
    pub(super) broker: BrokerStatus,
    /// The broker's certificate; absent without TLS.
    pub(super) certificate: Option<Certificate>,
    pub(super) spaces: Vec<SpaceStatus>,
    /// The multi-space host of this root; absent when none runs.
    pub(super) host: Option<cotal_workspace::HostFile>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BrokerStatus {
    pub(super) server: String,
    pub(super) pid: Option<u32>,
    pub(super) version: Option<String>,
    /// Why it could not be asked.
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpaceStatus {
    pub(super) space: cotal_wire::Space,
    /// `bound`, `unbound` or `unknown`; absent on an open mesh, which has no daemon.
    pub(super) delivery: Option<&'static str>,
    pub(super) pid: Option<u32>,
    /// The manager's process.
    pub(super) manager: Option<u32>,
    /// Whether agents have an account of their own; absent where the root cannot tell.
    pub(super) isolated: Option<bool>,
    /// Why no agent may be provisioned; absent while the registration gate is open.
    pub(super) gate: Option<String>,
    /// The outer one is missing when it could not be asked, the inner one when nobody holds it.
    pub(super) lease: Option<Option<Lease>>,
    /// This and the next are the broker's to tell; missing when it could not be asked.
    pub(super) agents: Option<usize>,
    pub(super) streams: Option<Vec<StreamStatus>>,
    /// This and the next are the daemon's to tell; missing when it could not be asked.
    pub(super) counters: Option<DeliveryStatus>,
    /// The oldest role requests that stand on the queue.
    pub(super) requests: Option<Vec<ListedRequest>>,
    /// What could not be asked, and why.
    pub(super) errors: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Lease {
    pub(super) holder: String,
    pub(super) since: i64,
    pub(super) ready: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StreamStatus {
    pub(super) name: String,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) last_seq: u64,
    pub(super) consumers: u64,
}
