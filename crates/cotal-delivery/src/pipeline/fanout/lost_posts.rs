//! Posts that CHAT's cap discarded before they were routed: counted, logged, and reported to their
//! senders.
//!
//! [`Arrivals`] finds them by their sequences. To find out whose they were, a task beside the
//! writer asks CHAT which subjects are full, and for the oldest post that each still holds.

use std::time::Duration;

use cotal_nats::{Connection, NatsError};
use cotal_rules::unrouted::{Arrivals, Episodes, FullSubject, Lost, Miss, attribute};
use cotal_wire::envelope::{Message, Part};
use cotal_wire::{Channel, Principal, Space};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, warn};

use crate::clock::now_ms;
use crate::counters::Counters;
use crate::daemon_message::daemon_message;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;

/// Between two requests to CHAT, so that an overflow that goes on costs little.
const LOST_POSTS_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Attempts to notify a sender.
const TELL_ATTEMPTS: u32 = 5;

/// Finds and reports posts that were never routed.
pub(crate) struct LostPosts {
    reporter: Reporter,
    counters: Arc<Counters>,
    arrivals: Arrivals,
    /// Found, but their sender is not known yet.
    lost: Lost,
    /// At most one request to CHAT, and notices that are being sent.
    running: JoinSet<LostPost>,
    is_looking: bool,
    episodes: Episodes,
}

/// What the tasks beside the writer need.
#[derive(Clone)]
struct Reporter {
    space: Space,
    connection: Connection,
    gate: Gate,
    /// The daemon's own principal, which sends the notices.
    own: Principal,
    incarnation: String,
}

/// What a task beside the writer has done.
pub(crate) enum LostPost {
    /// Whose these posts are, or the error if CHAT could not be read.
    Whose(Lost, Result<Vec<Miss>, NatsError>),
    /// A sender was notified, or could not be.
    Told,
}

impl LostPosts {
    /// Starts at the position of the fan-out consumer.
    pub(crate) fn new(context: &LaneContext, arrivals: Arrivals) -> Self {
        let LaneContext { space, connection, gate, principal, incarnation, .. } = context.clone();
        Self {
            reporter: Reporter { space, connection, gate, own: principal, incarnation },
            counters: Arc::clone(&context.counters),
            arrivals,
            lost: Lost::default(),
            running: JoinSet::new(),
            is_looking: false,
            episodes: Episodes::default(),
        }
    }

    /// Notes a post that was pulled.
    pub(super) fn arrived(&mut self, seq: u64) {
        self.arrivals.arrived(seq);
    }

    /// Notes that the consumer has provably passed every post up to `done`.
    pub(super) fn passed(&mut self, done: u64) {
        self.lost.add(self.arrivals.lost(done));
        if !self.is_looking && !self.lost.is_empty() {
            self.is_looking = true;
            let (reporter, lost) = (self.reporter.clone(), std::mem::take(&mut self.lost));
            self.running.spawn(async move {
                let full = reporter.full_subjects().await;
                let misses = full.map(|full| attribute(&lost, &full));
                // This also limits how often CHAT is asked while an overflow goes on.
                sleep(LOST_POSTS_CHECK_EVERY).await;
                LostPost::Whose(lost, misses)
            });
        }
    }

