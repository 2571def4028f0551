//! Which tickets are open, and what became of their messages.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::NatsError;

/// The messages of a ticket that were not confirmed; all others were.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} of {total} messages were not confirmed, the first because: {}", failed.len(), first(failed))]
pub struct BatchError {
    /// Position in the submitted batch, and why.
    pub failed: Vec<(usize, NatsError)>,
    /// Messages in the batch.
    pub total: usize,
}

fn first(failed: &[(usize, NatsError)]) -> String {
    failed.first().map_or_else(String::new, |(_, error)| error.to_string())
}

#[derive(Debug)]
struct Open {
    remaining: usize,
    total: usize,
    failed: Vec<(usize, NatsError)>,
    tell: oneshot::Sender<Result<(), BatchError>>,
    /// Given back when the ticket resolves, which is what bounds the writer's memory.
    _permit: OwnedSemaphorePermit,
}

/// Open tickets by their number; they resolve nearly in order, so the front is short.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    first: u64,
    open: VecDeque<Option<Open>>,
    refusal: Refusal,
    is_refused: bool,
}

/// Why the broker stores nothing, as the last answer said; none once it stored again.
pub(super) type Refusal = Arc<Mutex<Option<NatsError>>>;

impl Tickets {
    /// No ticket is open; what the broker refuses is shown in `refusal`.
    pub(super) fn new(refusal: Refusal) -> Self {
        Self { refusal, ..Self::default() }
    }

    /// Notes what the last answer shows of the stream; the lock is taken only when that changes.
    fn note(&mut self, outcome: &Result<(), NatsError>) {
        let refusal = match outcome {
            Ok(()) if !self.is_refused => return,
            Ok(()) => None,
            Err(error @ (NatsError::Refused { .. } | NatsError::Denied { .. })) => {
                Some(error.clone())
            }
            Err(_) => return,
        };
        self.is_refused = refusal.is_some();
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
    }

    pub(super) fn open(
        &mut self,
        total: usize,
        tell: oneshot::Sender<Result<(), BatchError>>,
        permit: OwnedSemaphorePermit,
    ) -> u64 {
        let open = Open { remaining: total, total, failed: Vec::new(), tell, _permit: permit };
        self.open.push_back(Some(open));
        self.first + self.open.len() as u64 - 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Records the end of one message, and resolves its ticket with the last one.
    pub(super) fn settle(&mut self, ticket: u64, index: usize, outcome: Result<(), NatsError>) {
        self.note(&outcome);
        let Some(slot) = usize::try_from(ticket - self.first).ok() else {
            return;
        };
        let Some(Some(open)) = self.open.get_mut(slot) else {
            return;
        };
        if let Err(error) = outcome {
            open.failed.push((index, error));
        }
        open.remaining -= 1;
        if open.remaining == 0 {
            self.resolve(slot);
        }
    }

    fn resolve(&mut self, slot: usize) {
        let Some(Open { total, mut failed, tell, .. }) =
            self.open.get_mut(slot).and_then(Option::take)
        else {
            return;
        };
        failed.sort_by_key(|(index, _)| *index);
        // Whoever dropped the ticket does not want to know.
        let _ =
            tell.send(if failed.is_empty() { Ok(()) } else { Err(BatchError { failed, total }) });
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.first += 1;
        }
    }
}
