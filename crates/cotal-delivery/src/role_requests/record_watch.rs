//! Watches the anycast bucket, and restores records that were overwritten with garbage.

use std::sync::atomic::Ordering;

use cotal_nats::WatchEvent;
use cotal_rules::anycast::{Record, RecordWrite};
use cotal_rules::membership::Expect;
use cotal_wire::names::{Bucket, parse_request_key, request_key};
use cotal_wire::rows::RequestRow;
use tracing::{debug, error, warn};

use super::RequestKeeper;
use super::records::{StoredRecord, may_write};
use crate::state::bucket_watch::watch_all;
use crate::state::view::ViewError;

impl RequestKeeper {
    /// Watches the bucket until the watch ends for good.
    pub(super) async fn follow(&self) -> Result<(), ViewError> {
        let records = &self.records;
        let mut watch = watch_all(&records.kv).await?;
        loop {
            match watch.next().await? {
                WatchEvent::Put { key, value, revision } => {
                    let Some(seq) = parse_request_key(&key) else { continue };
                    match RequestRow::parse(&value, seq) {
                        Ok(row) => records.note(Record { row, revision }),
                        Err(why) => self.repair(seq, revision, &why.to_string()).await,
                    }
                }
                WatchEvent::Delete { key, revision, .. } => {
                    if let Some(seq) = parse_request_key(&key) {
                        records.forget(seq, revision);
                    }
                }
                WatchEvent::InitialDone => {
                    records.scanned.send_replace(true);
                }
                WatchEvent::Reset { bucket_recreated: true } => {
                    let bucket = records.space.bucket(Bucket::Anycast);
                    return Err(ViewError::Recreated { bucket });
                }
                WatchEvent::Reset { .. } | WatchEvent::Foreign { .. } => {}
            }
        }
    }

    /// Writes the last valid record over garbage, or a deletion if there was none.
    async fn repair(&self, seq: u64, revision: u64, why: &str) {
        let records = &self.records;
        records.garbled.fetch_add(1, Ordering::Relaxed);
        error!(
            space = %self.space, seq, revision, why,
            "a request record is garbled; the last valid one stays in force"
        );
        let _turn = self.turn(seq).await;
        let repaired = async {
            let StoredRecord { record, garbage } = records.standing(seq, revision).await?;
            match (record, garbage) {
                (Some(Record { row, revision }), _) => {
                    let write = RecordWrite { row, expect: Expect::Revision(revision) };
                    records.write(&write, None).await.map(drop)
                }
                (None, Some(garbage)) => {
                    may_write(&self.gate, || format!("the removal of record {seq}"))?;
                    records.kv.delete(&request_key(seq), Some(garbage)).await.map(drop)
                }
                (None, None) => Ok(()),
            }
        };
        match repaired.await {
            Ok(()) => warn!(space = %self.space, seq, "a garbled request record was repaired"),
            Err(error) if error.is_conflict() => {
                debug!(space = %self.space, seq, "a garbled request record was replaced before it could be repaired");
            }
            Err(error) => {
                warn!(space = %self.space, seq, %error, "could not repair a garbled request record");
            }
        }
    }
}