    /// Whether no post is missing, so that CHAT may be trimmed.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_looking && self.lost.is_empty() && self.arrivals.is_complete()
    }

    /// The result of the next task; pends while none runs. Cancel-safe.
    pub(super) async fn found(&mut self) -> LostPost {
        match self.running.join_next().await {
            None => std::future::pending().await,
            Some(found) => found.unwrap_or(LostPost::Told),
        }
    }

    /// Counts and logs the lost posts, and notifies their senders.
    pub(super) fn take(&mut self, found: LostPost) {
        match found {
            LostPost::Told => {}
            LostPost::Whose(lost, Err(error)) => {
                self.is_looking = false;
                warn!(space = %self.reporter.space, %error, "cannot read whose posts were lost; retrying");
                self.lost.add(lost);
            }
            LostPost::Whose(_, Ok(misses)) => {
                self.is_looking = false;
                misses.into_iter().for_each(|miss| self.report(miss));
            }
        }
    }

    fn report(&mut self, miss: Miss) {
        self.counters.add_unrouted(&miss);
        if !self.episodes.begins(&miss, now_ms()) {
            return;
        }
        let Miss { first, last, at_least, at_most, .. } = miss;
        let space = &self.reporter.space;
        let Some((sender, channel)) = miss.of else {
            error!(
                %space, first, last, at_least, at_most,
                "posts were deleted from CHAT before they were routed"
            );
            return;
        };
        error!(
            %space, %sender, %channel, first, last, at_least, at_most,
            "CHAT's cap discarded posts before they were routed: one sender posted more on one \
             channel than CHAT keeps"
        );
        let reporter = self.reporter.clone();
        self.running.spawn(async move {
            reporter.tell(&sender, &channel, (first, last)).await;
            LostPost::Told
        });
    }
}

impl Reporter {
    /// The subjects that are at CHAT's cap.
    async fn full_subjects(&self) -> Result<Vec<FullSubject>, NatsError> {
        let chat = self.space.chat_stream();
        let cap = self.connection.stream_info(&chat).await?.config.max_msgs_per_subject;
        let Ok(cap) = u64::try_from(cap) else { return Ok(Vec::new()) };
        let (mut full, mut offset) = (Vec::new(), 0);
        loop {
            let filter = self.space.chat_all();
            let page = self.connection.stream_info_subjects(&chat, &filter, offset).await?;
            offset += page.subjects.len() as u64;
            let is_last = page.subjects.is_empty() || offset >= page.total;
            for (subject, _) in page.subjects.into_iter().filter(|(_, count)| *count >= cap) {
                let Some((sender, channel)) = self.space.parse_chat(&subject) else { continue };
                let oldest = self.connection.direct_next(&chat, 1, &subject, 1).await?;
                let oldest = oldest.messages.first().map_or(u64::MAX, |post| post.seq);
                full.push(FullSubject { sender, channel, oldest });
            }
            if is_last {
                return Ok(full);
            }
        }
    }

    /// Sends the notice from the daemon's own principal.
    async fn tell(&self, sender: &Principal, channel: &Channel, range: (u64, u64)) {
        let id = format!("unrouted-{}-{}", self.incarnation, range.0);
        let body = match serde_json::to_vec(&self.notice(&id, sender, channel, range)) {
            Ok(body) => cotal_nats::Bytes::from(body),
            Err(error) => return warn!(%error, "a notice cannot be encoded"),
        };
        let subject = self.space.inst(sender, &self.own);
        for _ in 0..TELL_ATTEMPTS {
            self.gate.clone().open().await;
            let (to, body) = (subject.clone(), body.clone());
            match self.connection.publish_confirmed(to, None, body, Some(&id)).await {
                Ok(_) => return,
                Err(error) => {
                    warn!(space = %self.space, %sender, %error, "cannot notify the sender of lost posts yet; retrying");
                    sleep(LOST_POSTS_CHECK_EVERY).await;
                }
            }
        }
    }

    fn notice(
        &self,
        id: &str,
        sender: &Principal,
        channel: &Channel,
        (first, last): (u64, u64),
    ) -> Message {
        let text = format!(
            "some of your posts on {channel} (sequences {first} to {last}) were not delivered: you \
             posted faster than they could be routed, and more than the channel keeps. Post more \
             slowly, and post again what matters"
        );
        let data = serde_json::json!({
            "type": "unrouted", "channel": channel, "first": first, "last": last,
        });
        let parts = vec![Part::Text { text }, Part::Data { data }];
        daemon_message(&self.space, &self.own, sender, id, now_ms(), parts)
    }
}
