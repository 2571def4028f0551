//! The path of a post: CHAT → fan-out → INBOX → reader → DLV.

pub(crate) mod fanout;
pub(crate) mod in_flight;
pub(crate) mod join_barrier;
pub(crate) mod overflow;
pub(crate) mod parked;
pub(crate) mod progress;
pub(crate) mod reader;
pub(crate) mod recall;

use std::sync::Arc;

use cotal_nats::{Engine, Writer, WriterOptions};

use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use crate::state::acl_changes::ChangedAcls;
use in_flight::InFlightFence;
use join_barrier::JoinBarrier;
use parked::store::DeadStore;
use progress::ReaderProgress;
use reader::waiting::SharedWaiting;
use recall::Recaller;

/// What the other components use of the pipeline.
pub(crate) struct Pipeline {
    /// Writes into INBOX, for the catch-up of joins.
    pub(crate) inbox: Writer,
    /// Writes into DLV; the lease's proof of progress asks it whether the broker stores.
    pub(crate) dlv: Writer,
    pub(crate) progress: ReaderProgress,
    pub(crate) waiting: SharedWaiting,
    pub(crate) recaller: Recaller,
}

/// Starts the pipeline from its end, so that the reader runs before anything is routed.
pub(crate) async fn spawn(
    context: &LaneContext,
    joins: &JoinBarrier,
    changed_acls: ChangedAcls,
) -> Result<Pipeline, LaneError> {
    let inbox = writer(context, &context.space.inbox_stream()).await?;
    let dlv = writer(context, &context.space.dlv_stream()).await?;
    let dead = DeadStore::new(&context.connection, &context.space);
    let overflow = overflow::spawn(context).await?;
    let in_flight: Arc<InFlightFence> = Arc::default();
    let (fence, hand_off) = (Arc::clone(&in_flight), dlv.clone());
    let reader =
        reader::start::spawn(context, hand_off, dead.clone(), overflow.clone(), fence).await?;
    let progress = reader.progress.clone();
    fanout::start::spawn(context, inbox.clone(), joins, progress.clone(), reader.backlog).await?;
    parked::retrier::spawn(context, dead, overflow.clone(), Arc::clone(&in_flight));
    let recaller = recall::spawn(context, in_flight, overflow, changed_acls);
    Ok(Pipeline { inbox, dlv, progress, waiting: reader.waiting, recaller })
}

async fn writer(context: &LaneContext, stream: &str) -> Result<Writer, LaneError> {
    let LaneContext { connection, gate, .. } = context;
    let info = context.ask("cannot read a stream", || connection.stream_info(stream)).await?;
    let engine = Engine::best(connection, info.config.allow_batched);
    let start = || {
        let (options, gate) = (WriterOptions::new(engine), gate.clone());
        Writer::start_while(connection, options, move || gate.is_open())
    };
    let (writer, _task) = context.ask("cannot start a writer", start).await?;
    Ok(writer)
}
