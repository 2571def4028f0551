//! Who gets a copy of a post (FAN-1, 2, 3, 6, 7).
//!
//! A plan only routes: the trusted reader judges every copy again before anything is released.

use cotal_wire::envelope::Reason;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Lifecycle, Principal};

use crate::directory::{Directory, Eligible};

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
    /// Members that rejoined after the post, whose earlier intervals are not known here. The shell
    /// gives the directory their keys' histories ([`Directory::recover_member`], then
    /// [`Directory::history_read`]) and plans again; this is empty but for a writer that is behind
    /// a leave and a rejoin and was started since.
    pub unsure: Vec<Lifecycle>,
}

/// Routes one post. A member never gets its own principal's post, and no lifecycle gets two copies.
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

/// Every member whose interval holds the post, whatever `activated` says (FAN-1); a writer that is
/// behind also serves the intervals that a rejoin has replaced since. The ACL is not asked: it is
/// the reader's to judge, at the moment of release (FAN-3).
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

/// Every mentioned peer that may read the channel, joined or not (FAN-2). A post from before the
/// lifecycle was provisioned is a predecessor's.
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
