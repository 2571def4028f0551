//! The verdict on one entry.

use cotal_rules::authorize::{self, Verdict};
use cotal_rules::directory::Directory;
use cotal_wire::Lifecycle;
use cotal_wire::envelope::InboxEntry;

/// Judges an entry of `member` by what the view knows now.
pub(crate) fn judge(member: &Lifecycle, entry: &InboxEntry, directory: &Directory) -> Verdict {
    let InboxEntry { channel, seq, reason, generation, .. } = entry;
    authorize::verdict(member, channel, *seq, *reason, *generation, directory)
}
