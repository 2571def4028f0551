//! Messages that the daemon itself sends to an agent.

use cotal_wire::envelope::{From, Message, Part};
use cotal_wire::names::DELIVERY;
use cotal_wire::{Principal, Space};

/// A direct message from the daemon's own principal.
pub(crate) fn daemon_message(
    space: &Space,
    own: &Principal,
    to: &Principal,
    id: &str,
    at: i64,
    parts: Vec<Part>,
) -> Message {
    Message {
        id: id.to_owned(),
        ts: at,
        space: space.to_string(),
        from: From {
            id: own.to_string(),
            name: DELIVERY.to_owned(),
            role: Some(DELIVERY.to_owned()),
        },
        channel: None,
        to: Some(to.to_string()),
        to_service: None,
        mentions: Vec::new(),
        parts,
        reply_to: None,
        context_id: None,
    }
}
