//! Member rows that are in memory and no longer in their bucket.
//!
//! A purge deletes messages, and no watch is told. The lane would continue to serve from memory,
//! and the next one would know of no membership. So a bucket that holds less than the view is
//! compared with it. Missing rows are written back, if their keys are still empty, and logged as an
//! error.

use cotal_nats::NatsError;
use cotal_nats::js::StreamState;
use cotal_rules::Membership;
use cotal_wire::names::member_key;
use cotal_wire::{Channel, Lifecycle};
use tracing::{error, warn};

use crate::lease::gate::Gate;
use crate::state::view::{Feed, View};

/// Writes back the rows that a purge took, if the bucket's state shows one.
pub(crate) async fn write_back(view: &View, gate: &Gate, incarnation: &str, bucket: &StreamState) {
    // A key keeps its newest revision whatever the history drops, so a row below the first sequence
    // is gone.
    let missing: Vec<_> = {
        let directory = view.directory();
        let all = directory.memberships();
        // A bucket with fewer keys than the view has rows lost some, and does not tell which.
        let lacks_keys = bucket.num_subjects < all.len() as u64;
        let gone = |row: &Membership| lacks_keys || row.revision < bucket.first_seq;
        all.into_iter().filter(|(_, _, row)| gone(row)).collect()
    };
    for (channel, member, row) in missing {
        // While this lane does not serve, the daemon that serves does it.
        if !gate.is_open() {
            return;
        }
        match write_one(view, incarnation, &channel, &member, &row).await {
            Ok(_) => error!(
                %member.principal, %channel, generation = row.generation,
                "a member row was purged from its bucket; it is written back"
            ),
            // The row is there after all, or somebody deleted it: the watch shows which.
            Err(failed) if failed.is_conflict() => {}
            Err(failed) => {
                warn!(%member.principal, %channel, %failed, "could not write back a purged member row yet");
            }
        }
    }
}

async fn write_one(
    view: &View,
    incarnation: &str,
    channel: &Channel,
    member: &Lifecycle,
    row: &Membership,
) -> Result<u64, NatsError> {
    let value = serde_json::to_vec(&row.to_row(channel, member, incarnation))
        .map_err(|e| NatsError::Malformed { what: "a purged row".into(), detail: e.to_string() })?;
    view.kv(Feed::Members).update(&member_key(channel, member), value.into(), 0).await
}
