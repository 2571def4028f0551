//! Performs the steps of a change of a member row against the broker (`rules::membership`).

use std::time::Duration;

use cotal_nats::NatsError;
use cotal_rules::membership::{Answer, Ask, RowWrite, Target};
use cotal_wire::control::Code;
use cotal_wire::names::member_key;

use super::{Registry, RegistryError};
use crate::pipeline::join_barrier::JoinInProgress;

/// How long to wait for the connection after a request that was not answered. A lane whose broker
/// is away for longer ends.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// Performs one change.
pub(super) struct Steps<'a> {
    registry: &'a Registry,
    target: &'a Target,
    /// The key of the row.
    pub(super) key: String,
    /// Makes fan-out wait, from before the join cursor is read.
    pub(super) joining: Option<JoinInProgress>,
    failed: Option<RegistryError>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(registry: &'a Registry, target: &'a Target) -> Self {
        let key = member_key(&target.channel, &target.member);
        Self { registry, target, key, joining: None, failed: None }
    }

    /// Performs one step. An error is kept for [`Self::error`].
    pub(super) async fn perform(&mut self, ask: Ask) -> Answer {
        let error = match self.try_to(ask).await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        let answer = match &error {
            RegistryError::Nats(error) if error.is_conflict() => Answer::Conflict,
            RegistryError::Nats(error) if is_unanswered(error) => Answer::NoAnswer,
            RegistryError::NotServing => Answer::NotServing,
            RegistryError::Nats(_) | RegistryError::Refused(_) => Answer::Failed,
        };
        if answer == Answer::NoAnswer {
            // The next request shows whether the connection is back.
            let _ = self.registry.connection.connected(CONNECTED_WITHIN).await;
        }
        self.failed = Some(error);
        answer
    }

    async fn try_to(&mut self, ask: Ask) -> Result<Answer, RegistryError> {
        let (registry, channel, member) =
            (self.registry, &self.target.channel, &self.target.member);
        Ok(match ask {
            Ask::Row => Answer::Row(registry.read_row(&self.key, channel, member).await?),
            Ask::Room => {
                registry.make_room(&self.key, channel, member).await?;
                Answer::Room
            }
            Ask::Cursor => {
                let chat = registry.space.chat_stream();
                Answer::Cursor(registry.connection.last_seq(&chat).await?)
            }
            Ask::Acl => Answer::Acl(registry.read_acl(member).await?),
            Ask::Write(write) => Answer::Written(self.write(&write).await?),
            Ask::Window { after } => {
                let (end, whole) = registry.window(channel, after).await?;
                Answer::Window { end, whole }
            }
            Ask::CatchUp { .. } => {
                let why = "internal error: this change must not copy posts; please report it";
                return Err(RegistryError::refused(Code::Unavailable, why));
            }
        })
    }

    async fn write(&self, write: &RowWrite) -> Result<u64, RegistryError> {
        // A write that takes back this change's own row is made in any case, because no other
        // daemon knows of it.
        if !write.is_undo {
            self.registry.serves()?;
        }
        Ok(self.registry.write(&self.key, write).await?)
    }

    /// The last error, for a change that has failed.
    pub(super) fn error(self) -> RegistryError {
        self.failed.unwrap_or_else(|| {
            RegistryError::refused(Code::Unavailable, "the change was not made; try again")
        })
    }
}

/// Whether a write may have been stored, or may be stored later.
fn is_unanswered(error: &NatsError) -> bool {
    matches!(
        error,
        NatsError::Timeout { .. }
            | NatsError::Disconnected { .. }
            | NatsError::Closed
            | NatsError::Malformed { .. }
    )
}
