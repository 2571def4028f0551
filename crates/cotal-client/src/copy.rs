//! Copies of messages, each judged on its own before anything is remembered about it.
//!
//! Invariant: a copy that lies about its sender, its channel or its kind is never surfaced and
//! never becomes a key, so nobody can squat another's id.

use std::borrow::Cow;

use cotal_nats::Bytes;
use cotal_wire::envelope::{self, EnvelopeError, Message, Part};
use cotal_wire::{Channel, Principal, Role, Space};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::destination::Destination;
use crate::ledger::Key;

/// A genuine copy.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) sender: Principal,
    pub(crate) place: Destination,
    pub(crate) message: Message,
    pub(crate) body: Bytes,
    /// `None` for an id-less copy that no stream holds for this agent.
    pub(crate) key: Option<Key>,
}

/// Why a copy is not surfaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejected {
    #[error("the subject {0} is not one on which this agent gets messages")]
    Subject(String),
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error("the sender {0:?} is not a principal")]
    Sender(String),
    #[error("the message does not say which channel it was posted on")]
    NoChannel,
    #[error("a direct message must not name a channel or a role")]
    NotDirect,
    #[error("a role request must not name a channel or a recipient")]
    NotRequest,
}

/// A post from the channel stream, live or from history: its subject proves sender and channel.
pub(crate) fn post(
    space: &Space,
    subject: &str,
    body: Bytes,
    seq: Option<u64>,
) -> Result<Copy, Rejected> {
    let (sender, channel) =
        space.parse_chat(subject).ok_or_else(|| Rejected::Subject(subject.to_owned()))?;
    from_channel(sender, channel, body, seq)
}

/// A post from the agent's delivery durable: the fan-out writer proved its sender before it was
/// copied.
pub(crate) fn delivered(body: Bytes, chat_seq: Option<u64>, stored: u64) -> Result<Copy, Rejected> {
    let head = envelope::parse_head(&body)?;
    let sender = Principal::parse(&head.from).map_err(|_| Rejected::Sender(clip(&head.from)))?;
    let places = places(&body)?;
    let channel = places.channel.as_deref().ok_or(Rejected::NoChannel)?;
    let channel = Channel::parse(channel).map_err(|_| Rejected::NoChannel)?;
    let mut copy = from_channel(sender, channel, body, chat_seq)?;
    copy.key.get_or_insert(Key::StoredPost(stored));
    Ok(copy)
}

/// A direct message: its subject proves sender and recipient.
pub(crate) fn direct(
    space: &Space,
    own: &Principal,
    subject: &str,
    body: Bytes,
    stored: u64,
) -> Result<Copy, Rejected> {
    let (_, sender) = space
        .parse_inst(subject)
        .filter(|(to, _)| to == own)
        .ok_or_else(|| Rejected::Subject(subject.to_owned()))?;
    let head = envelope::parse_head(&body)?;
    let sender = real(sender)?;
    if head.from != sender.as_str() {
        let claimed = clip(&head.from);
        return Err(EnvelopeError::Sender { claimed, proven: sender }.into());
    }
    let places = places(&body)?;
    if places.channel.is_some() || places.to_service.is_some() {
        return Err(Rejected::NotDirect);
    }
    let key =
        envelope::dedup_stem(&head.id, &sender).map_or(Key::StoredDirect(stored), Key::Direct);
    Ok(Copy {
        message: read(&body, head.id, &sender),
        sender,
        place: Destination::Direct,
        body,
        key: Some(key),
    })
}

/// A role request: its subject proves sender and role.
pub(crate) fn request(
    space: &Space,
    role: &Role,
    subject: &str,
    body: &[u8],
) -> Result<(Principal, Message), Rejected> {
    let (_, sender) = space
        .parse_svc(subject)
        .filter(|(asked, _)| asked == role)
        .ok_or_else(|| Rejected::Subject(subject.to_owned()))?;
    let head = envelope::parse_head(body)?;
    let sender = real(sender)?;
    if head.from != sender.as_str() {
        let claimed = clip(&head.from);
        return Err(EnvelopeError::Sender { claimed, proven: sender }.into());
    }
    let places = places(body)?;
    if places.channel.is_some() || places.to.is_some() {
        return Err(Rejected::NotRequest);
    }
    Ok((sender.clone(), read(body, head.id, &sender)))
}

fn from_channel(
    sender: Principal,
    channel: Channel,
    body: Bytes,
    seq: Option<u64>,
) -> Result<Copy, Rejected> {
    let sender = real(sender)?;
    let head = envelope::parse_post(&body, &sender, &channel)?;
    Ok(Copy {
        key: envelope::dedup_stem(&head.id, &sender).map(Key::Post),
        message: read(&body, head.id, &sender),
        sender,
        place: Destination::Channel { channel, seq },
        body,
    })
}

fn real(sender: Principal) -> Result<Principal, Rejected> {
    if sender.has_real_owner() { Ok(sender) } else { Err(Rejected::Sender(sender.to_string())) }
}

/// A sound head is enough for a message to be surfaced: what else is in it may be of a later
/// version.
fn read(body: &[u8], id: String, sender: &Principal) -> Message {
    serde_json::from_slice(body).unwrap_or_else(|_| Message {
        id,
        ts: 0,
        space: String::new(),
        from: envelope::From { id: sender.to_string(), name: String::new(), role: None },
        channel: None,
        to: None,
        to_service: None,
        mentions: Vec::new(),
        parts: vec![Part::Other],
        reply_to: None,
        context_id: None,
    })
}

