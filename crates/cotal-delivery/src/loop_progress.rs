//! Proof that every loop of a lane makes progress. The watchdog is told only after such a proof.
//!
//! Invariant: a loop answers a call itself, between two pieces of its work. A loop that hangs does
//! not answer, whatever the clock and the other loops do, so no timer can answer for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// The loops of a lane that did not answer when they were called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} made no progress", .0.join(", "))]
pub struct Stalled(pub Vec<&'static str>);

/// Calls every loop of a lane; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    call: Arc<watch::Sender<u64>>,
    answers: Arc<Mutex<BTreeMap<&'static str, watch::Receiver<u64>>>>,
}

impl Progress {
    /// Waits until every loop has answered a call that is made now.
    ///
    /// # Errors
    /// The loops that have not answered after `within`.
    pub async fn proven(&self, within: Duration) -> Result<(), Stalled> {
        let mut called = 0;
        self.call.send_modify(|call| {
            *call += 1;
            called = *call;
        });
        let mut silent = self.answers();
        if silent.is_empty() {
            return Err(Stalled(vec!["the lane"]));
        }
        let all = async {
            while let Some(mut first) = silent.first_entry() {
                // A loop that has ended no longer answers, and ends its lane.
                if first.get_mut().wait_for(|answer| *answer >= called).await.is_err() {
                    std::future::pending::<()>().await;
                }
                first.remove();
            }
        };
        let _ = tokio::time::timeout(within, all).await;
        silent.retain(|_, answer| *answer.borrow() < called);
        if silent.is_empty() { Ok(()) } else { Err(Stalled(silent.into_keys().collect())) }
    }

    /// Registers the loop `name` and returns its side.
    pub(crate) fn reporter(&self, name: &'static str) -> LoopReporter {
        let (answer, seen) = watch::channel(0);
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(name, seen);
        LoopReporter { call: self.call.subscribe(), answer }
    }

    fn answers(&self) -> BTreeMap<&'static str, watch::Receiver<u64>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A loop's side: it answers the calls.
#[derive(Debug)]
pub(crate) struct LoopReporter {
    call: watch::Receiver<u64>,
    answer: watch::Sender<u64>,
}

impl LoopReporter {
    /// Answers the next call. The loop must select on this together with its own work. Cancel-safe.
    pub(crate) async fn answered(&mut self) {
        let call = self.called().await;
        self.answer(call);
    }

    /// Waits for the next call, for a loop that must check something before it answers.
    /// Cancel-safe.
    pub(crate) async fn called(&mut self) -> u64 {
        if self.call.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        *self.call.borrow_and_update()
    }

    /// Answers a call.
    pub(crate) fn answer(&self, call: u64) {
        self.answer.send_replace(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn lif_16_progress_is_proven_by_every_loop_and_by_no_timer() {
        let progress = Progress::default();
        assert!(progress.proven(SOON).await.is_err(), "nothing runs yet");
        let mut reporter = progress.reporter("one");
        let lively = tokio::spawn(async move {
            loop {
                reporter.answered().await;
            }
        });
        assert_eq!(progress.proven(LATE).await, Ok(()));
        let mut hangs = progress.reporter("two");
        assert_eq!(progress.proven(SOON).await, Err(Stalled(vec!["two"])));
        hangs.answered().await;
        assert_eq!(progress.proven(SOON).await, Err(Stalled(vec!["two"])), "an old answer");
        hangs.answered().await;
        let (proven, ()) = tokio::join!(progress.proven(LATE), hangs.answered());
        assert_eq!(proven, Ok(()));
        lively.abort();
        assert_eq!(progress.proven(SOON).await, Err(Stalled(vec!["one", "two"])));
    }
}
