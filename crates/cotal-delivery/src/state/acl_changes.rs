//! Reports changed ACLs from the view to the recall.

use cotal_wire::Lifecycle;
use tokio::sync::mpsc;

/// Changed ACLs that the recall has not handled yet; when the queue is full, the view waits.
const MAX_QUEUED_CHANGES: usize = 1_024;

/// The view's side: sends the member whose ACL changed.
pub(crate) type Changes = mpsc::Sender<Lifecycle>;

/// The recall's side.
pub(crate) type ChangedAcls = mpsc::Receiver<Lifecycle>;

/// The channel between the view and the recall.
pub(crate) fn changes() -> (Changes, ChangedAcls) {
    mpsc::channel(MAX_QUEUED_CHANGES)
}
