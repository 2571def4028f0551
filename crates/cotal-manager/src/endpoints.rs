//! Workflow endpoints: the consumer of their fired timers, and their credential.

use cotal_trust::{UserKey, mint_profile};
use cotal_wire::EndpointName;
use cotal_wire::profile::Profile;
use cotal_workspace::Secret;

use crate::authority::{Authority, BrokerAddress, Office};
use crate::clock::unix_seconds;
use crate::error::ManagerError;
use crate::provision::ensure_consumer;

/// How long closing the provisioner's connection may take.
const CLOSED_WITHIN: std::time::Duration = std::time::Duration::from_secs(2);

/// Makes the consumer that an endpoint reads its fired timers through, unless it is there, and
/// signs a credential of the endpoint for `seconds`.
///
/// # Errors
/// When the broker does not do what it is asked, or nothing can be signed; running it again
/// continues.
pub async fn provision_endpoint(
    authority: &Authority,
    broker: &BrokerAddress,
    endpoint: &EndpointName,
    seconds: i64,
) -> Result<Secret, ManagerError> {
    let (_, connection) = authority.connect(Office::Provisioner, broker).await?;
    let space = authority.space();
    let made = ensure_consumer(&connection, &space.ept_stream(), &space.ept_config(endpoint)).await;
    connection.close(CLOSED_WITHIN).await;
    made?;
    let (key, now) = (UserKey::generate(), unix_seconds());
    let profile = Profile::Workflow(endpoint.clone());
    Ok(mint_profile(authority.account(), &key, &profile, now, Some(now + seconds))?.creds)
}
