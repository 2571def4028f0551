//! What the agent's store evicted before it was read, as the daemon knows it.
//!
//! Invariant: the daemon is told that the agent knows of a loss only after the caller was shown it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cotal_wire::control::op;
use cotal_wire::limits::PER_SUBJECT;
use cotal_wire::posts::{Missed, MissedArgs, MissedPosts, Told};
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::control::ControlError;
use crate::daemon_rails::DaemonRails;
use crate::notice::Notice;
use crate::sink::Sink;

/// How often the daemon is asked while the agent is close to losing posts.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// So many unread copies are close: the store keeps [`PER_SUBJECT`].
const NEAR_THE_CAP: u64 = PER_SUBJECT - PER_SUBJECT / 10;

/// Asks the daemon, and tells it what was shown. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct MissedPlane {
    plane: DaemonRails,
    /// Held through a question, so that no two overlap and each answer is compared with what it
    /// answers.
    account: Arc<Mutex<Account>>,
    wake: Arc<Notify>,
    near: Arc<AtomicBool>,
}

/// What the caller was given of what the daemon reports.
#[derive(Debug, Default)]
struct Account {
    /// By episode, how many losses are in the queue of notices, or in the hands of a caller that
    /// has not shown them.
    given: HashMap<u64, u64>,
    /// What was shown and the daemon does not know yet.
    shown: Vec<Told>,
}

impl MissedPlane {
    pub(crate) fn new(plane: &DaemonRails) -> Self {
        Self {
            plane: plane.clone(),
            account: Arc::default(),
            wake: Arc::default(),
            near: Arc::default(),
        }
    }

    /// Gives what the caller was not given before to `give`, which says whether it took it.
    pub(crate) async fn ask(
        &self,
        mut give: impl FnMut(MissedPosts) -> bool,
    ) -> Result<(), ControlError> {
        let mut account = self.account.lock().await;
        let args = MissedArgs {
            lifecycle_uid: Some(self.plane.identity().lifecycle.uid),
            told: account.shown.clone(),
        };
        let missed: Missed = self.plane.control(op::MISSED_POSTS, &args).await?;
        account.shown.clear();
        for episode in missed.episodes {
            let given = account.given.entry(episode.id).or_default();
            let news = episode.missed.saturating_sub(*given);
            if news > 0 && give(MissedPosts { missed: news, ..episode }) {
                *given += news;
            }
        }
        Ok(())
    }

    /// The caller was shown this.
    pub(crate) async fn shown(&self, episode: &MissedPosts) {
        let mut account = self.account.lock().await;
        let (id, missed) = (episode.id, episode.missed);
        account.shown.push(Told { id, missed });
        if let Some(given) = account.given.get_mut(&id) {
            *given = given.saturating_sub(missed);
        }
        account.given.retain(|_, given| *given > 0);
        self.wake.notify_one();
    }

    /// Tells the daemon what was shown, at the endpoint's end.
    pub(crate) async fn flush(&self) {
        if !self.account.lock().await.shown.is_empty() {
            // Without an answer it is shown once more, to the next endpoint.
            let _ = self.ask(|_| false).await;
        }
    }

    /// Asks soon, because a daemon was just seen.
    pub(crate) fn hurry(&self) {
        self.wake.notify_one();
    }

    /// So many copies wait at the broker behind the last one.
    pub(crate) fn behind(&self, pending: u64) {
        if pending >= NEAR_THE_CAP {
            self.near.store(true, Ordering::Relaxed);
        }
    }
}

/// The task that asks, and tells the caller.
#[derive(Debug)]
pub(crate) struct MissedWatch {
    pub(crate) missed: MissedPlane,
    pub(crate) sink: Sink,
}

impl MissedWatch {
    pub(crate) async fn run(self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.watch() => {}
        }
    }

    async fn watch(&self) {
        loop {
            let give = |episode| self.sink.try_notify(Notice::PostsMissed(episode));
            // An absent daemon is told already; it is asked when it is back.
            if let Err(error) = self.missed.ask(give).await {
                tracing::debug!(%error, "whether posts were missed is unknown");
            }
            loop {
                let woken = timeout(ASK_EVERY, self.missed.wake.notified()).await.is_ok();
                if woken || self.missed.near.swap(false, Ordering::Relaxed) {
                    break;
                }
            }
        }
    }
}
