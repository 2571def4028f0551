//! Starts the reader, and gives other components access to it.

use std::sync::Arc;

use cotal_nats::Writer;
use cotal_wire::names::READER;

use super::discarded::DiscardScan;
use super::retired::Remover;
use super::waiting::SharedWaiting;
use super::{Reader, ReaderParts};
use crate::consumer::ack_wait::ShortAckWait;
use crate::consumer::pull_source::{PullSource, bind};
use crate::consumer::tracker::Tracker;
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use crate::pipeline::in_flight::InFlightFence;
use crate::pipeline::overflow::OverflowReports;
use crate::pipeline::parked::store::DeadStore;
use crate::pipeline::progress::{ReaderProgress, reader_progress};

/// Entries pulled ahead of judging.
const PULL_ENTRIES: usize = 2_000;

/// What other components use of the reader.
pub(crate) struct ReaderState {
    /// The last entry in INBOX when the reader started.
    pub(crate) backlog: u64,
    pub(crate) progress: ReaderProgress,
    pub(crate) waiting: SharedWaiting,
}

/// Starts the reader.
pub(crate) async fn spawn(
    context: &LaneContext,
    writer: Writer,
    dead: DeadStore,
    overflow: OverflowReports,
    in_flight: Arc<InFlightFence>,
) -> Result<ReaderState, LaneError> {
    let LaneContext { space, connection, view, gate, counters, .. } = context;
    let stream = space.inbox_stream();
    // Read before the consumer info, so that what the info shows holds for every entry up to it.
    let backlog = context.ask("cannot read INBOX", || connection.last_seq(&stream)).await?;
    let info = bind(context, &stream, &space.reader_config()).await?;
    let tracker = Tracker::new(connection, &info, backlog);
    let waiting = SharedWaiting::default();
    let on_purpose = waiting.clone();
    let unanswered = move || on_purpose.len();
    ShortAckWait::spawn(context, &info, unanswered, tracker.is_proven_watch());
    let (publisher, progress) = reader_progress();
    let reader = Reader::new(ReaderParts {
        space: space.clone(),
        connection: connection.clone(),
        view: Arc::clone(view),
        writer,
        pulls: PullSource::open(context, &stream, READER, PULL_ENTRIES).await?,
        tracker,
        progress: publisher,
        gate: gate.clone(),
        counters: Arc::clone(counters),
        in_flight,
        dead,
        overflow,
        waiting: waiting.clone(),
        remover: Remover::new(context),
        discard_scan: DiscardScan::new(space, connection),
        reporter: context.reporter("the reader"),
    });
    context.spawn("the reader", reader.run(context.stop.clone()));
    Ok(ReaderState { backlog, progress, waiting })
}
