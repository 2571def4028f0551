//! Posts, direct messages and role requests on their way out.

use std::time::Duration;

use cotal_nats::{Bytes, NatsError, headers};
use cotal_wire::control::op;
use cotal_wire::envelope::{Message, Part};
use cotal_wire::limits::ENTRY_HEADROOM;
use cotal_wire::posts::{FindPostArgs, FoundPost};
use cotal_wire::{Channel, Principal, Role};
use serde_json::Value;

use crate::control::ControlError;
use crate::copy::{self, Rejected};
use crate::endpoint::Endpoint;
use crate::fresh::{now_ms, random_id};

/// The longest id that a message is sent under.
pub const MAX_ID: usize = 256;
/// How long after its first attempt the broker recognizes a message by its id: its window of two
/// minutes, less what a request may take.
pub const RETRY_WITHIN: Duration = Duration::from_secs(100);
/// How much of a wrong id an error shows.
const SHOWN_OF_ID: usize = 64;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It does not fit; nothing was sent.
    #[error("the message has {size} bytes, at most {max} fit: shorten it or send a reference")]
    TooLarge {
        /// The message's bytes as JSON.
        size: usize,
        /// How many would fit.
        max: usize,
    },
    /// The broker knew the id of a message that was never sent before: somebody took it, or the
    /// source of randomness repeats itself.
    #[error(
        "the broker holds another message under the fresh id {id} (number {seq}): nothing was stored"
    )]
    Duplicate {
        /// The id.
        id: String,
        /// The sequence of the message that has it.
        seq: u64,
    },
    /// The broker did not confirm it, and may have stored it. With the same id
    /// ([`Draft::retry_of`]) a post can be sent again safely at any time, another message within
    /// [`RETRY_WITHIN`] of the first attempt.
    #[error(
        "the broker did not confirm message {id}, it may be stored: send it again under that id"
    )]
    Unconfirmed {
        /// The id.
        id: String,
        /// When it was first sent, Unix milliseconds; see [`Draft::first_sent`].
        first_sent: i64,
        /// What happened.
        #[source]
        source: NatsError,
    },
    /// A post was to be sent again, so long after its first attempt that the broker would store it
    /// a second time, and no daemon said whether it is stored.
    #[error(
        "whether post {id} is stored is not known, because no delivery daemon says so, and the broker would \
         store it a second time: try again once a daemon serves"
    )]
    Unverified {
        /// The id.
        id: String,
        /// What the daemon said, or what was heard instead.
        #[source]
        source: ControlError,
    },
    /// A direct message or a role request was to be sent again, so long after its first attempt
    /// that the broker would store it a second time. Nothing was sent.
    #[error(
        "message {id} was first sent over {within:?} ago and may be stored; sent again now it could be stored \
         twice: send it under a new id if that is better than not at all"
    )]
    TooLate {
        /// The id.
        id: String,
        /// How long it could be sent again.
        within: Duration,
    },
    /// The broker did not take it, and said so.
    #[error("the message to {target} was not sent")]
    Refused {
        /// Where it was to go.
        target: String,
        /// What the broker said.
        #[source]
        source: NatsError,
    },
    /// The endpoint was closed before; nothing was sent.
    #[error("the endpoint is closed: nothing was sent, connect again")]
    Closed,
    /// The connection was down before it could be sent; nothing was sent.
    #[error("the broker connection is down: nothing was sent, send it again once it is back")]
    NotConnected,
    /// The id cannot be one; nothing was sent.
    #[error(
        "{id:?} is not a message id: use 1 to {MAX_ID} bytes without spaces and control characters"
    )]
    Id {
        /// The id, cut to its beginning.
        id: String,
    },
    /// Nobody could read what was written; nothing was sent.
    #[error("the message was not sent, because nobody could read it: {0}")]
    Malformed(String),
    /// The message cannot be written as JSON, or no id could be drawn.
    #[error("the message could not be written: {0}")]
    Unwritable(String),
}

/// A message that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// Its id.
    pub id: String,
    /// Its number in its stream.
    pub seq: u64,
}

/// A message being written.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    parts: Vec<Part>,
    mentions: Vec<String>,
    reply_to: Option<String>,
    context_id: Option<String>,
    id: Option<String>,
    retried: bool,
    first_sent: Option<i64>,
}

