//! Tells every listener everything, and keeps little while there is nothing to tell.
//!
//! Invariant: a listener is told what was sent since it began to listen, in order, or learns how
//! much it missed. Nothing is allocated ahead: a host has thousands of connections, and most of
//! them are never told anything.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Why a listener is told nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// It was too slow for this many.
    #[error("{0} were missed")]
    Lagged(u64),
    /// Nothing will be sent any more.
    #[error("nothing will be sent any more")]
    Closed,
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Broadcast<T> {
    kept: Arc<Mutex<Kept<T>>>,
    /// How many were sent.
    sent: watch::Sender<u64>,
    /// How many are kept for slow listeners.
    most: usize,
}

#[derive(Debug)]
struct Kept<T> {
    /// The number of the first.
    first: u64,
    items: VecDeque<T>,
}

/// A receiving side.
#[derive(Debug)]
pub struct Listener<T> {
    kept: Arc<Mutex<Kept<T>>>,
    sent: watch::Receiver<u64>,
    next: u64,
}

impl<T: Clone> Broadcast<T> {
    /// Keeps the last `most` for slow listeners.
    pub(crate) fn new(most: usize) -> Self {
        let kept = Kept { first: 0, items: VecDeque::new() };
        Self { kept: Arc::new(Mutex::new(kept)), sent: watch::Sender::new(0), most }
    }

    /// Tells everyone who listens.
    pub(crate) fn send(&self, item: T) {
        let mut kept = lock(&self.kept);
        if self.sent.receiver_count() == 0 {
            kept.first += kept.items.len() as u64 + 1;
            kept.items = VecDeque::new();
        } else {
            if kept.items.len() == self.most {
                kept.items.pop_front();
                kept.first += 1;
            }
            kept.items.push_back(item);
        }
        let sent = kept.first + kept.items.len() as u64;
        drop(kept);
        // Two senders may come here in either order.
        self.sent.send_if_modified(|now| {
            let is_newer = *now < sent;
            *now = sent.max(*now);
            is_newer
        });
    }

    /// Listens from now on.
    pub(crate) fn subscribe(&self) -> Listener<T> {
        // The receiver comes first: what is sent from here on is kept for it.
        let sent = self.sent.subscribe();
        let kept = lock(&self.kept);
        let next = kept.first + kept.items.len() as u64;
        drop(kept);
        Listener { kept: Arc::clone(&self.kept), sent, next }
    }
}

impl<T: Clone> Listener<T> {
    /// The next. Cancel-safe.
    ///
    /// # Errors
    /// When some were missed, or none can come any more.
    pub async fn recv(&mut self) -> Result<T, RecvError> {
        loop {
            if let Some(told) = self.take() {
                return told;
            }
            let next = self.next;
            if self.sent.wait_for(|sent| *sent > next).await.is_err() {
                return self.take().unwrap_or(Err(RecvError::Closed));
            }
        }
    }

    fn take(&mut self) -> Option<Result<T, RecvError>> {
        let kept = lock(&self.kept);
        if let Some(missed) = kept.first.checked_sub(self.next).filter(|missed| *missed > 0) {
            self.next = kept.first;
            return Some(Err(RecvError::Lagged(missed)));
        }
        let at = usize::try_from(self.next - kept.first).ok()?;
        let item = kept.items.get(at)?.clone();
        self.next += 1;
        Some(Ok(item))
    }
}

fn lock<T>(kept: &Mutex<Kept<T>>) -> MutexGuard<'_, Kept<T>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_is_told_everything_since_or_how_much_it_missed() {
        let all = Broadcast::new(2);
        all.send(0);
        let mut early = all.subscribe();
        all.send(1);
        let mut late = all.subscribe();
        all.send(2);
        assert_eq!((early.recv().await, early.recv().await), (Ok(1), Ok(2)));
        assert_eq!(late.recv().await, Ok(2));
        for n in 3..6 {
            all.send(n);
        }
        assert_eq!(early.recv().await, Err(RecvError::Lagged(1)));
        assert_eq!((early.recv().await, early.recv().await), (Ok(4), Ok(5)));
        let (told, ()) = tokio::join!(early.recv(), async { all.send(6) });
        assert_eq!(told, Ok(6));
        drop(all);
        assert_eq!(late.recv().await, Err(RecvError::Lagged(2)));
        assert_eq!((late.recv().await, late.recv().await), (Ok(5), Ok(6)));
        assert_eq!(late.recv().await, Err(RecvError::Closed));
    }

    #[test]
    fn nothing_is_kept_while_nobody_listens() {
        let all = Broadcast::new(2);
        drop(all.subscribe());
        all.send(1);
        assert_eq!(lock(&all.kept).items.capacity(), 0);
    }
}
