//! What every case needs.

use std::path::PathBuf;

use cotal_broker::BrokerBinary;

/// The programs to measure, and how often and how much.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) broker: BrokerBinary,
    pub(crate) daemon: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) quick: bool,
    pub(crate) members: Vec<usize>,
    /// Numbers of lanes; all of the case's own when empty.
    pub(crate) lanes: Vec<usize>,
    pub(crate) trace: bool,
}
