//! Whom a message can reach: asked before one is sent that would reach nobody.

use std::collections::BTreeSet;

use cotal_wire::Role;

use super::Agents;
use crate::error::{Doing, ManagerError};
use crate::rows::AclRows;

impl Agents {
    /// The ACL rows of the space: every agent that there is or was.
    ///
    /// # Errors
    /// When the broker fails.
    pub async fn acl_rows(&self) -> Result<AclRows, ManagerError> {
        self.rows().await
    }

    /// Whether an agent with this role was ever provisioned. Its consumer is made with the first
    /// one and stays.
    ///
    /// # Errors
    /// When the broker fails.
    pub async fn has_been_held(&self, role: &Role) -> Result<bool, ManagerError> {
        let (stream, consumer) = (self.space().task_stream(), self.space().svc_consumer(role));
        match self.connection.consumer_info(&stream, &consumer).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_absent() => Ok(false),
            Err(error) => Err(error).doing(|| format!("ask whether anybody held the role {role}")),
        }
    }

    /// The roles that the live agents' credentials on this root name.
    #[must_use]
    pub fn roles_held(&self, rows: &AclRows) -> BTreeSet<Role> {
        let creds =
            rows.live().filter_map(|(lifecycle, _)| self.creds_of(lifecycle).ok().flatten());
        creds.filter_map(|creds| creds.claims.role()).collect()
    }
}
