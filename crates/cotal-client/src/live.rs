//! Live delivery on one channel: a subscription that the broker alone allows, daemon or not
//! (AGT-2).

use cotal_nats::Subscription;
use cotal_wire::{Channel, Space};
use tokio_util::sync::CancellationToken;

use crate::copy;
use crate::notice::Notice;
use crate::sink::Sink;

/// The task that reads one subscription.
#[derive(Debug)]
pub(crate) struct LivePump {
    pub(crate) channel: Channel,
    pub(crate) space: Space,
    pub(crate) subscription: Subscription,
    pub(crate) sink: Sink,
    /// Cancelled to end it, and by itself when it has ended.
    pub(crate) token: CancellationToken,
}

impl LivePump {
    pub(crate) async fn run(mut self) {
        loop {
            let message = tokio::select! {
                biased;
                () = self.token.cancelled() => break,
                message = self.subscription.next() => message,
            };
            let message = match message {
                Ok(message) => message,
                Err(error) => {
                    self.token.cancel();
                    self.sink.notify(Notice::LiveEnded {
                        channel: self.channel.clone(),
                        reason: error.to_string(),
                    });
                    break;
                }
            };
            match copy::post(&self.space, &message.subject, message.payload, None) {
                Ok(copy) => self.sink.live(copy),
                Err(why) => self.sink.notify(Notice::Rejected {
                    found_in: self.channel.to_string(),
                    reason: why.to_string(),
                }),
            }
        }
        // The connection may be gone already; then the broker has forgotten it anyway.
        let _ = self.subscription.unsubscribe().await;
    }
}
