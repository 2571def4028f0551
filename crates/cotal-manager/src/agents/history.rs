//! The end of a history read that a revoked credential left open.
//!
//! An agent reads history through a consumer of its own on CHAT, under the one name that its
//! incarnation has. The broker judges the channel when the consumer is made and never again, so one
//! that outlives its credential would go on giving what was taken away.

use std::time::Duration;

use cotal_nats::{Creds, NatsError, retry_without_responder};
use cotal_trust::{UserKey, mint_named};
use cotal_wire::Lifecycle;
use cotal_wire::profile::{AgentGrant, Profile};

use super::Agents;
use crate::authority::connect;
use crate::clock::unix_seconds;
use crate::error::{Doing as _, ManagerError};

/// How long the credential lives that this is done with, in seconds.
const READER_LIFETIME_SECS: i64 = 60;
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

impl Agents {
    /// Deletes the consumer of the incarnation's history read. Nobody but the agent itself may, so
    /// it is done in its profile, on a key of this one call, with no channel to read and none to
    /// post on.
    pub(super) async fn end_history_read(&self, lifecycle: &Lifecycle) -> Result<(), ManagerError> {
        let space = self.space();
        let grant = AgentGrant {
            lifecycle: lifecycle.clone(),
            read: Vec::new(),
            post: Vec::new(),
            role: None,
        };
        let (key, now) = (UserKey::generate(), unix_seconds());
        let profile = Profile::Agent(grant);
        let minted = mint_named(
            self.account(),
            &key,
            &profile,
            "history",
            now,
            Some(now + READER_LIFETIME_SECS),
        )?;
        let creds = Creds::parse(minted.creds.expose())?;
        let connection = connect(&self.broker, "cotal end of a history read", creds).await?;
        let (chat, consumer) = (space.chat_stream(), space.chathist_consumer(lifecycle));
        let deleted =
            retry_without_responder(|| connection.delete_consumer(&chat, &consumer)).await;
        connection.close(CLOSE_WITHIN).await;
        match deleted {
            Ok(()) | Err(NatsError::Absent { .. }) => Ok(()),
            Err(error) => Err(error).doing(|| format!("delete {consumer}")),
        }
    }
}
