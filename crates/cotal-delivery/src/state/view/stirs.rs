//! Who waits for somebody to come.

use tokio::sync::watch;

use super::{Feed, Progress, View};

/// Tells that somebody came or joined. What it is told of meanwhile counts once.
#[derive(Debug)]
pub(crate) struct Stirs([watch::Receiver<Progress>; 2]);

impl Stirs {
    /// Waits for a row of presence or of a member. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        let [presence, members] = &mut self.0;
        // A view that is gone stirs nothing.
        let changed = async |rows: &mut watch::Receiver<Progress>| {
            if rows.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = changed(presence) => {}
            () = changed(members) => {}
        }
    }
}

impl View {
    /// Tells of whoever comes or joins from now on.
    pub(crate) fn stirs(&self) -> Stirs {
        let rows = |feed: Feed| self.feeds[feed.index()].progress.subscribe();
        Stirs([rows(Feed::Presence), rows(Feed::Members)])
    }
}
