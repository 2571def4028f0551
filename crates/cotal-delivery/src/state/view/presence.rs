//! The loss of presence: in a space of three accounts an agent can make the broker delete its
//! bucket.

use std::sync::PoisonError;

use tracing::warn;

use super::{Feed, Progress, View, ViewError};

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
