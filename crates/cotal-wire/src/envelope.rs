//! Messages and inbox entries (`wire.md` §5).
//!
//! A message is kept as its own bytes: what is not understood here is passed on untouched.

use std::borrow::Cow;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::channel::Channel;
use crate::ids::{Lifecycle, Principal};
use crate::json::object;
use crate::limits::{MAX_MENTIONS, MAX_VERBATIM_ID};

/// Why bytes are not a message or an entry.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// Not UTF-8, wherever in it: a string that nobody reads counts too.
    #[error("malformed envelope: it is not UTF-8: {0}")]
    Encoding(#[from] std::str::Utf8Error),
    /// Not the JSON of the shape that was expected.
    #[error("malformed envelope: {0}")]
    Json(#[from] serde_json::Error),
    /// `from.id` claims another sender than the subject proves.
    #[error("the message claims to be from {claimed}, its subject proves {proven}")]
    Sender {
        /// What the body says.
        claimed: String,
        /// What the broker enforced.
        proven: Principal,
    },
    /// The body names another place than the subject.
    #[error("the message does not name the channel of its subject, {0}")]
    Channel(Channel),
}

/// Who sent a message, as the sender writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct From {
    /// `<owner>.<actor>`; receivers check it against the subject.
    pub id: String,
    /// The display name.
    #[serde(default)]
    pub name: String,
    /// The role, when the sender has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// One part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Part {
    /// Text for a reader.
    Text {
        /// The text.
        text: String,
    },
    /// Data for a program.
    Data {
        /// Any JSON.
        data: serde_json::Value,
    },
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// A message as a client writes and shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// The sender's id for the message; `""` for none.
    pub id: String,
    /// When it was written, Unix milliseconds.
    #[serde(default)]
    pub ts: i64,
    /// The space.
    #[serde(default)]
    pub space: String,
    /// The sender.
    pub from: From,
    /// The channel of a post.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The recipient of a direct message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The role of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_service: Option<String>,
    /// Lowercased peer names.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "all_names")]
    pub mentions: Vec<String>,
    /// The content.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// The id of the message that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// The conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
}

impl Part {
    /// The text of the text parts, one a line.
    #[must_use]
    pub fn texts(parts: &[Self]) -> String {
        let texts = parts.iter().filter_map(|part| match part {
            Self::Text { text } => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl Message {
    /// The text parts, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        Part::texts(&self.parts)
    }
}

/// What the fan-out writer needs of a post; everything else stays in the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostHead {
    /// The sender's id for the post; empty for none.
    pub id: String,
    /// Who is mentioned, lowercased, at most [`MAX_MENTIONS`].
    pub mentions: Vec<String>,
}

#[derive(Deserialize)]
struct RawPost<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    from: RawFrom<'a>,
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    to: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "toService")]
    to_service: Option<&'a RawValue>,
    #[serde(borrow, default)]
    mentions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawFrom<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}

/// Reads a post found under the subject of `sender` on `channel`.
///
/// # Errors
/// When the body is not a message, claims another sender, or does not name exactly that channel
/// (FAN-6): a member reads the channel from the body, so a body that lies about it is a forgery.
pub fn parse_post(
    payload: &[u8],
    sender: &Principal,
    channel: &Channel,
) -> Result<PostHead, EnvelopeError> {
    // JSON readers skip strings that they do not need unread; an entry around this is read whole.
    std::str::from_utf8(payload)?;
    let raw: RawPost<'_> = object(payload)?;
    if raw.from.id != sender.as_str() {
        let claimed = raw.from.id.chars().take(64).collect();
        return Err(EnvelopeError::Sender { claimed, proven: sender.clone() });
    }
    let elsewhere = raw.to.is_some() || raw.to_service.is_some();
    if elsewhere || raw.channel.as_deref() != Some(channel.as_str()) {
        return Err(EnvelopeError::Channel(channel.clone()));
    }
    let mentions = raw.mentions.map(|raw| names(raw, MAX_MENTIONS)).unwrap_or_default();
    let mentions = mentions.iter().map(|name| name.to_lowercase()).collect();
    Ok(PostHead { id: raw.id.into_owned(), mentions })
}

