//! Which ACLs have changed: the view tells, the recall listens.

use cotal_wire::Lifecycle;
use tokio::sync::mpsc;

/// Members whose ACL changed and that were not looked at yet; beyond it the view waits.
const CHANGES: usize = 1_024;

/// The view's side: tells whose ACL changed.
pub(crate) type Changes = mpsc::Sender<Lifecycle>;

/// The recall's side.
pub(crate) type ChangedAcls = mpsc::Receiver<Lifecycle>;

/// The channel between the view and the recall.
pub(crate) fn changes() -> (Changes, ChangedAcls) {
    mpsc::channel(CHANGES)
}