impl Draft {
    /// Begins with a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::parts(vec![Part::Text { text: text.into() }])
    }

    /// Begins with data for a program.
    #[must_use]
    pub fn data(data: Value) -> Self {
        Self::parts(vec![Part::Data { data }])
    }

    /// Begins with these parts.
    #[must_use]
    pub fn parts(parts: Vec<Part>) -> Self {
        Self { parts, ..Self::default() }
    }

    /// Adds a part.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Mentions a peer by name; on a live channel a mention is what reaches a peer who is away.
    #[must_use]
    pub fn mention(mut self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref().trim().trim_start_matches('@').to_lowercase();
        if !name.is_empty() && !self.mentions.contains(&name) {
            self.mentions.push(name);
        }
        self
    }

    /// Answers the message of this id.
    #[must_use]
    pub fn reply_to(mut self, id: impl Into<String>) -> Self {
        self.reply_to = Some(id.into());
        self
    }

    /// Belongs to this conversation.
    #[must_use]
    pub fn context(mut self, id: impl Into<String>) -> Self {
        self.context_id = Some(id.into());
        self
    }

    /// Is sent under this id, of at least 128 random bits, instead of one that the endpoint draws.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Draws the id now, so that it is known before the message is sent: whoever drops the call
    /// that sends it, as a timeout does, sends it again with [`retry_of`](Self::retry_of) and this
    /// id.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn with_fresh_id(self) -> Result<Self, SendError> {
        let id = random_id().map_err(|e| SendError::Unwritable(e.to_string()))?;
        Ok(self.with_id(id))
    }

    /// The id, once it is known.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Is sent once more under the id of an unconfirmed attempt; that it is stored already is then
    /// no error.
    ///
    /// The broker itself recognizes the id within [`RETRY_WITHIN`] of the first attempt. After that
    /// the endpoint asks the daemon whether the *post* is stored, and sends it only when it is not.
    /// Of a direct message or a role request nobody can say it: sent again later by the endpoint
    /// that made the first attempt, or with its [`first_sent`](Self::first_sent), it is refused as
    /// [`SendError::TooLate`]; where neither is known, it is sent, and may be stored twice.
    #[must_use]
    pub fn retry_of(mut self, id: impl Into<String>) -> Self {
        self.retried = true;
        self.with_id(id)
    }
}

impl Draft {
    /// When the attempt of [`retry_of`](Self::retry_of) was made first, Unix milliseconds: for a
    /// process that was not the one to make it.
    #[must_use]
    pub fn first_sent(mut self, unix_ms: i64) -> Self {
        self.first_sent = Some(unix_ms);
        self
    }

    pub(crate) fn into_parts(self) -> Vec<Part> {
        self.parts
    }
}

impl From<&str> for Draft {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Draft {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl From<Value> for Draft {
    fn from(data: Value) -> Self {
        Self::data(data)
    }
}

impl From<Vec<Part>> for Draft {
    fn from(parts: Vec<Part>) -> Self {
        Self::parts(parts)
    }
}

impl Endpoint {
    /// Posts on a channel.
    ///
    /// # Errors
    /// When it is too large, when the broker denies or refuses it, when it is not confirmed, or
    /// when its fresh id is not fresh.
    pub async fn post(
        &self,
        channel: &Channel,
        draft: impl Into<Draft>,
    ) -> Result<Posted, SendError> {
        let target = self.space().chat(self.principal(), channel);
        // A post leaves room for the entry that the daemon wraps around it, or it could never be
        // copied.
        let room = usize::try_from(ENTRY_HEADROOM).unwrap_or(usize::MAX);
        let max = self.connection().max_payload().saturating_sub(room);
        let place = |message: &mut Message| message.channel = Some(channel.to_string());
        let draft = draft.into();
        if let Some(posted) = self.posted_before(channel, &draft).await? {
            return Ok(posted);
        }
        let judge = |body: &Bytes| copy::post(self.space(), &target, body.clone(), None).map(drop);
        self.send(&target, draft, max, place, judge).await
    }

    /// A post that is sent again, if it is stored; nothing when it is to be sent.
    async fn posted_before(
        &self,
        channel: &Channel,
        draft: &Draft,
    ) -> Result<Option<Posted>, SendError> {
        let Some(id) = draft.id.as_ref().filter(|_| draft.retried) else { return Ok(None) };
        let first = self.first_sent(id, draft);
        if first.is_some_and(is_recognized) || !is_id(id) {
            return Ok(None);
        }
        let args = FindPostArgs {
            channel: channel.clone(),
            id: id.clone(),
            since: first.unwrap_or_default(),
        };
        let found: Result<FoundPost, _> = self.plane().control(op::FIND_POST, &args).await;
        match found {
            Ok(found) => Ok(found.seq.map(|seq| Posted { id: id.clone(), seq })),
            Err(ControlError::Stopped) => Err(SendError::Closed),
            Err(source) => Err(SendError::Unverified { id: id.clone(), source }),
        }
    }

    fn first_sent(&self, id: &str, draft: &Draft) -> Option<i64> {
        draft.first_sent.or_else(|| self.recent().first(id))
    }

    /// Refuses to send again what the broker would store twice and nobody can look for.
    fn check_again(&self, draft: &Draft) -> Result<(), SendError> {
        let Some(id) = draft.id.as_ref().filter(|_| draft.retried) else { return Ok(()) };
        match self.first_sent(id, draft) {
            Some(first) if !is_recognized(first) => {
                Err(SendError::TooLate { id: id.clone(), within: RETRY_WITHIN })
            }
            _ => Ok(()),
        }
    }

