//! How far the reader has provably processed INBOX. The fan-out writer and the registry wait for
//! it.

use std::sync::Arc;

use tokio::sync::watch;

/// The reader's side: it publishes its progress, and sees what others wait for.
#[derive(Debug)]
pub(crate) struct ProgressPublisher {
    done: watch::Sender<u64>,
    awaited: watch::Receiver<u64>,
}

/// The side of those who wait for the reader; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReaderProgress {
    done: watch::Receiver<u64>,
    awaited: Arc<watch::Sender<u64>>,
}

/// A reader that has processed nothing yet, and the handle to wait for it.
pub(crate) fn reader_progress() -> (ProgressPublisher, ReaderProgress) {
    let (done, seen) = watch::channel(0);
    let (announced, awaited) = watch::channel(0);
    let progress = ReaderProgress { done: seen, awaited: Arc::new(announced) };
    (ProgressPublisher { done, awaited }, progress)
}

impl ProgressPublisher {
    /// Publishes that every entry up to `seq` has been processed.
    pub(crate) fn publish(&self, seq: u64) {
        raise(&self.done, seq);
    }

    /// The highest sequence of INBOX that somebody waits for. INBOX had given it out before the
    /// wait began.
    pub(crate) fn awaited(&self) -> u64 {
        *self.awaited.borrow()
    }

    /// Returns when somebody waits for a higher sequence. Cancel-safe.
    pub(crate) async fn awaited_changed(&mut self) {
        if self.awaited.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn raise(value: &watch::Sender<u64>, to: u64) {
    value.send_if_modified(|value| {
        let rises = *value < to;
        *value = to.max(*value);
        rises
    });
}

impl ReaderProgress {
    /// Every entry up to this sequence has been processed at least once.
    pub(crate) fn done(&self) -> u64 {
        *self.done.borrow()
    }

    /// Announces that somebody waits for `mark`, a sequence that INBOX has given out. The reader
    /// then asks the broker for its progress, in case the message at `mark` is gone and never
    /// comes.
    pub(crate) fn announce(&self, mark: u64) {
        raise(&self.awaited, mark);
    }

    /// Returns when `done` has changed. Pends for ever once the reader has ended. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        if self.done.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until every entry up to `mark` has been processed; `false` if the reader has ended.
    pub(crate) async fn passes(&mut self, mark: u64) -> bool {
        self.announce(mark);
        self.done.wait_for(|done| *done >= mark).await.is_ok()
    }
}
