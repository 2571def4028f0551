//! Whether a space's posts are delivered, as the broker shows it.

use cotal_manager::{Authority, BrokerAddress, Liveness, Office, Rail, stalled};
use cotal_wire::Space;
use cotal_workspace::{MeshFile, Root};

use super::Listener;
use super::finding::{CheckOutcome, Finding};
use crate::context::{CLOSE_WITHIN, tls_of};
use crate::output::told;

/// What keeps posts from being delivered. A broker that cannot be asked is told by the check of it.
pub(super) async fn of(root: &Root, mesh: &MeshFile, space: &Space) -> Vec<Finding> {
    let Ok(Listener::Own(_)) = Listener::of(root, mesh).await else { return Vec::new() };
    let Ok(authority) = Authority::open(root, space) else { return Vec::new() };
    let broken =
        |detail| Finding::new(format!("deliveries of {space}"), CheckOutcome::Broken, detail);
    match look(&authority, mesh).await {
        Ok(wrong) => wrong.into_iter().map(broken).collect(),
        Err(error) => vec![broken(told(&error))],
    }
}

async fn look(authority: &Authority, mesh: &MeshFile) -> anyhow::Result<Vec<String>> {
    let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(mesh) };
    let (own, connection) = authority.connect(Office::Operator, &address).await?;
    let space = authority.space();
    let probed = Rail::new(&connection, space, &own).probe().await;
    let wrong = stalled(&connection, space, matches!(probed, Liveness::Bound)).await;
    connection.close(CLOSE_WITHIN).await;
    Ok(wrong?)
}
