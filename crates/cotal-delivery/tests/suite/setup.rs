//! Set-ups that many tests share.

use cotal_delivery::Lane;
use cotal_testkit::{God, Mesh, Peer};

/// A mesh with a serving daemon, and alice, who may read and post everywhere.
pub(crate) async fn start() -> (Mesh, Lane, Peer, God) {
    let mesh = Mesh::start().await;
    let lane = mesh.lane().await;
    let alice = mesh.peer("alice", &[">"], &[">"]).await;
    let god = God::of(&mesh).await;
    (mesh, lane, alice, god)
}
