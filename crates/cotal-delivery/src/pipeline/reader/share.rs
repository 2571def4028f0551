//! Makes room in a member's store before the broker's cap would, so that no sender's copies push
//! out another's (`rules::shares`).
//!
//! Only a store that may be full of several senders' copies is looked at: then everything handed
//! over before is settled first, because a look shows what is stored.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use cotal_nats::js::Deleted;
use cotal_nats::{Connection, Get, NatsError, Outgoing};
use cotal_rules::shares::pushed_out;
use cotal_wire::Lifecycle;
use futures_util::{StreamExt as _, stream};
use tracing::{debug, warn};

use super::Reader;
use super::entry::Read;
use super::store_room::{AT_ONCE, Looked, sender};
use crate::clock::now_ms;

/// Full stores that are remembered, of as many copies each as a store keeps; what is forgotten is
/// looked at again.
const REMEMBERED: usize = 64;
/// Senders that were named in the log and are not named again; beyond it all are forgotten.
const NAMED: usize = 1_024;

/// A copy that goes: out of the store, or before it is handed over.
enum Goes {
    Held(u64),
    Incoming(usize),
}

impl Reader {
    /// Takes out of a batch, and out of the stores, what must go so that the rest fits.
    pub(super) async fn make_room(
        &mut self,
        entries: Vec<Read>,
        copies: Vec<Outgoing>,
    ) -> (Vec<Read>, Vec<Outgoing>) {
        let full = self.may_be_full(&entries);
        if full.is_empty() {
            return (entries, copies);
        }
        while let Some(done) = self.handing_off.next().await {
            self.settle(done).await;
        }
        let mut withheld = HashSet::new();
        for (member, incoming) in full {
            match self.make_room_for(&member, &incoming, &entries).await {
                Ok(gone) => withheld.extend(gone),
                // The broker's cap decides then, as for one sender alone.
                Err(error) => {
                    self.room.looked.remove(&member);
                    warn!(
                        space = %self.parts.space, member = %member.principal, %error,
                        "a full store could not be looked at; its oldest copies may be anybody's"
                    );
                }
            }
        }
        let (mut kept, mut left) = (Vec::with_capacity(entries.len()), Vec::new());
        for (index, (read, copy)) in entries.into_iter().zip(copies).enumerate() {
            if withheld.contains(&index) {
                self.no_longer_waits(&read.member, read.delivery.stream_seq);
                self.end(read.delivery, |counters| &counters.denied).await;
            } else {
                kept.push(read);
                left.push(copy);
            }
        }
        (kept, left)
    }

    /// The members whose stores must be looked at, each with the places of its copies in the batch.
    fn may_be_full(&mut self, entries: &[Read]) -> BTreeMap<Lifecycle, Vec<usize>> {
        let (shares, overflow) = (&mut self.room.shares, &self.parts.overflow);
        let mut full: BTreeMap<Lifecycle, Vec<usize>> = BTreeMap::new();
        for read in entries {
            let held = || overflow.held_at_most(&read.member);
            if shares.count(&read.member, &sender_of(read), held) {
                full.entry(read.member.clone()).or_default();
            }
        }
        if !full.is_empty() {
            for (index, read) in entries.iter().enumerate() {
                if let Some(incoming) = full.get_mut(&read.member) {
                    incoming.push(index);
                }
            }
        }
        full
    }

