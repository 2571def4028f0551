//! Starts the fan-out writer.

use std::sync::Arc;

use cotal_nats::Writer;
use cotal_rules::unrouted::Arrivals;
use cotal_wire::names::FANOUT;

use super::lost_posts::LostPosts;
use super::{Fanout, FanoutParts, refusals};
use crate::consumer::ack_wait::ShortAckWait;
use crate::consumer::pull_source::{PullSource, bind};
use crate::consumer::tracker::Tracker;
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use crate::pipeline::join_barrier::JoinBarrier;
use crate::pipeline::progress::ReaderProgress;

/// Posts pulled ahead of routing; few, because each may cost a copy per member.
const PULL_POSTS: usize = 128;

/// Starts the fan-out writer. `backlog` is the last entry in INBOX before it.
pub(crate) async fn spawn(
    context: &LaneContext,
    writer: Writer,
    joins: &JoinBarrier,
    reader: ReaderProgress,
    backlog: u64,
) -> Result<(), LaneError> {
    let LaneContext { space, connection, view, gate, counters, .. } = context;
    let stream = space.chat_stream();
    // Read before the consumer info, so that what the info shows holds for every post up to it.
    let last = context.ask("cannot read CHAT", || connection.last_seq(&stream)).await?;
    let info = bind(context, &stream, &space.fanout_config(None)).await?;
    let tracker = Tracker::new(connection, &info, last);
    ShortAckWait::spawn(context, &info, || 0, tracker.is_proven_watch());
    let arrivals = Arrivals::start(info.ack_floor.stream_seq, info.delivered.stream_seq);
    let fanout = Fanout::new(FanoutParts {
        space: space.clone(),
        connection: connection.clone(),
        view: Arc::clone(view),
        writer,
        pulls: PullSource::open(context, &stream, FANOUT, PULL_POSTS).await?,
        tracker,
        gate: gate.clone(),
        counters: Arc::clone(counters),
        refusals: refusals::spawn(context),
        reader,
        backlog,
        lost_posts: LostPosts::new(context, arrivals),
        reporter: context.reporter("fan-out"),
        joins: joins.clone(),
    });
    context.spawn("fan-out", fanout.run(context.stop.clone()));
    Ok(())
}
