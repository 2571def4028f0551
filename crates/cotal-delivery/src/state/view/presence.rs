//! The loss of presence: in a space of three accounts an agent can make the broker delete its
//! bucket.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::{Feed, Progress, State, View, ViewError};
use crate::clock::now_ms;

/// How often expired presence is removed. It decides nothing, so this only bounds memory.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

impl State {
    /// Removes expired presence, because no event tells that a row has expired.
    pub(super) fn expire_presence(&mut self) {
        let now = Instant::now();
        if self.presence_expired.is_none_or(|last| now.duration_since(last) >= EXPIRE_EVERY) {
            self.presence_expired = Some(now);
            self.directory.expire_presence(now_ms());
        }
    }
}

impl View {
    /// Forgets all presence. Without a bucket nobody is present. Presence is only what agents say
    /// of themselves, so its loss must not end anybody's delivery.
    pub(super) fn forget_presence(&self, why: &ViewError) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.directory.forget_presence();
        let progress = &self.feeds[Feed::Presence.index()].progress;
        let first = progress.send_replace(Progress { applied: 0, scanned: true });
        if first.applied > 0 || !first.scanned {
            warn!(space = %self.space, %why, "the presence bucket is gone; provisioning creates it again");
        }
    }
}