    /// Makes room in one store; gives the places of those in the batch that are not handed over.
    async fn make_room_for(
        &mut self,
        member: &Lifecycle,
        incoming: &[usize],
        entries: &[Read],
    ) -> Result<Vec<usize>, NatsError> {
        let (space, connection) = (&self.parts.space, &self.parts.connection);
        let (stream, consumer) = (space.dlv_stream(), space.dlv_consumer(member));
        // Everything that was handed over is confirmed, so the look at the consumer counts it.
        let store = connection.stream_info(&stream).await?;
        let Ok(cap) = u64::try_from(store.config.max_msgs_per_subject) else {
            self.room.shares.looked(member, 0, 0);
            return Ok(Vec::new());
        };
        let info = connection.consumer_info(&stream, &consumer).await?;
        let unread = info.num_pending + info.num_ack_pending;
        let excess = (unread + incoming.len() as u64).saturating_sub(cap);
        self.room.shares.looked(member, unread, incoming.len() as u64);
        if excess == 0 {
            self.room.looked.remove(member);
            self.room.named.retain(|(named, _)| named != member);
            return Ok(Vec::new());
        }
        let mut looked = self.room.looked.remove(member).unwrap_or_default();
        let (floor, last) = (info.ack_floor.stream_seq, store.state.last_seq);
        looked.go_on(space, connection, member, floor..=last, unread).await?;
        let senders: Vec<_> = incoming.iter().map(|&at| sender_of(&entries[at])).collect();
        let held = looked.copies.iter().map(|held| (Goes::Held(held.seq), held.sender.as_str()));
        let arriving = incoming.iter().zip(&senders);
        let arriving = arriving.map(|(&at, sender)| (Goes::Incoming(at), sender.as_ref()));
        let excess = usize::try_from(excess).unwrap_or(usize::MAX);
        let gone = pushed_out(held.chain(arriving), excess);

        let deleted = delete(connection, &stream, &gone).await;
        let mut lost: BTreeMap<String, u64> = BTreeMap::new();
        let (mut withheld, mut last) = (Vec::new(), 0);
        for (which, sender) in &gone {
            let post = match which {
                Goes::Incoming(at) => {
                    withheld.push(*at);
                    entries[*at].entry.seq
                }
                Goes::Held(seq) if !deleted.contains(seq) => continue,
                Goes::Held(seq) => looked.post(*seq),
            };
            last = last.max(post);
            *lost.entry((*sender).to_owned()).or_default() += 1;
        }
        let is_stale = gone
            .iter()
            .any(|(which, _)| matches!(which, Goes::Held(seq) if !deleted.contains(seq)));
        let undelivered = deleted.iter().filter(|seq| **seq > info.delivered.stream_seq).count();
        self.parts.overflow.recalled(member, undelivered as u64);
        looked.copies.retain(|held| !deleted.contains(&held.seq));
        let present = incoming.len() - withheld.len();
        self.room.shares.looked(member, unread - deleted.len() as u64, present as u64);
        // What was gone already was taken by a recall: the next look begins anew.
        if !is_stale {
            self.remember(member, looked);
        }
        self.tell(member, &lost, last);
        Ok(withheld)
    }

    fn remember(&mut self, member: &Lifecycle, looked: Looked) {
        if self.room.looked.len() >= REMEMBERED {
            self.room.looked.clear();
        }
        self.room.looked.insert(member.clone(), looked);
    }

    /// Counts what a member lost, and names who filled its store, once each.
    fn tell(&mut self, member: &Lifecycle, lost: &BTreeMap<String, u64>, last: u64) {
        let counters = &self.parts.counters;
        let all: u64 = lost.values().sum();
        if all == 0 {
            return;
        }
        counters.add_missed(&member.principal, all);
        counters.misses().lost(member, all, Some(last + 1), now_ms());
        if self.room.named.len() >= NAMED {
            self.room.named.clear();
        }
        for (sender, missed) in lost {
            if self.room.named.insert((member.clone(), sender.clone())) {
                warn!(
                    space = %self.parts.space, member = %member.principal, sender, missed,
                    "a sender fills the store of a member, which does not read: the sender's own \
                     oldest copies are lost, and nobody else's"
                );
            } else {
                debug!(space = %self.parts.space, member = %member.principal, sender, missed, "more");
            }
        }
    }
}

/// Deletes what goes of the store; gives what was really deleted. An unanswered delete is a
/// question, which the store answers.
async fn delete(connection: &Connection, stream: &str, gone: &[(Goes, &str)]) -> HashSet<u64> {
    let seqs = gone.iter().filter_map(|(which, _)| match which {
        Goes::Held(seq) => Some(*seq),
        Goes::Incoming(_) => None,
    });
    let deletes: Vec<_> = seqs
        .map(|seq| async move {
            let is_gone = match connection.delete_message(stream, seq).await {
                Ok(outcome) => outcome == Deleted::Deleted,
                Err(_) => matches!(connection.get_message(stream, Get::Seq(seq)).await, Ok(None)),
            };
            (seq, is_gone)
        })
        .collect();
    let at_once = usize::try_from(AT_ONCE).unwrap_or(1);
    let mut done = stream::iter(deletes).buffer_unordered(at_once);
    let mut deleted = HashSet::new();
    while let Some((seq, is_gone)) = done.next().await {
        if is_gone {
            deleted.insert(seq);
        }
    }
    deleted
}

fn sender_of(read: &Read) -> Cow<'_, str> {
    sender(read.delivery.msg_id(), &read.entry.msg)
}