/// The first `most` strings of an array. Whatever else stands in `mentions` mentions nobody, and is
/// no reason to withhold the post from those who are not mentioned (FAN-6).
fn names(raw: &RawValue, most: usize) -> Vec<String> {
    struct Names(usize);
    impl<'de> Visitor<'de> for Names {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<String>, A::Error> {
            let mut names = Vec::new();
            while let Some(element) = elements.next_element::<&RawValue>()? {
                if names.len() < self.0 && element.get().starts_with('"') {
                    names.extend(serde_json::from_str::<String>(element.get()).ok());
                }
            }
            Ok(names)
        }
    }
    let mut array = serde_json::Deserializer::from_str(raw.get());
    array.deserialize_seq(Names(most)).unwrap_or_default()
}

/// See [`names`]: of a message that a client shows, all of them.
fn all_names<'de, D: Deserializer<'de>>(mentions: D) -> Result<Vec<String>, D::Error> {
    Ok(names(&Box::<RawValue>::deserialize(mentions)?, usize::MAX))
}

/// Why a copy stands in a member's mixed inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The member was eligible on a durable channel.
    DurableChannel,
    /// The member was mentioned on a live channel.
    LiveMention,
}

/// The body of an inbox entry, as read back by the trusted reader.
#[derive(Debug, Clone)]
pub struct InboxEntry {
    /// The post's own bytes.
    pub msg: Bytes,
    /// The post's channel.
    pub channel: Channel,
    /// The post's sequence on CHAT.
    pub seq: u64,
    /// Why the copy was made.
    pub reason: Reason,
    /// The membership generation the copy was made for; 0 for a mention.
    pub generation: u64,
}

#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow)]
    msg: &'a RawValue,
    channel: Channel,
    seq: u64,
    reason: Reason,
    generation: u64,
}

/// Writes an inbox entry around a post's bytes.
///
/// The same post gives the same bytes to every member of one generation, so they can be shared.
#[must_use]
pub fn write_entry(
    msg: &[u8],
    channel: &Channel,
    seq: u64,
    reason: Reason,
    generation: u64,
) -> Bytes {
    let reason = match reason {
        Reason::DurableChannel => "durable-channel",
        Reason::LiveMention => "live-mention",
    };
    let tail = format!(
        r#","channel":"{channel}","seq":{seq},"reason":"{reason}","generation":{generation}}}"#
    );
    let mut out = Vec::with_capacity(msg.len() + tail.len() + 7);
    out.extend_from_slice(br#"{"msg":"#);
    out.extend_from_slice(msg);
    out.extend_from_slice(tail.as_bytes());
    Bytes::from(out)
}

/// Reads an inbox entry; `msg` stays a slice of `payload`.
///
/// # Errors
/// When the bytes are not an entry.
pub fn parse_entry(payload: &Bytes) -> Result<InboxEntry, EnvelopeError> {
    let raw: RawEntry<'_> = object(payload)?;
    Ok(InboxEntry {
        msg: with_its_whitespace(payload, raw.msg),
        channel: raw.channel,
        seq: raw.seq,
        reason: raw.reason,
        generation: raw.generation,
    })
}

/// A value inside `payload` with the whitespace around it, which JSON does not count to it: a
/// member gets exactly the bytes that were posted.
fn with_its_whitespace(payload: &Bytes, value: &RawValue) -> Bytes {
    let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let inner = payload.slice_ref(value.get().as_bytes());
    let start = inner.as_ptr() as usize - payload.as_ptr() as usize;
    let end = start + inner.len();
    let before = payload[..start].iter().rev().take_while(is_space).count();
    let after = payload[end..].iter().take_while(is_space).count();
    payload.slice(start - before..end + after)
}

/// What the trusted reader and a client need of any message's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageHead {
    /// The sender's id for the message; empty for none.
    pub id: String,
    /// Who sent it, as the body says.
    pub from: String,
}

