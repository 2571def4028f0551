//! What the reader knows of members' stores: who fills each, and what a full one held when it was
//! looked at.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;

use cotal_nats::{Connection, Get, NatsError, headers};
use cotal_rules::shares::Shares;
use cotal_wire::envelope::{self, sender_in_key};
use cotal_wire::names::SEQ_HEADER;
use cotal_wire::{Lifecycle, Space};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

/// Copies that are looked at, or deleted, at once.
pub(super) const AT_ONCE: u64 = 64;
/// Copies that one after another are looked at, as far as they lie evenly.
const EACH: u64 = 4;

/// A copy in a member's store.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) seq: u64,
    /// The post's number on CHAT.
    pub(super) post: u64,
    pub(super) sender: String,
}

/// What a store held when it was looked at.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) copies: VecDeque<Held>,
    /// The last sequence of DLV that the look covered.
    pub(super) up_to: u64,
}

/// What the reader knows of members' stores.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) shares: Shares,
    pub(super) looked: HashMap<Lifecycle, Looked>,
    pub(super) named: HashSet<(Lifecycle, String)>,
}

impl Looked {
    /// Forgets what was read, which ends where `range` begins, and looks at what was stored since.
    pub(super) async fn go_on(
        &mut self,
        space: &Space,
        connection: &Connection,
        member: &Lifecycle,
        range: RangeInclusive<u64>,
        unread: u64,
    ) -> Result<(), NatsError> {
        let (read_up_to, last) = range.into_inner();
        self.copies.retain(|held| held.seq > read_up_to);
        let from = self.up_to.max(read_up_to) + 1;
        // Each part ends with a question that finds nothing, so few copies are few parts.
        let news = unread.saturating_sub(self.copies.len() as u64);
        let count = (news / EACH + 1).min(AT_ONCE);
        let step = last.saturating_sub(from) / count + 1;
        let parts = (0..count).map(|n| (from + n * step, (from + (n + 1) * step - 1).min(last)));
        let parts = parts.filter(|(from, to)| from <= to);
        let looks = parts.map(|(from, to)| between(space, connection, member, from, to));
        let looks: Vec<_> = looks.collect();
        let at_once = usize::try_from(AT_ONCE).unwrap_or(1);
        let mut found = stream::iter(looks).buffered(at_once);
        while let Some(part) = found.try_next().await? {
            self.copies.extend(part);
        }
        self.up_to = last;
        Ok(())
    }

    pub(super) fn post(&self, seq: u64) -> u64 {
        self.copies.iter().find(|held| held.seq == seq).map_or(0, |held| held.post)
    }
}

/// The copies of a member between two sequences of DLV.
async fn between(
    space: &Space,
    connection: &Connection,
    member: &Lifecycle,
    from: u64,
    to: u64,
) -> Result<Vec<Held>, NatsError> {
    let (stream, subject) = (space.dlv_stream(), space.dlv(member));
    let (mut copies, mut seq) = (Vec::new(), from);
    while seq <= to {
        let get = Get::NextBySubject { seq, subject: &subject };
        let Some(copy) = connection.get_message(&stream, get).await? else { break };
        if copy.seq > to {
            break;
        }
        seq = copy.seq + 1;
        let of = copy.headers.as_ref();
        let key = headers::get(of, headers::MSG_ID);
        let post = headers::get(of, SEQ_HEADER).and_then(|number| number.parse().ok());
        let sender = sender(key, &copy.payload).into_owned();
        copies.push(Held { seq: copy.seq, post: post.unwrap_or(0), sender });
    }
    Ok(copies)
}

/// Who sent a copy: as its key says, or the post itself where it has none.
pub(super) fn sender<'a>(key: Option<&'a str>, post: &[u8]) -> Cow<'a, str> {
    let said = || envelope::parse_head(post).map(|head| head.from).unwrap_or_default();
    key.and_then(sender_in_key).map_or_else(|| Cow::Owned(said()), Cow::Borrowed)
}