    /// Sends a direct message.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn dm(&self, to: &Principal, draft: impl Into<Draft>) -> Result<Posted, SendError> {
        let target = self.space().inst(to, self.principal());
        let max = self.connection().max_payload();
        let place = |message: &mut Message| message.to = Some(to.to_string());
        let judge =
            |body: &Bytes| copy::direct(self.space(), to, &target, body.clone(), 0).map(drop);
        let draft = draft.into();
        self.check_again(&draft)?;
        self.send(&target, draft, max, place, judge).await
    }

    /// Asks whoever holds `role`; the number is what the request is known by from then on.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn ask(&self, role: &Role, draft: impl Into<Draft>) -> Result<Posted, SendError> {
        let target = self.space().svc(role, self.principal());
        let max = self.connection().max_payload();
        let place = |message: &mut Message| message.to_service = Some(role.to_string());
        let judge = |body: &Bytes| copy::request(self.space(), role, &target, body).map(drop);
        let draft = draft.into();
        self.check_again(&draft)?;
        self.send(&target, draft, max, place, judge).await
    }

    /// Sends what a receiver can read, by the receiver's own `judge`: the broker stores anything,
    /// and whoever has to copy or show it would drop it without a word to the sender.
    async fn send(
        &self,
        target: &str,
        draft: Draft,
        max: usize,
        place: impl FnOnce(&mut Message),
        judge: impl FnOnce(&Bytes) -> Result<(), Rejected>,
    ) -> Result<Posted, SendError> {
        if self.stop_token().is_cancelled() {
            return Err(SendError::Closed);
        }
        let retried = draft.retried;
        let mut message = self.written(draft)?;
        place(&mut message);
        let id = message.id.clone();
        let body =
            serde_json::to_vec(&message).map_err(|e| SendError::Unwritable(e.to_string()))?;
        let body = Bytes::from(body);
        let max = max.saturating_sub(header_size(&id));
        if body.len() > max {
            let size = body.len();
            return Err(SendError::TooLarge { size, max });
        }
        judge(&body).map_err(|why| SendError::Malformed(why.to_string()))?;
        // Data may be nested deeper than a reader goes.
        serde_json::from_slice::<Message>(&body)
            .map_err(|why| SendError::Malformed(why.to_string()))?;
        if !self.connection().is_connected() {
            return Err(SendError::NotConnected);
        }
        let first_sent = self.recent().note(&id, now_ms());
        let sent =
            self.connection().publish_confirmed(target.to_owned(), None, body, Some(&id)).await;
        match sent {
            Ok(ack) if ack.duplicate && !retried => Err(SendError::Duplicate { id, seq: ack.seq }),
            Ok(ack) => Ok(Posted { id, seq: ack.seq }),
            Err(source) if may_be_stored(&source) => {
                Err(SendError::Unconfirmed { id, first_sent, source })
            }
            Err(source) => Err(SendError::Refused { target: target.to_owned(), source }),
        }
    }

    fn written(&self, draft: Draft) -> Result<Message, SendError> {
        let id = match draft.id {
            Some(id) if !is_id(&id) => {
                return Err(SendError::Id { id: id.chars().take(SHOWN_OF_ID).collect() });
            }
            Some(id) => id,
            None => random_id().map_err(|e| SendError::Unwritable(e.to_string()))?,
        };
        Ok(Message {
            id,
            ts: now_ms(),
            space: self.space().to_string(),
            from: self.identity().from(),
            channel: None,
            to: None,
            to_service: None,
            mentions: draft.mentions,
            parts: draft.parts,
            reply_to: draft.reply_to,
            context_id: draft.context_id,
        })
    }
}

/// The broker keeps an id as the text of a header, and drops the spaces around it.
fn is_id(id: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    !id.is_empty() && id.len() <= MAX_ID && !id.contains(odd)
}

/// The header block that carries the id, which the broker counts as part of the message.
fn header_size(id: &str) -> usize {
    "NATS/1.0\r\n: \r\n\r\n".len() + headers::MSG_ID.len() + id.len()
}

fn is_recognized(first_sent: i64) -> bool {
    let since = now_ms().saturating_sub(first_sent);
    u64::try_from(since).is_ok_and(|ms| Duration::from_millis(ms) < RETRY_WITHIN)
}

fn may_be_stored(error: &NatsError) -> bool {
    matches!(
        error,
        NatsError::Timeout { .. } | NatsError::Disconnected { .. } | NatsError::Malformed { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mentions_are_lowercased_names_without_repeats() {
        let draft = Draft::text("x").mention("@Bob").mention("bob ").mention("").mention("Eve");
        assert_eq!(draft.mentions, ["bob", "eve"]);
    }

    #[test]
    fn the_header_block_is_counted_exactly() {
        let id = "x".repeat(32);
        assert_eq!(header_size(&id), format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n").len());
    }
}
