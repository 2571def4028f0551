//! Who gets a copy of a post (FAN-1, 2, 3, 6, 7).
//!
//! A plan only routes: the trusted reader judges every copy again before anything is released.

use cotal_wire::envelope::Reason;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Lifecycle, Principal};

use crate::directory::Directory;

/// A post as the fan-out writer met it.
#[derive(Debug, Clone, Copy)]
pub struct Post<'a> {
    /// Its sequence on CHAT.
    pub seq: u64,
    /// Its sender, as the subject proves.
    pub sender: &'a Principal,
    /// Its channel.
    pub channel: &'a Channel,
    /// Who it mentions, lowercased.
    pub mentions: &'a [String],
}

/// One copy to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Whose inbox it goes to.
    pub member: Lifecycle,
    /// The membership generation it is made for; 0 for a mention.
    pub generation: u64,
    /// Why it is made.
    pub reason: Reason,
}

/// Every copy of one post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The channel's class when the post was routed.
    pub class: DeliveryClass,
    /// The copies, at most one per lifecycle.
    pub copies: Vec<Copy>,
}

/// Routes one post.
#[must_use]
pub fn plan(post: Post<'_>, dir: &Directory, now_ms: i64) -> Plan {
    let _ = (post, now_ms);
    Plan {
        class: dir.class(post.channel),
        copies: Vec::new(),
    }
}
