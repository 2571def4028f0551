//! Telling senders that a post of theirs was refused for good: the broker confirmed it, so nobody
//! else would.
//!
//! Invariant: beside the path of posts and never in it. What cannot be told, because too many wait
//! to be or the broker does not answer, is in the log all the same.

use cotal_nats::{Connection, NatsError};
use cotal_rules::refusals::Refusals;
use cotal_wire::envelope::Part;
use cotal_wire::posts::{POST_REFUSED, RefusedPost, refused_id};
use cotal_wire::{Channel, Principal, Space};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::clock::now_ms;
use crate::daemon_message::daemon_message;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;

/// Refused posts that wait to be told of.
const REPORTS: usize = 256;

/// A post that can never be delivered.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) sender: Principal,
    pub(crate) channel: Channel,
    pub(crate) seq: u64,
    /// When the broker stored it, Unix milliseconds; with the number it names the post for good.
    pub(crate) stored: i64,
    pub(crate) reason: String,
}

/// The writer's side.
#[derive(Debug, Clone)]
pub(crate) struct RefusalReports(mpsc::Sender<Refused>);

impl RefusalReports {
    pub(crate) fn refused(&self, refused: Refused) {
        // A full queue is one of a flood, whose senders are told of their first.
        let _ = self.0.try_send(refused);
    }
}

/// The task that tells them.
pub(crate) struct RefusalNotices {
    space: Space,
    connection: Connection,
    own: Principal,
    gate: Gate,
    reports: mpsc::Receiver<Refused>,
}

/// Starts telling, and gives the writer its side.
pub(crate) fn spawn(context: &LaneContext) -> RefusalReports {
    let (sender, reports) = mpsc::channel(REPORTS);
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
                warn!(space = %self.space, %sender, seq, %error, "a sender does not learn that its post was refused");
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
            "your post {seq} on {channel} was refused and reaches nobody: {reason}. While posts of yours are \
             refused you are told once in a while, not of each"
        );
        let data = RefusedPost {
            kind: POST_REFUSED.to_owned(),
            seq: *seq,
            channel: channel.clone(),
            reason: reason.clone(),
        };
        let parts = vec![
            Part::Text { text },
            Part::Data { data: serde_json::to_value(data).unwrap_or_default() },
        ];
        let message = daemon_message(&self.space, &self.own, sender, &id, now_ms(), parts);
        let body = serde_json::to_vec(&message).unwrap_or_default();
        let subject = self.space.inst(sender, &self.own);
        self.connection.publish_confirmed(subject, None, body.into(), Some(&id)).await.map(drop)
    }
}
