//! The streams that a lane works on, and whether they are still the same.
//!
//! Everything that a lane holds in memory, and every consumer it has bound, refers to sequences of
//! these streams. A stream that was deleted and created again, or that went back to an earlier
//! state, gives the same sequences to other messages. So the lane remembers each stream's creation
//! time and last sequence, and ends when one no longer fits. The next start compares what is stored
//! with the streams as they are then (`state::sequence_check`).

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::js::StreamInfo;
use cotal_nats::{Connection, NatsError};
use cotal_wire::Space;
use cotal_wire::names::Bucket;
use futures_util::future::try_join_all;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::state::purged_rows;
use crate::state::stream_error::StreamError;
use crate::state::view::View;

/// The buckets whose rows the lane holds in memory. The lease keeper checks the lease's bucket
/// itself; presence is remembered for seconds only.
const BUCKETS: [Bucket; 4] = [Bucket::Members, Bucket::Acl, Bucket::Channels, Bucket::Dead];

/// The streams of a lane as they were last seen.
#[derive(Debug)]
pub(crate) struct Streams {
    connection: Connection,
    known: Vec<KnownStream>,
    members: String,
    view: Arc<View>,
    gate: Gate,
    incarnation: String,
}

#[derive(Debug)]
struct KnownStream {
    stream: String,
    created: String,
    last: u64,
}

impl KnownStream {
    fn compare(&mut self, info: &StreamInfo) -> Result<(), StreamError> {
        let stream = || self.stream.clone();
        if info.created != self.created {
            return Err(StreamError::Recreated { stream: stream() });
        }
        let (seen, last) = (self.last, info.state.last_seq);
        if last < seen {
            return Err(StreamError::WentBack { stream: stream(), seen, last });
        }
        self.last = last;
        Ok(())
    }
}

/// Reads the streams as they are now.
///
/// # Errors
/// If one cannot be read.
pub(crate) async fn streams(context: &LaneContext) -> Result<Streams, NatsError> {
    let LaneContext { space, connection, .. } = context;
    let known = names(space).into_iter().map(|stream| async move {
        let info = connection.stream_info(&stream).await?;
        let (created, last) = (info.created, info.state.last_seq);
        Ok::<_, NatsError>(KnownStream { stream, created, last })
    });
    let known = try_join_all(known).await?;
    Ok(Streams {
        connection: connection.clone(),
        known,
        members: space.kv_stream(Bucket::Members),
        view: Arc::clone(&context.view),
        gate: context.gate.clone(),
        incarnation: context.incarnation.clone(),
    })
}

fn names(space: &Space) -> Vec<String> {
    let streams = [space.chat_stream(), space.inbox_stream(), space.dlv_stream()];
    let buckets = BUCKETS.map(|bucket| space.kv_stream(bucket));
    streams.into_iter().chain(buckets).collect()
}

impl Streams {
    /// The end of `stream` when it was read; 0 for a stream that the lane does not work on.
    pub(crate) fn last(&self, stream: &str) -> u64 {
        self.known.iter().find(|known| known.stream == stream).map_or(0, |known| known.last)
    }

    /// Checks the streams once in `every`, and whenever the connection is back, until told to stop.
    /// A stream that is deleted in between ends its consumers, so the lane pulls nothing from its
    /// successor until then, and a broker that restores a stream drops its connections.
    pub(crate) async fn run(
        mut self,
        every: Duration,
        stop: CancellationToken,
    ) -> Result<(), StreamError> {
        let mut link = self.connection.state();
        let mut check = interval(every);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let drops = link.borrow_and_update().drops;
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = check.tick() => {}
                Ok(_) = link.wait_for(|link| link.is_connected() && link.drops != drops) => {}
            }
            for known in &mut self.known {
                let info = tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    info = self.connection.stream_info(&known.stream) => info,
                };
                match info {
                    Ok(info) => {
                        known.compare(&info)?;
                        if known.stream == self.members {
                            let (view, gate) = (&self.view, &self.gate);
                            purged_rows::write_back(view, gate, &self.incarnation, &info.state)
                                .await;
                        }
                    }
                    Err(failed) if failed.is_absent() => {
                        return Err(StreamError::Gone { stream: known.stream.clone() });
                    }
                    // The watchdog handles a broker that is away.
                    Err(failed) => {
                        debug!(stream = known.stream, %failed, "could not check a stream");
                    }
                }
            }
        }
    }
}
