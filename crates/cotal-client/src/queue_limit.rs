//! How much may wait for the caller, in messages and in bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a message takes beside its body, and its body once more, because it is kept as bytes and
/// read.
const OVERHEAD: usize = 1_024;

/// How much a part of the queue may hold. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct QueueLimit {
    messages: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    most_bytes: usize,
}

/// The permit of one queued message; its room is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct QueuePermit {
    _message: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl QueueLimit {
    pub(crate) fn new(messages: usize, bytes: usize) -> Self {
        Self {
            messages: Arc::new(Semaphore::new(messages)),
            bytes: Arc::new(Semaphore::new(bytes)),
            most_bytes: bytes,
        }
    }

    /// A message that is larger than all of the room takes all of it, so that it is not stuck.
    fn cost(&self, body: usize) -> u32 {
        let cost = (body * 2 + OVERHEAD).min(self.most_bytes);
        u32::try_from(cost).unwrap_or(u32::MAX)
    }

    /// A permit for a message of this size, if there is room now.
    pub(crate) fn try_hold(&self, body: usize) -> Option<QueuePermit> {
        let message = Arc::clone(&self.messages).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(self.cost(body)).ok()?;
        Some(QueuePermit { _message: message, _bytes: bytes })
    }

    /// A permit for a message of this size, once there is room; those who wait get it in their
    /// order.
    pub(crate) async fn hold(&self, body: usize) -> Option<QueuePermit> {
        let message = Arc::clone(&self.messages).acquire_owned().await.ok()?;
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(self.cost(body)).await.ok()?;
        Some(QueuePermit { _message: message, _bytes: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_ends_by_messages_and_by_bytes_and_comes_back() {
        let few = QueueLimit::new(2, 1_000_000);
        let held = (few.try_hold(1), few.try_hold(1));
        assert!(held.0.is_some() && held.1.is_some() && few.try_hold(1).is_none());
        drop(held);
        assert!(few.try_hold(1).is_some());

        let small = QueueLimit::new(100, 10_000);
        let held = small.try_hold(4_000);
        assert!(held.is_some() && small.try_hold(4_000).is_none());
        drop(held);
        assert!(small.try_hold(1_000_000).is_some(), "one message always fits");
    }
}
