//! The sweep: checks every record at start and every ten minutes (ANY-6). It completes a notice or
//! a deletion that a crash left undone, and removes a record a day after its request has left the
//! queue.

use std::sync::Arc;
use std::time::Duration;

use cotal_rules::anycast::{self as rules, KEEP_MS, Record, SweepStep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{RequestKeeper, WRITE_ATTEMPTS};
use crate::clock::now_ms;
use crate::registry::RegistryError;
use crate::state::view::ViewError;

impl RequestKeeper {
    /// Watches the records and sweeps them until told to stop.
    pub(super) async fn run(
        self: Arc<Self>,
        every: Duration,
        stop: CancellationToken,
    ) -> Result<(), ViewError> {
        let sweeping = async {
            let mut gate = self.gate.clone();
            self.records.scanned().await;
            loop {
                gate.open().await;
                self.sweep().await;
                tokio::time::sleep(every).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = self.follow() => ended,
            () = sweeping => Ok(()),
        }
    }

    async fn sweep(&self) {
        let due: Vec<u64> = {
            let known = self.records.known();
            known.iter().filter(|(_, record)| is_due(record)).map(|(&seq, _)| seq).collect()
        };
        let mut failed = 0;
        for &seq in &due {
            if let Err(error) = self.sweep_one(seq).await {
                failed += 1;
                debug!(space = %self.space, seq, %error, "a request record could not be swept");
            }
        }
        if failed > 0 {
            warn!(space = %self.space, failed, "some request records could not be swept; the next sweep retries them");
        }
    }

    async fn sweep_one(&self, seq: u64) -> Result<(), RegistryError> {
        let _turn = self.turn(seq).await;
        for _ in 0..WRITE_ATTEMPTS {
            let looked = self.look(seq).await?;
            let Some(record) = looked.record() else { return Ok(()) };
            let done = match rules::sweep(record, looked.seen(seq)) {
                SweepStep::Keep => return Ok(()),
                SweepStep::Notify => self.settle(record).await,
                SweepStep::Delete => self.delete(seq, &looked).await,
                SweepStep::Write(write) => self.records.write(&write, None).await.map(drop),
                SweepStep::Remove { revision } => self.records.remove(seq, revision).await,
            };
            match done {
                Err(error) if !error.is_conflict() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether a record must be checked. If its request has left the queue, that is not needed until
/// its day is over, because the sequence never returns on the same TASK.
fn is_due(record: &Record) -> bool {
    let row = &record.row;
    let waits = row.gone > 0 && now_ms().saturating_sub(row.gone) < KEEP_MS;
    !waits || rules::owed(row, None).is_some()
}
