//! Tells senders that a post of theirs can never be delivered. The broker has confirmed the post,
//! so nobody else would tell them.
//!
//! Invariant: this never holds up the path of posts. If too many notices wait, or the broker does
//! not answer, a notice is not sent; the log has the refusal in any case.

use cotal_nats::{Connection, NatsError, to_json};
use cotal_rules::refusals::Refusals;
use cotal_wire::envelope::Part;
use cotal_wire::posts::{POST_REFUSED, RefusedPost, refused_id};
use cotal_wire::{Channel, Principal, Space};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::clock::now_ms;
use crate::daemon_message::daemon_message;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;

/// Refused posts whose senders are still to be told.
const MAX_QUEUED_REPORTS: usize = 256;

/// A post that can never be delivered.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) sender: Principal,
    pub(crate) channel: Channel,
    pub(crate) seq: u64,
    /// When the broker stored it, Unix milliseconds; together with the sequence this identifies the
    /// post.
    pub(crate) stored: i64,
    pub(crate) reason: String,
}

/// The writer's side.
#[derive(Debug, Clone)]
pub(crate) struct RefusalReports(mpsc::Sender<Refused>);

impl RefusalReports {
    pub(crate) fn refused(&self, refused: Refused) {
        // The queue is full only in a flood, and its senders are told of their first refused post.
        let _ = self.0.try_send(refused);
    }
}

/// The task that sends the notices.
pub(crate) struct RefusalNotices {
    space: Space,
    connection: Connection,
    own: Principal,
    gate: Gate,
    reports: mpsc::Receiver<Refused>,
}

/// Starts the task; returns the writer's side.
pub(crate) fn spawn(context: &LaneContext) -> RefusalReports {
    let (sender, reports) = mpsc::channel(MAX_QUEUED_REPORTS);
    let notices = RefusalNotices {
        space: context.space.clone(),
        connection: context.connection.clone(),
        own: context.principal.clone(),
        gate: context.gate.clone(),
        reports,
    };
    context.spawn("the notices of refused posts", notices.run(context.stop.clone()));
    RefusalReports(sender)
}

impl RefusalNotices {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut refusals = Refusals::default();
        loop {
            let refused = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(refused) = self.reports.recv() => refused,
                else => return,
            };
            if refusals.refused(&refused.sender, now_ms())
                && let Err(error) = self.tell(&refused).await
            {
                let (sender, seq) = (&refused.sender, refused.seq);
                warn!(space = %self.space, %sender, seq, %error, "could not tell a sender that its post was refused");
            }
        }
    }

    async fn tell(&self, refused: &Refused) -> Result<(), NatsError> {
        if !self.gate.is_open() {
            return Err(NatsError::Withheld { what: "the notice of a refused post".to_owned() });
        }
        let Refused { sender, channel, seq, stored, reason } = refused;
        let id = refused_id(*seq, *stored);
        let text = format!(
            "your post {seq} on {channel} was refused and will reach nobody: {reason}. If more of your \
             posts are refused, you are told from time to time, not about each"
        );
        let data = RefusedPost {
            kind: POST_REFUSED.to_owned(),
            seq: *seq,
            channel: channel.clone(),
            reason: reason.clone(),
        };
        let parts = vec![Part::Text { text }, Part::Data { data: json!(data) }];
        let message = daemon_message(&self.space, &self.own, sender, &id, now_ms(), parts);
        let body = to_json(&message)?;
        let subject = self.space.inst(sender, &self.own);
        self.connection.publish_confirmed(subject, None, body, Some(&id)).await.map(drop)
    }
}
