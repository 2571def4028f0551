//! The manager's side of the admin rail, as a bare protocol client.

use std::time::Duration;

use cotal_nats::{Connection, NatsError};
use cotal_wire::control::{DeliveryStatus, Reply, op};
use cotal_wire::names::DELIVERY_ADMIN;
use cotal_wire::profile::Profile;
use cotal_wire::{Principal, Space, creds};
use serde_json::{Value, json};

use crate::mesh::Mesh;
use crate::peer::ask;

/// A connection of the `supervisor` profile.
#[derive(Debug)]
pub struct Supervisor {
    /// The connection.
    pub connection: Connection,
    /// Who it is.
    pub principal: Principal,
    space: Space,
}

impl Supervisor {
    /// A caller that is `principal` on `connection`.
    #[must_use]
    pub fn new(connection: Connection, principal: Principal, space: Space) -> Self {
        Self { connection, principal, space }
    }

    /// Of the first space of `mesh`.
    ///
    /// # Panics
    /// When the broker does not take it.
    pub async fn of(mesh: &Mesh) -> Self {
        let text = mesh.creds(Profile::Supervisor);
        let claims = creds::Creds::parse(&text).expect("a credential").claims;
        Self {
            connection: mesh.connect(&text).await,
            principal: claims.principal().expect("a principal"),
            space: mesh.space().clone(),
        }
    }

    /// An admin request.
    ///
    /// # Errors
    /// What the broker says, or a timeout.
    ///
    /// # Panics
    /// When the reply is not one.
    pub async fn request(&self, op: &str, args: Value) -> Result<Reply, NatsError> {
        let subject = self.space.ctl(DELIVERY_ADMIN, &self.principal);
        let from = json!({ "id": self.principal, "name": "test" });
        let body = json!({ "op": op, "args": args, "from": from }).to_string();
        let reply = ask(&self.connection, subject, body.into(), Duration::from_secs(15)).await?;
        Ok(serde_json::from_slice(&reply).expect("a reply"))
    }

    /// What the daemon counts.
    ///
    /// # Panics
    /// When it does not say.
    pub async fn status(&self) -> DeliveryStatus {
        let reply = self.request(op::DELIVERY_STATUS, json!({})).await.expect("an answer");
        serde_json::from_value(reply.data.expect("a status")).expect("a status")
    }
}
