//! How the reader is started, and what others may ask of it.

use std::sync::Arc;

use cotal_nats::Writer;
use cotal_rules::waiting::Waiting;
use cotal_wire::names::READER;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Reader;
use super::discarded::DiscardScan;
use super::retired::Remover;
use super::waiting::WaitingList;
use crate::consumer::ack_wait::ShortAckWait;
use crate::consumer::pull_source::{PullSource, bind};
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use crate::pipeline::overflow::OverflowReports;
use crate::pipeline::parked::DeadStore;
use crate::pipeline::progress::{Batches, ReaderProgress};

/// Entries pulled ahead of judging.
const PULL_ENTRIES: usize = 2_000;

/// What others may ask of the reader.
pub(crate) struct ReaderState {
    /// The last entry that stood in INBOX when it started.
    pub(crate) backlog: u64,
    pub(crate) progress: watch::Receiver<ReaderProgress>,
    pub(crate) batches: watch::Receiver<Batches>,
    pub(crate) waiting_list: WaitingList,
}

/// Starts the reader.
pub(crate) async fn spawn(
    context: &LaneContext,
    writer: Writer,
    dead: DeadStore,
    overflow: OverflowReports,
) -> Result<ReaderState, LaneError> {
    let LaneContext { space, connection, view, gate, counters, .. } = context;
    let stream = space.inbox_stream();
    let info = bind(context, &stream, &space.reader_config()).await?;
    ShortAckWait::spawn(context, &stream, &info, Some(Arc::clone(counters)));
    let progress = Arc::new(watch::Sender::new(ReaderProgress::default()));
    if info.num_pending == 0 && info.num_ack_pending == 0 {
        progress.send_replace(ReaderProgress::idle());
    }
    let backlog = context.ask("cannot read INBOX", || connection.last_seq(&stream)).await?;
    let batches: Arc<watch::Sender<Batches>> = Arc::default();
    let waiting_list = WaitingList::default();
    let reader = Reader {
        space: space.clone(),
        view: Arc::clone(view),
        writer,
        pulls: PullSource::open(context, &stream, READER, PULL_ENTRIES).await?,
        gate: gate.clone(),
        counters: Arc::clone(counters),
        progress: Arc::clone(&progress),
        batches: Arc::clone(&batches),
        dead,
        overflow,
        waiting: Waiting::default(),
        waiting_list: waiting_list.clone(),
        remover: Remover::new(context),
        removals: JoinSet::new(),
        records: JoinSet::new(),
        discard_scan: DiscardScan::new(space, connection),
        floor: info.ack_floor.stream_seq,
        beat: context.reporter("the reader"),
    };
    context.spawn("the reader", reader.run(context.stop.clone()));
    let (progress, batches) = (progress.subscribe(), batches.subscribe());
    Ok(ReaderState { backlog, progress, batches, waiting_list })
}
