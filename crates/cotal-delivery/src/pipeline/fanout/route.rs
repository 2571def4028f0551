//! How one post is parsed, planned, copied and settled.

use cotal_nats::{Delivery, NatsError, Ticket};
use cotal_rules::fanout::{Plan, Post};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::copies::{make_copies, read_post};
use super::refusals::Refused;
use super::{EXTEND_EVERY, Fanout, Routable, Routed, batch_size};
use crate::consumer::answers::log_failure;
use crate::counters::add;

impl Fanout {
    pub(super) async fn read_all(&mut self, batch: Vec<Delivery>) -> Vec<Routable> {
        let mut posts = Vec::with_capacity(batch.len());
        for delivery in batch {
            posts.extend(self.read(delivery).await);
        }
        posts
    }

    /// Parses a post. One that can never be routed is terminated (FAN-6).
    async fn read(&mut self, delivery: Delivery) -> Option<Routable> {
        let parts = &mut self.parts;
        let seq = delivery.stream_seq;
        let why = match parts.space.parse_chat(&delivery.subject) {
            Some((sender, channel)) if sender.has_real_owner() => {
                match read_post(delivery.headers.as_ref(), &delivery.payload, &sender, &channel) {
                    Ok(head) => {
                        return Some(Routable { delivery, sender, channel, head });
                    }
                    Err(reason) => {
                        let stored =
                            i64::try_from(delivery.timestamp_ns / 1_000_000).unwrap_or_default();
                        let why = reason.clone();
                        parts.refusals.refused(Refused { sender, channel, seq, stored, reason });
                        why
                    }
                }
            }
            _ => "its subject names no valid sender and channel".to_owned(),
        };
        warn!(space = %parts.space, seq, why, "a post can never be delivered; it is terminated");
        add(&parts.counters.refused_posts, 1);
        parts.tracker.dealt_with(seq);
        log_failure(&parts.space, "terminate a post", delivery.term().await);
        None
    }

    /// Plans a post and gives its copies to the writer.
    pub(super) async fn route(&mut self, post: Routable) {
        let Routable { delivery, sender, channel, head } = post;
        let seq = delivery.stream_seq;
        let post = Post { seq, sender: &sender, channel: &channel, mentions: &head.mentions };
        let plan = match self.plan(&post).await {
            Ok(plan) => plan,
            Err(error) => return self.fail(delivery, &error, "a membership could not be read"),
        };
        if plan.copies.is_empty() {
            add(&self.parts.counters.posts, 1);
            self.parts.tracker.dealt_with(seq);
            log_failure(&self.parts.space, "ack a post", delivery.ack().await);
            return;
        }
        let copies = plan.copies.len();
        let space = &self.parts.space;
        let made = make_copies(space, &delivery.payload, seq, &channel, &sender, &head, &plan);
        match self.parts.writer.submit(made).await {
            Ok(ticket) => {
                add(&self.parts.counters.posts, 1);
                self.want = batch_size(copies);
                self.window.routed();
                self.under_way.push(Box::pin(finish(delivery, copies, ticket)));
            }
            Err(error) => self.fail(delivery, &error, "the writer did not accept its copies"),
        }
    }

    /// Plans a post. If a rejoin hides an earlier interval, the bucket's history is read first.
    async fn plan(&mut self, post: &Post<'_>) -> Result<Plan, NatsError> {
        let view = &self.parts.view;
        let plan = view.plan(post);
        if plan.unsure.is_empty() {
            return Ok(plan);
        }
        for member in &plan.unsure {
            view.learn(post.channel, member).await?;
        }
        Ok(view.plan(post))
    }

    /// Keeps a post for a retry.
    fn fail(&mut self, delivery: Delivery, error: &NatsError, why: &str) {
        let seq = delivery.stream_seq;
        if self.failed.is_empty() {
            let delay = self.backoff.next_delay();
            self.try_again_at = Instant::now() + delay;
            warn!(space = %self.parts.space, seq, %error, why, ?delay, "posts could not be routed; retrying");
        }
        self.failed.push(delivery);
    }

    pub(super) async fn settle(&mut self, routed: Routed) {
        let Routed { delivery, copies, outcome } = routed;
        let seq = delivery.stream_seq;
        if !self.parts.gate.is_open() {
            return;
        }
        let failed = outcome.err().map(|error| error.failed).unwrap_or_default();
        let confirmed = copies - failed.len().min(copies);
        add(&self.parts.counters.copies, confirmed as u64);
        let (too_large, other): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|(_, error)| matches!(error, NatsError::TooLarge { .. }));
        if !too_large.is_empty() {
            let lost = too_large.len();
            add(&self.parts.counters.given_up, lost as u64);
            error!(
                space = %self.parts.space, seq, lost,
                "copies are too large for INBOX and are given up"
            );
        }
        if let Some((_, error)) = other.first() {
            self.fail(delivery, error, "copies are unconfirmed");
        } else {
            self.backoff.reset();
            self.parts.tracker.dealt_with(seq);
            log_failure(&self.parts.space, "ack a post", delivery.ack().await);
        }
    }
}

/// Waits for a post's copies, and tells the broker regularly that the post is still in progress.
async fn finish(delivery: Delivery, copies: usize, mut ticket: Ticket) -> Routed {
    loop {
        tokio::select! {
            outcome = &mut ticket => return Routed { delivery, copies, outcome },
            () = tokio::time::sleep(EXTEND_EVERY) => {
                if let Err(error) = delivery.progress().await {
                    debug!(%error, "the ack wait of a post could not be extended");
                }
            }
        }
    }
}
