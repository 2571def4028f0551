//! The copies of one post, as they are written into INBOX.

use cotal_nats::{Bytes, HeaderMap, Outgoing, headers};
use cotal_rules::fanout::{Copy, Plan};
use cotal_wire::envelope::{self, PostHead};
use cotal_wire::{Channel, Principal, Space};

/// Parses a post, for fan-out and for catch-up; the error says why it is none.
pub(crate) fn read_post(
    post_headers: Option<&HeaderMap>,
    payload: &[u8],
    sender: &Principal,
    channel: &Channel,
) -> Result<PostHead, String> {
    if !headers::are_readable(post_headers) {
        return Err("its headers cannot be read".to_owned());
    }
    envelope::parse_post(payload, sender, channel).map_err(|error| error.to_string())
}

/// The copies of one post, for the writer. All copies of one generation share the entry's bytes.
pub(crate) fn make_copies(
    space: &Space,
    payload: &Bytes,
    seq: u64,
    channel: &Channel,
    sender: &Principal,
    head: &PostHead,
    plan: &Plan,
) -> Vec<Outgoing> {
    let stem = envelope::dedup_stem(&head.id, sender);
    let mut bodies: Vec<(u64, Bytes)> = Vec::with_capacity(1);
    let mut body = |copy: &Copy| {
        if let Some((_, bytes)) = bodies.iter().find(|(g, _)| *g == copy.generation) {
            return bytes.clone();
        }
        let bytes = envelope::write_entry(payload, channel, seq, copy.reason, copy.generation);
        bodies.push((copy.generation, bytes.clone()));
        bytes
    };
    plan.copies
        .iter()
        .map(|copy| Outgoing {
            subject: space.dinbox(&copy.member).into(),
            msg_id: stem
                .as_deref()
                .map(|stem| envelope::dedup_key(stem, &copy.member, copy.generation)),
            number: None,
            payload: body(copy),
        })
        .collect()
}
