//! The product's lane in a process of its own, for when no `cotal` binary is given.

use std::path::Path;
use std::sync::Arc;

use cotal_delivery::{Lane, LaneOptions, Stage};
use cotal_wire::Space;
use cotal_workspace::{FileStore, Root};
use tokio::signal::unix::{SignalKind, signal};

/// Serves until SIGTERM.
pub(crate) async fn run(space: &str, root: &Path, server: &str) -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut terminate = signal(SignalKind::terminate())?;
    let store = Arc::new(FileStore::new(Root::init(root)?));
    let mut lane = Lane::start(LaneOptions::new(Space::parse(space)?, server, store));
    let mut stage = lane.stage();
    if matches!(
        *stage.wait_for(|s| matches!(s, Stage::Ready | Stage::Ended { .. })).await?,
        Stage::Ready
    ) {
        eprintln!("serving");
    }
    tokio::select! {
        _ = terminate.recv() => lane.stop(),
        ended = lane.ended() => return Ok(ended?),
    }
    Ok(lane.ended().await?)
}
