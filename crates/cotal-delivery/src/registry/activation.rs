//! Catch-up: copies the posts between a join's cursor and the first post that fan-out planned with
//! its row.

use std::ops::Range;
use std::time::Duration;

use cotal_nats::{Bytes, Get, NatsError, Outgoing, StoredMessage, Ticket};
use cotal_rules::directory::Membership;
use cotal_rules::fanout::{Copy, Plan};
use cotal_rules::membership::{
    self as rules, Activation, ActivationEnd, Answer, Ask, Step, SubjectFill, Target,
};
use cotal_wire::control::{JoinShortfall, Joined};
use cotal_wire::envelope::Reason;
use cotal_wire::limits::PER_SUBJECT;
use cotal_wire::rows::DeliveryClass;
use cotal_wire::{Channel, Lifecycle};
use tokio::time::timeout;
use tracing::info;

use super::steps::Steps;
use super::{Registry, RegistryError};
use crate::clock::now_ms;
use crate::counters::add;
use crate::pipeline::fanout::copies::{make_copies, read_post};
use crate::pipeline::join_barrier::JoinInProgress;

/// Posts read at once, and copies that the reader must process before the next ones are written.
const POSTS_PER_CHUNK: usize = 200;
/// How long the reader may take for a chunk.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

impl Registry {
    /// Copies the posts between the join's cursor and the first post that fan-out planned with the
    /// row, then marks the row as activated. Fan-out waits until the catch-up has been given to the
    /// writer.
    pub(super) async fn activate(
        &self,
        target: &Target,
        membership: Membership,
        routed: u64,
        joining: JoinInProgress,
        mut steps: Steps<'_>,
    ) -> Result<Joined, RegistryError> {
        let Target { channel, member, .. } = target;
        let generation = membership.generation;
        let mut activation = Activation::new(target.clone(), membership, routed);
        let mut joining = Some(joining);
        let end = loop {
            let answer = match activation.next(now_ms()) {
                Step::End(end) => break end,
                Step::Ask(Ask::CatchUp { after, until }) => {
                    let joining = joining.take();
                    self.catch_up(channel, member, generation, after..until, joining).await?;
                    Answer::CaughtUp
                }
                Step::Ask(ask) => steps.perform(ask).await,
            };
            activation.answer(&answer);
        };
        let shortfall = |reason| Joined { durable: false, generation, reason: Some(reason) };
        match end {
            ActivationEnd::Durable => {
                info!(space = %self.space, %member.principal, %channel, generation, "durable join");
                Ok(Joined { durable: true, generation, reason: None })
            }
            ActivationEnd::Evicted => Ok(shortfall(JoinShortfall::Evicted)),
            ActivationEnd::Superseded => Ok(shortfall(JoinShortfall::Superseded)),
            ActivationEnd::NotServing => Err(RegistryError::NotServing),
            ActivationEnd::Failed => Err(steps.error()),
        }
    }

    /// Copies the posts after the start of the range, up to its end. `joining` is dropped after the
    /// last of them was given to the writer, or on an error.
    async fn catch_up(
        &self,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
        Range { start: after, end: until }: Range<u64>,
        mut joining: Option<JoinInProgress>,
    ) -> Result<(), RegistryError> {
        let chat = self.space.chat_stream();
        let filter = self.space.chat_channel(&channel.into());
        let mut next = after + 1;
        while next <= until {
            let (page, ends) = self.page(&chat, next, &filter).await?;
            let Some(last) = page.last().map(|m| m.seq) else {
                return Ok(());
            };
            let is_last = ends || last >= until;
            let posts = page.iter().filter(|m| m.seq <= until);
            let copies = self.copies(posts, channel, member, generation);
            next = if is_last { until + 1 } else { last + 1 };
            if copies.is_empty() {
                continue;
            }
            self.serves()?;
            let count = copies.len() as u64;
            let written = self.writer.submit(copies).await?;
            if is_last {
                // That was the last chunk: copies that fan-out writes from now on come after it.
                drop(joining.take());
            }
            self.taken(written, count).await?;
        }
        Ok(())
    }

