//! Compares every stored sequence with its stream, once, before any component starts.
//!
//! A sequence that contradicts its stream is corrected by `rules::positions`, logged, and counted
//! as `corrected`, so that no post is withheld from a member, or given to one that left, without a
//! trace.

use std::sync::Arc;

use cotal_nats::js::ConsumerAction;
use cotal_nats::{Bucket as Kv, NatsError, WatchEvent};
use cotal_rules::Membership;
use cotal_rules::positions;
use cotal_wire::names::{Bucket, FANOUT, READER, member_key, parse_dead_key};
use cotal_wire::rows::{DeadRow, DeadState};
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Channel, Lifecycle};
use tracing::{error, warn};

use crate::counters::add;
use crate::lane::context::LaneContext;
use crate::state::bucket_watch::watch_all;
use crate::state::streams::Streams;
use crate::state::view::Feed;

/// Corrects the sequences that contradict their streams. The view must have been scanned.
///
/// # Errors
/// If the broker does not allow the comparison or a correction; then nothing may be served.
pub(crate) async fn correct(context: &LaneContext, streams: &Streams) -> Result<(), NatsError> {
    let space = &context.space;
    let (chat, inbox) = (space.chat_stream(), space.inbox_stream());
    let (chat_last, inbox_last) = (streams.last(&chat), streams.last(&inbox));
    correct_consumer(context, &chat, chat_last, space.fanout_config(Some(chat_last + 1))).await?;
    let reader = ConsumerConfig {
        deliver_policy: "by_start_sequence".into(),
        opt_start_seq: Some(inbox_last + 1),
        ..space.reader_config()
    };
    correct_consumer(context, &inbox, inbox_last, reader).await?;
    let beyond = context.view.directory().rows_beyond(chat_last);
    for (channel, member, row) in &beyond {
        correct_row(context, channel, member, row, chat_last).await?;
    }
    if !beyond.is_empty() {
        context.view.fresh(&[Feed::Members]).await?;
    }
    for member in context.view.lower_frontiers(chat_last) {
        add(&context.counters.corrected, 1);
        error!(
            %space, %member.principal, chat_last,
            "CHAT ends before the frontier of this lifecycle; the lifecycle now begins at the end of CHAT"
        );
    }
    correct_dead_rows(context, inbox_last).await
}

/// A consumer that has passed sequences which the stream gives out again would skip those posts.
async fn correct_consumer(
    context: &LaneContext,
    stream: &str,
    last: u64,
    anew: ConsumerConfig,
) -> Result<(), NatsError> {
    let LaneContext { space, connection, counters, .. } = context;
    let consumer = if anew.filter_subject.as_deref() == Some(space.chat_all().as_str()) {
        FANOUT
    } else {
        READER
    };
    let info = match connection.consumer_info(stream, consumer).await {
        // Whoever binds a missing consumer creates it.
        Err(error) if error.is_absent() => return Ok(()),
        info => info?,
    };
    let passed = info.ack_floor.stream_seq.max(info.delivered.stream_seq);
    if positions::resume(passed, last).is_none() {
        return Ok(());
    }
    error!(
        %space, stream, consumer, passed, last,
        "a consumer is beyond the end of its stream; it is re-created and continues after the end"
    );
    connection.delete_consumer(stream, consumer).await?;
    let filter = anew.filter_subject.clone();
    let create = ConsumerAction::Create;
    connection.create_consumer(stream, consumer, filter.as_deref(), &anew, create).await?;
    add(&counters.corrected, 1);
    Ok(())
}

/// Writes the corrected row. If the row is not of the first generation, its history is deleted too,
/// because earlier intervals may also end beyond CHAT.
async fn correct_row(
    context: &LaneContext,
    channel: &Channel,
    member: &Lifecycle,
    row: &Membership,
    last: u64,
) -> Result<(), NatsError> {
    let kv = context.view.kv(Feed::Members);
    let value =
        serde_json::to_vec(&row.to_row(channel, member, &context.incarnation)).map_err(|e| {
            NatsError::Malformed { what: "a corrected row".into(), detail: e.to_string() }
        })?;
    let key = member_key(channel, member);
    let is_open = row.is_open();
    let written = if row.generation > 1 {
        kv.replace(&key, value.into(), row.revision).await
    } else {
        kv.update(&key, value.into(), row.revision).await
    };
    match written {
        Ok(_) => {
            add(&context.counters.corrected, 1);
            error!(
                space = %context.space, %member.principal, %channel, chat_last = last, is_open,
                "CHAT ends before a cursor of this membership; an open membership now begins at the \
                 end of CHAT, a closed one ends there"
            );
            Ok(())
        }
        // Somebody deleted it, or stored garbage over it: the watch shows what is stored now.
        Err(error) if error.is_conflict() => {
            warn!(space = %context.space, %error, "a member row changed while it was corrected");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A dead row beyond the end of INBOX would deliver whichever entry gets its sequence next.
async fn correct_dead_rows(context: &LaneContext, last: u64) -> Result<(), NatsError> {
    let kv: Kv = context.kv(Bucket::Dead);
    let mut watch = watch_all(&kv).await?;
    loop {
        let (key, value, revision) = match watch.next().await? {
            WatchEvent::Put { key, value, revision } => (key, value, revision),
            WatchEvent::InitialDone => return Ok(()),
            _ => continue,
        };
        let Some(seq) = parse_dead_key(&key).filter(|seq| positions::is_gone(*seq, last)) else {
            continue;
        };
        match kv.delete(&key, Some(revision)).await {
            Ok(_) => {}
            Err(error) if error.is_conflict() => continue,
            Err(error) => return Err(error),
        }
        let counters = Arc::clone(&context.counters);
        add(&counters.corrected, 1);
        let row = DeadRow::parse(&value, seq).ok();
        let owner = row.as_ref().map(|row| row.owner.clone());
        if let Some(row) = row.filter(|row| row.state == DeadState::Parked) {
            counters.add_missed(&row.owner, 1);
        }
        error!(
            space = %context.space, seq, inbox_last = last, owner = owner.map(|it| it.to_string()),
            "INBOX ends before a parked or given-up entry: the entry is lost, and its row is deleted"
        );
    }
}
