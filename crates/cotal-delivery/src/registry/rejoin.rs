//! A rejoin must not push out rows that undelivered posts still need.
//!
//! Posts of an earlier interval may still be in progress when the member joins again, and only its
//! old rows tell that they are its own. The bucket keeps a few rows of each key, so a new
//! membership begins only when it pushes out no row that is still needed.

use std::time::Duration;

use cotal_nats::{Bucket, NatsError, WatchEvent};
use cotal_wire::control::Code;
use cotal_wire::limits::HISTORY;
use cotal_wire::names::{self, FANOUT, READER, parse_dead_key};
use cotal_wire::rows::{DeadRow, DeadState, MemberRow};
use cotal_wire::{Channel, Lifecycle};
use tokio::time::{sleep, timeout};

use super::{Registry, RegistryError};
use crate::state::view::Feed;

/// Rows that one membership writes: opened, activated and closed.
const ROWS_PER_MEMBERSHIP: usize = 3;
/// How long a rejoin waits for posts of earlier memberships; clients wait for 20 s.
const REJOIN_WAIT: Duration = Duration::from_secs(10);
/// The broker sends no event when a consumer makes progress, so it is asked this often.
const PROGRESS_POLL_EVERY: Duration = Duration::from_millis(50);
/// How often the dead bucket is read for parked entries.
const PARKED_CHECK_EVERY: Duration = Duration::from_secs(1);

impl Registry {
    /// Waits until no closed row that the next membership would push out is needed any more.
    pub(super) async fn make_room(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<(), RegistryError> {
        let history = self.view.kv(Feed::Members).history(key).await?;
        let pushed_out = history.len().saturating_sub(usize::from(HISTORY) - ROWS_PER_MEMBERSHIP);
        let closed = history[..pushed_out].iter().filter_map(|entry| {
            let row = MemberRow::parse(entry.live()?, channel, member).ok()?;
            row.leave_cursor.filter(|left| *left > row.join_cursor)
        });
        let Some(last) = closed.max() else {
            return Ok(());
        };
        match timeout(REJOIN_WAIT, self.worked_off(channel, member, last)).await {
            Ok(done) => Ok(done?),
            Err(_) => {
                let why = "posts of an earlier membership are still being delivered; try again";
                Err(RegistryError::refused(Code::NotReady, why))
            }
        }
    }

    /// Waits until every post up to `cursor` is copied and every copy judged, and no entry of the
    /// member on the channel is parked.
    async fn worked_off(
        &self,
        channel: &Channel,
        member: &Lifecycle,
        cursor: u64,
    ) -> Result<(), NatsError> {
        let chat = self.space.chat_stream();
        while !self.has_passed(&chat, FANOUT, cursor).await? {
            sleep(PROGRESS_POLL_EVERY).await;
        }
        let inbox = self.space.inbox_stream();
        let copied = self.connection.last_seq(&inbox).await?;
        // The reader may have processed everything long ago, while another owner's waiting entry
        // holds the consumer's ack floor down.
        while self.reader.done() < copied && !self.has_passed(&inbox, READER, copied).await? {
            sleep(PROGRESS_POLL_EVERY).await;
        }
        while self.is_parked(channel, member).await? {
            sleep(PARKED_CHECK_EVERY).await;
        }
        Ok(())
    }

    async fn has_passed(&self, stream: &str, consumer: &str, seq: u64) -> Result<bool, NatsError> {
        let info = self.connection.consumer_info(stream, consumer).await?;
        let idle = info.num_pending == 0 && info.num_ack_pending == 0;
        Ok(idle || info.ack_floor.stream_seq >= seq)
    }

    /// Whether an entry of the member on the channel is parked.
    async fn is_parked(&self, channel: &Channel, member: &Lifecycle) -> Result<bool, NatsError> {
        let dead = Bucket::new(&self.connection, &self.space.bucket(names::Bucket::Dead));
        if self.connection.stream_state(dead.stream()).await?.messages == 0 {
            return Ok(false);
        }
        let mut watch = dead.watch_all().await?;
        loop {
            match watch.next().await? {
                WatchEvent::Put { key, value, .. } => {
                    let row = parse_dead_key(key.as_str())
                        .and_then(|seq| DeadRow::parse(&value, seq).ok())
                        .filter(|row| row.state == DeadState::Parked);
                    if row.is_some_and(|row| row.channel == *channel && row.member() == *member) {
                        return Ok(true);
                    }
                }
                WatchEvent::InitialDone => return Ok(false),
                _ => {}
            }
        }
    }
}