    /// The next posts from `next` on, and whether they are the last. A replica that lags may answer
    /// a direct read: its posts have no gap, but may end early. So the leader is asked what comes
    /// after them.
    async fn page(
        &self,
        chat: &str,
        next: u64,
        filter: &str,
    ) -> Result<(Vec<StoredMessage>, bool), NatsError> {
        let mut page =
            self.connection.direct_next(chat, next, filter, POSTS_PER_CHUNK).await?.messages;
        if page.len() == POSTS_PER_CHUNK {
            return Ok((page, false));
        }
        let seq = page.last().map_or(next, |last| last.seq + 1);
        let get = Get::NextBySubject { seq, subject: filter };
        let following = self.connection.get_message(chat, get).await?;
        let ends = following.is_none();
        page.extend(following);
        Ok((page, ends))
    }

    fn copies<'a>(
        &self,
        posts: impl Iterator<Item = &'a StoredMessage>,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
    ) -> Vec<Outgoing> {
        let mut copies = Vec::new();
        for post in posts {
            let Some((sender, found)) = self.space.parse_chat(&post.subject) else {
                continue;
            };
            if found != *channel || sender == member.principal || !sender.has_real_owner() {
                continue;
            }
            let Ok(head) = read_post(post.headers.as_ref(), &post.payload, &sender, channel) else {
                continue;
            };
            let reason = Reason::DurableChannel;
            let copy = Copy { member: member.clone(), generation, reason };
            let plan =
                Plan { class: DeliveryClass::Durable, copies: vec![copy], unsure: Vec::new() };
            let payload: &Bytes = &post.payload;
            let made = make_copies(&self.space, payload, post.seq, channel, &sender, &head, &plan);
            copies.extend(made);
        }
        copies
    }

    /// Waits until a chunk is confirmed and the reader has processed it.
    async fn taken(&self, written: Ticket, count: u64) -> Result<(), RegistryError> {
        written.await.map_err(|error| match error.failed.into_iter().next() {
            Some((_, error)) => error,
            None => NatsError::Closed,
        })?;
        add(&self.counters.copies, count);
        self.reader_took().await
    }

    /// Waits until the reader has processed everything in INBOX, so that a member's catch-up never
    /// reaches INBOX's cap.
    async fn reader_took(&self) -> Result<(), RegistryError> {
        let mark = self.connection.last_seq(&self.space.inbox_stream()).await?;
        let mut reader = self.reader.clone();
        match timeout(TAKEN_WITHIN, reader.passes(mark)).await {
            Ok(true) => Ok(()),
            _ => Err(NatsError::Timeout {
                what: "the trusted reader to process a catch-up".to_owned(),
                after: TAKEN_WITHIN,
            }
            .into()),
        }
    }

    /// The end of the window that begins after `join`, and whether it is complete. It is not if
    /// CHAT may have discarded a post of it. A window with fewer posts than the cap of one subject
    /// cannot have lost any.
    pub(super) async fn window(
        &self,
        channel: &Channel,
        join: u64,
    ) -> Result<(u64, bool), RegistryError> {
        let state = self.connection.stream_state(&self.space.chat_stream()).await?;
        let (first, end) = (state.first_seq, state.last_seq);
        if first <= join + 1 && end.saturating_sub(join) < PER_SUBJECT {
            return Ok((end, true));
        }
        let fills = self.fills(channel).await?;
        Ok((end, !rules::window_evicted(join, first, &fills)))
    }

    async fn fills(&self, channel: &Channel) -> Result<Vec<SubjectFill>, RegistryError> {
        let chat = self.space.chat_stream();
        let filter = self.space.chat_channel(&channel.into());
        let mut fills = Vec::new();
        let mut offset = 0;
        loop {
            let page = self.connection.stream_info_subjects(&chat, &filter, offset).await?;
            let got = page.subjects.len() as u64;
            for (subject, count) in page.subjects {
                if count < PER_SUBJECT {
                    continue;
                }
                // From the leader: a replica that lags still shows posts that are gone.
                let get = Get::NextBySubject { seq: 1, subject: &subject };
                if let Some(oldest) = self.connection.get_message(&chat, get).await? {
                    fills.push(SubjectFill { count, oldest: oldest.seq });
                }
            }
            offset += got;
            if got == 0 || offset >= page.total {
                return Ok(fills);
            }
        }
    }
}
