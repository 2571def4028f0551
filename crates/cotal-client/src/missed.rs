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
use crate::notice::Notice;
use crate::plane::Plane;
use crate::sink::Sink;

/// How often the daemon is asked while the agent is close to losing posts.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// So many unread copies are close: the store keeps [`PER_SUBJECT`].
const NEAR: u64 = PER_SUBJECT - PER_SUBJECT / 10;

/// Asks the daemon, and tells it what was shown. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct MissedPlane {
    plane: Plane,
    /// What was shown and the daemon does not know yet. Held through a question, so that no two overlap.
    shown: Arc<Mutex<Vec<Told>>>,
    wake: Arc<Notify>,
    near: Arc<AtomicBool>,
}

impl MissedPlane {
    pub(crate) fn new(plane: &Plane) -> Self {
        Self {
            plane: plane.clone(),
            shown: Arc::default(),
            wake: Arc::default(),
            near: Arc::default(),
        }
    }

    /// What the agent has not been shown.
    pub(crate) async fn ask(&self) -> Result<Vec<MissedPosts>, ControlError> {
        let mut shown = self.shown.lock().await;
        let args = MissedArgs {
            lifecycle_uid: Some(self.plane.identity().lifecycle.uid),
            told: shown.clone(),
        };
        let missed: Missed = self.plane.control(op::MISSED_POSTS, &args).await?;
        shown.clear();
        Ok(missed.episodes)
    }

    /// The caller was shown these.
    pub(crate) async fn shown(&self, episode: &MissedPosts) {
        self.shown.lock().await.push(Told { id: episode.id, missed: episode.missed });
        self.wake.notify_one();
    }

    /// Tells the daemon what was shown, at the endpoint's end.
    pub(crate) async fn flush(&self) {
        if !self.shown.lock().await.is_empty() {
            // Without an answer it is shown once more, to the next endpoint.
            let _ = self.ask().await;
        }
    }

    /// Asks soon, because a daemon was just seen.
    pub(crate) fn hurry(&self) {
        self.wake.notify_one();
    }

    /// So many copies wait at the broker behind the last one.
    pub(crate) fn behind(&self, pending: u64) {
        if pending >= NEAR {
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
        // By episode, how much of it stands in the queue of notices or was shown.
        let mut queued = HashMap::new();
        loop {
            match self.missed.ask().await {
                Ok(episodes) => self.tell(episodes, &mut queued),
                // An absent daemon is told already; it is asked when it is back.
                Err(error) => tracing::debug!(%error, "whether posts were missed is unknown"),
            }
            loop {
                let woken = timeout(ASK_EVERY, self.missed.wake.notified()).await.is_ok();
                if woken || self.missed.near.swap(false, Ordering::Relaxed) {
                    break;
                }
            }
        }
    }

    fn tell(&self, episodes: Vec<MissedPosts>, queued: &mut HashMap<u64, u64>) {
        queued.retain(|id, _| episodes.iter().any(|episode| episode.id == *id));
        for episode in episodes {
            let (id, missed) = (episode.id, episode.missed);
            let known = queued.get(&id).copied().unwrap_or_default();
            let news = MissedPosts { missed: missed.saturating_sub(known), ..episode };
            if news.missed > 0 && self.sink.try_notify(Notice::PostsMissed(news)) {
                queued.insert(id, missed);
            }
        }
    }
}
