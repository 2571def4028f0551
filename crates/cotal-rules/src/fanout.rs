//! Who gets a copy of a post (FAN-1, 2, 3, 6, 7).
//!
//! A plan only routes. The trusted reader judges every copy again before it releases anything.

use cotal_wire::envelope::Reason;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Lifecycle, Principal};

use crate::directory::{Directory, Eligible};

/// A post to route.
#[derive(Debug, Clone, Copy)]
pub struct Post<'a> {
    /// Its sequence on CHAT.
    pub seq: u64,
    /// Its sender, taken from the subject, which the broker enforces.
    pub sender: &'a Principal,
    /// Its channel.
    pub channel: &'a Channel,
    /// The names it mentions, in lower case.
    pub mentions: &'a [String],
}

/// One copy to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Whose inbox it goes to.
    pub member: Lifecycle,
    /// The membership generation that the copy is for; 0 for a mention.
    pub generation: u64,
    /// Why the member gets it.
    pub reason: Reason,
}

/// Every copy of one post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The channel's class when the post was routed.
    pub class: DeliveryClass,
    /// The copies, at most one per lifecycle.
    pub copies: Vec<Copy>,
    /// Members whose earlier interval decides, and is not known here. This happens only when a
    /// member left and rejoined after the post, before it was routed, and the daemon was restarted
    /// since. The shell then gives the directory the history of their keys
    /// ([`Directory::recover_member`], then [`Directory::history_read`]) and plans again.
    pub unsure: Vec<Lifecycle>,
}

/// Decides which copies a post needs. A sender gets no copy of its own post, and no lifecycle gets
/// two copies.
#[must_use]
pub fn plan(post: Post<'_>, dir: &Directory, now_ms: i64) -> Plan {
    let class = dir.class(post.channel);
    let mut plan = Plan { class, copies: Vec::new(), unsure: Vec::new() };
    match class {
        _ if !post.sender.has_real_owner() => {}
        DeliveryClass::Durable => durable(post, dir, &mut plan),
        DeliveryClass::Live => mentioned(post, dir, now_ms, &mut plan.copies),
    }
    plan
}

/// A copy for every member whose interval holds the post, activated or not (FAN-1). When the writer
/// is behind, that includes intervals that a rejoin has replaced since. The ACL is not consulted:
/// the reader judges it at the moment of release (FAN-3).
fn durable(post: Post<'_>, dir: &Directory, plan: &mut Plan) {
    for (member, eligible) in dir.eligible(post.channel, post.seq) {
        if member.principal == *post.sender {
            continue;
        }
        match eligible {
            Eligible::In(generation) => plan.copies.push(Copy {
                member: member.clone(),
                generation,
                reason: Reason::DurableChannel,
            }),
            Eligible::Unsure => plan.unsure.push(member.clone()),
        }
    }
}

/// A copy for every mentioned peer that may read the channel, joined or not (FAN-2). A post from
/// before the lifecycle was provisioned was meant for its predecessor, so it makes no copy.
fn mentioned(post: Post<'_>, dir: &Directory, now_ms: i64, copies: &mut Vec<Copy>) {
    for name in post.mentions {
        let Some(member) = dir.resolve_mention(name, now_ms) else {
            continue;
        };
        let acl = dir.acl(&member);
        let eligible = acl.allows(post.channel) && acl.covers_age(post.seq);
        let again = copies.iter().any(|copy| copy.member == member);
        if eligible && !again && member.principal != *post.sender {
            copies.push(Copy { member, generation: 0, reason: Reason::LiveMention });
        }
    }
}

#[cfg(test)]
mod tests;