/// Reads a message's id and claimed sender.
///
/// # Errors
/// When the bytes are not a message.
pub fn parse_head(payload: &[u8]) -> Result<MessageHead, EnvelopeError> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        id: Cow<'a, str>,
        #[serde(borrow)]
        from: RawFrom<'a>,
    }
    let head: Head<'_> = object(payload)?;
    Ok(MessageHead { id: head.id.into_owned(), from: head.from.id.into_owned() })
}

/// The part of a copy's `Nats-Msg-Id` that all copies of one post share, or `None` for an id-less
/// post, which is copied without a key (FAN-4).
#[must_use]
pub fn dedup_stem(id: &str, sender: &Principal) -> Option<String> {
    if id.is_empty() {
        return None;
    }
    let verbatim = id.len() <= MAX_VERBATIM_ID
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let id = if verbatim {
        Cow::Borrowed(id)
    } else {
        Cow::Owned(HEXLOWER.encode(&Sha256::digest(id.as_bytes())))
    };
    Some(format!("{id}:{sender}"))
}

/// A copy's `Nats-Msg-Id`: `<id>:<sender>:<owner>.<actor>.<uid>:<generation>`.
#[must_use]
pub fn dedup_key(stem: &str, member: &Lifecycle, generation: u64) -> String {
    let (principal, uid) = (member.principal.as_str(), member.uid.as_str());
    [stem, ":", principal, ".", uid, ":", &generation.to_string()].concat()
}

/// The `Nats-Msg-Id` of an entry that was put back `n` times after it had been given up: `:r<n>`
/// behind the first one, so that deduplication does not take it for a repeat.
#[must_use]
pub fn redelivery_key(key: &str, n: u64) -> String {
    if n == 0 { key.to_owned() } else { format!("{key}:r{n}") }
}

