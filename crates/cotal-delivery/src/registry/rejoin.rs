//! A rejoin keeps what its member's earlier memberships still owe.
//!
//! Posts of an earlier interval may be on their way when its member joins again, and whose they are
//! is told by its rows alone. The bucket keeps a few rows of each key, so a membership is begun only
//! when none that is still needed is pushed out by it.

use std::time::Duration;

use cotal_nats::NatsError;
use cotal_wire::control::Code;
use cotal_wire::limits::HISTORY;
use cotal_wire::names::{FANOUT, READER};
use cotal_wire::rows::MemberRow;
use cotal_wire::{Channel, Lifecycle};
use tokio::time::{sleep, timeout};

use super::{Registry, RegistryError};
use crate::view::Feed;

/// What a membership writes: an opened row, an activated one and a closed one.
const ROWS: usize = 3;
/// How long a rejoin waits for posts of earlier memberships; clients wait for 20 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// The broker tells nobody how far a consumer has come.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Registry {
    /// Waits until every closed row that the next membership would push out has served its purpose.
    pub(super) async fn make_room(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<(), RegistryError> {
        let history = self.view.kv(Feed::Members).history(key).await?;
        let pushed_out = history.len().saturating_sub(usize::from(HISTORY) - ROWS);
        let closed = history[..pushed_out].iter().filter_map(|entry| {
            let row = MemberRow::parse(entry.live()?, channel, member).ok()?;
            row.leave_cursor.filter(|left| *left > row.join_cursor)
        });
        let Some(last) = closed.max() else {
            return Ok(());
        };
        match timeout(PATIENCE, self.worked_off(last)).await {
            Ok(done) => Ok(done?),
            Err(_) => {
                let why = "posts of an earlier membership are still being delivered; try again";
                Err(RegistryError::refused(Code::NotReady, why))
            }
        }
    }

    /// Waits until every post up to `cursor` is copied, and every copy judged.
    async fn worked_off(&self, cursor: u64) -> Result<(), NatsError> {
        self.passed(&self.space.chat_stream(), FANOUT, cursor).await?;
        let inbox = self.space.inbox_stream();
        let copied = self.connection.last_seq(&inbox).await?;
        self.passed(&inbox, READER, copied).await
    }

    async fn passed(&self, stream: &str, consumer: &str, seq: u64) -> Result<(), NatsError> {
        loop {
            let info = self.connection.consumer_info(stream, consumer).await?;
            let idle = info.num_pending == 0 && info.num_ack_pending == 0;
            if idle || info.ack_floor.stream_seq >= seq {
                return Ok(());
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