#[derive(Deserialize)]
struct Places<'a> {
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(default)]
    to: Option<IgnoredAny>,
    #[serde(default, rename = "toService")]
    to_service: Option<IgnoredAny>,
}

fn places(body: &[u8]) -> Result<Places<'_>, Rejected> {
    Ok(serde_json::from_slice(body).map_err(EnvelopeError::from)?)
}

fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space::parse("s").unwrap()
    }

    fn bob() -> Principal {
        Principal::parse("local.bob").unwrap()
    }

    fn body(json: &str) -> Bytes {
        Bytes::copy_from_slice(json.as_bytes())
    }

    const POST: &str =
        r#"{"id":"x","from":{"id":"local.alice","name":"A"},"channel":"c","parts":[]}"#;

    #[test]
    fn agt_3_all_copies_of_a_post_have_one_key_and_a_direct_message_has_another() {
        let live = post(&space(), "cotal.s.chat.local.alice.c", body(POST), None).unwrap();
        let durable = delivered(body(POST), Some(7), 40).unwrap();
        assert_eq!(live.key, durable.key);
        let channel = Channel::parse("c").unwrap();
        assert_eq!(durable.place, Destination::Channel { channel, seq: Some(7) });
        let dm = r#"{"id":"x","from":{"id":"local.alice"},"to":"local.bob"}"#;
        let dm =
            direct(&space(), &bob(), "cotal.s.inst.local.bob.local.alice", body(dm), 3).unwrap();
        assert_ne!(live.key, dm.key);
    }

    #[test]
    fn agt_3_an_empty_id_is_never_a_key() {
        let idless = POST.replace("\"x\"", "\"\"");
        let live = post(&space(), "cotal.s.chat.local.alice.c", body(&idless), None).unwrap();
        assert_eq!(live.key, None);
        let durable = delivered(body(&idless), None, 40).unwrap();
        assert_eq!(durable.key, Some(Key::StoredPost(40)));
    }

    #[test]
    fn agt_3_the_sender_is_part_of_the_key() {
        let eve = POST.replace("local.alice", "local.eve");
        let one = post(&space(), "cotal.s.chat.local.alice.c", body(POST), None).unwrap();
        let two = post(&space(), "cotal.s.chat.local.eve.c", body(&eve), None).unwrap();
        assert_ne!(one.key, two.key);
    }

    #[test]
    fn forgeries_are_no_copies() {
        let live = |subject: &str, json: &str| post(&space(), subject, body(json), None);
        assert!(live("cotal.s.chat.local.eve.c", POST).is_err());
        assert!(live("cotal.s.chat.local.alice.d", POST).is_err());
        assert!(live("cotal.t.chat.local.alice.c", POST).is_err());
        let foreign = POST.replace("local.alice", "nowhere.alice");
        assert!(live("cotal.s.chat.nowhere.alice.c", &foreign).is_err());
        for garbage in ["", "[]", "{}", r#"{"stream":"CHAT_s","seq":1}"#] {
            assert!(live("cotal.s.chat.local.alice.c", garbage).is_err(), "{garbage}");
            assert!(delivered(body(garbage), None, 1).is_err(), "{garbage}");
        }
        let dm = |subject: &str, json: &str| direct(&space(), &bob(), subject, body(json), 1);
        let sound = r#"{"id":"x","from":{"id":"local.alice"}}"#;
        assert!(dm("cotal.s.inst.local.bob.local.alice", sound).is_ok());
        assert!(dm("cotal.s.inst.local.bob.local.eve", sound).is_err());
        assert!(dm("cotal.s.inst.local.carol.local.alice", sound).is_err());
        assert!(dm("cotal.s.inst.local.bob.local.alice", POST).is_err());
    }

    #[test]
    fn a_request_is_its_senders_and_for_its_role() {
        let role = Role::parse("reviewer").unwrap();
        let judge = |subject: &str, json: &str| {
            request(&space(), &role, subject, json.as_bytes()).map(|(sender, _)| sender)
        };
        let sound = r#"{"id":"x","from":{"id":"local.alice"},"toService":"reviewer","parts":[]}"#;
        let subject = "cotal.s.svc.reviewer.local.alice";
        assert_eq!(judge(subject, sound).unwrap().as_str(), "local.alice");
        for odd in ["cotal.s.svc.cook.local.alice", "cotal.s.svc.reviewer.local.eve"] {
            assert!(judge(odd, sound).is_err(), "{odd}");
        }
        for odd in ["", "{}", r#"{"stream":"TASK_s","seq":1}"#, POST] {
            assert!(judge(subject, odd).is_err(), "{odd}");
        }
        let to = sound.replace("\"toService\"", "\"to\"");
        assert!(judge(subject, &to).is_err());
    }

    #[test]
    fn a_message_of_a_later_version_is_still_shown() {
        let odd = POST.replace("[]", r#"[{"no":"kind"}]"#);
        let copy = post(&space(), "cotal.s.chat.local.alice.c", body(&odd), None).unwrap();
        assert_eq!(copy.message.parts, [Part::Other]);
        assert_eq!(copy.body, odd.as_bytes());
    }
}