/// The sender of a copy, as its `Nats-Msg-Id` names it; `None` for what is no such key.
#[must_use]
pub fn sender_in_key(key: &str) -> Option<&str> {
    let is_again = |part: &str| part.strip_prefix('r').is_some_and(|n| n.parse::<u64>().is_ok());
    let key = match key.rsplit_once(':') {
        Some((first, again)) if is_again(again) => first,
        _ => key,
    };
    let mut parts = key.rsplitn(4, ':');
    let (_generation, _member, sender) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().map(|_id| sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_read_back_from_a_copys_key() {
        let bob = Lifecycle::parse("local.bob.aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        for id in ["m", "a:b odd"] {
            let key = dedup_key(&dedup_stem(id, &alice()).unwrap(), &bob, 2);
            assert_eq!(sender_in_key(&key), Some("local.alice"));
            assert_eq!(sender_in_key(&redelivery_key(&key, 3)), Some("local.alice"));
        }
        for none in ["", "m", "m:local.alice", "local.alice:m:2"] {
            assert_eq!(sender_in_key(none), None, "{none}");
        }
    }

    fn alice() -> Principal {
        Principal::parse("local.alice").unwrap()
    }

    fn channel() -> Channel {
        Channel::parse("team.backend").unwrap()
    }

    fn post(body: &str) -> Result<PostHead, EnvelopeError> {
        parse_post(body.as_bytes(), &alice(), &channel())
    }

    #[test]
    fn fan_6_only_an_honest_post_is_read() {
        let good = post(
            r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.backend","mentions":["Bob"],"z":1}"#,
        );
        assert_eq!(good.unwrap(), PostHead { id: "x".into(), mentions: vec!["bob".into()] });
        let table = [
            "",
            "{",
            "[]",
            r#"["x",{"id":"local.alice"},"team.backend"]"#,
            "null",
            r#"{"from":{"id":"local.alice"},"channel":"team.backend"}"#,
            r#"{"id":7,"from":{"id":"local.alice"},"channel":"team.backend"}"#,
            r#"{"id":"x","from":{"id":"local.eve"},"channel":"team.backend"}"#,
            r#"{"id":"x","from":{},"channel":"team.backend"}"#,
            r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.secret"}"#,
            r#"{"id":"x","from":{"id":"local.alice"}}"#,
            r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.backend","to":"local.bob"}"#,
            r#"{"id":"x","id":"y","from":{"id":"local.alice"},"channel":"team.backend"}"#,
            r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.backend"} {}"#,
        ];
        for bad in table {
            assert!(post(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fan_6_a_post_that_is_not_utf_8_is_none_wherever_it_is_not() {
        let head = r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.backend","z":""#;
        for (bytes, is_post) in [(&b"\xc3\xbc"[..], true), (b"\xff", false), (b"\xc3", false)] {
            let body = [head.as_bytes(), bytes, b"\"}"].concat();
            let read = parse_post(&body, &alice(), &channel());
            assert_eq!(read.is_ok(), is_post, "{bytes:?}: {read:?}");
        }
    }

    #[test]
    fn an_entry_gives_back_every_byte_of_its_post() {
        for post in ["{}", " {}", "{ }\r\n", "\t{\"a\": 1} \n "] {
            let entry = write_entry(post.as_bytes(), &channel(), 7, Reason::LiveMention, 0);
            assert_eq!(parse_entry(&entry).unwrap().msg, post.as_bytes(), "{post:?}");
        }
    }

    fn mentioning(mentions: &str) -> String {
        let head = r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.backend","mentions":"#;
        format!("{head}{mentions}}}")
    }

    #[test]
    fn fan_6_mentions_of_another_type_mention_nobody_and_withhold_nothing() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let many = format!("[0,{}]", vec![r#""x""#; MAX_MENTIONS + 9].join(",null,"));
        let table: &[(&str, &[&str])] = &[
            ("null", &[]),
            (r#""bob""#, &[]),
            ("7", &[]),
            ("1e999", &[]),
            ("true", &[]),
            (r#"{"a":1}"#, &[]),
            (r#"{"0":"bob"}"#, &[]),
            ("[]", &[]),
            ("[1]", &[]),
            (r#"["Bob",null]"#, &["bob"]),
            (r#" [ 1e999 , {"a":["eve"]}, ["eve"], "B\u00d6b" , false ] "#, &["böb"]),
            (r#"["\ud800","bob"]"#, &["bob"]),
            (&deep, &[]),
            (&many, &["x"; MAX_MENTIONS]),
        ];
        for (mentions, expected) in table {
            let body = mentioning(mentions);
            let start: String = mentions.chars().take(60).collect();
            assert_eq!(post(&body).expect(&start).mentions, *expected, "{start}");
            let shown: Message = serde_json::from_str(&body).expect(&start);
            let shown = shown.mentions.iter().take(MAX_MENTIONS).map(|name| name.to_lowercase());
            assert_eq!(shown.collect::<Vec<_>>(), *expected, "{start}");
        }
        for torn in ["[", r#"["bob"#, "[1,]", "[}", r#""bob"#, "nul"] {
            assert!(post(&mentioning(torn)).is_err(), "{torn} is no JSON");
        }
    }

    #[test]
    fn entries_keep_the_post_byte_for_byte() {
        let msg = r#"{ "id":"x", "odd" : [1,  2.50], "ü":"\u00fc" }"#;
        let entry = write_entry(msg.as_bytes(), &channel(), 7, Reason::DurableChannel, 3);
        let back = parse_entry(&entry).unwrap();
        assert_eq!(&back.msg[..], msg.as_bytes());
        assert_eq!((back.seq, back.generation, back.reason), (7, 3, Reason::DurableChannel));
        assert_eq!(back.channel, channel());
        assert!(parse_entry(&Bytes::from_static(b"{\"stream\":\"CHAT\",\"seq\":1}")).is_err());
    }

    #[test]
    fn dedup_keys_fold_unsafe_ids_and_never_key_an_empty_one() {
        assert_eq!(dedup_stem("", &alice()), None);
        assert_eq!(dedup_stem("a-b.c_1", &alice()).unwrap(), "a-b.c_1:local.alice");
        for odd in ["a b", "a:b", &"x".repeat(129)] {
            let stem = dedup_stem(odd, &alice()).unwrap();
            assert_eq!(stem.len(), 64 + ":local.alice".len(), "{odd}");
        }
        let bob = Lifecycle::parse(&format!("local.bob.{}", "b".repeat(26))).unwrap();
        let key = dedup_key("m:local.alice", &bob, 2);
        assert_eq!(key, format!("m:local.alice:local.bob.{}:2", "b".repeat(26)));
    }
}
