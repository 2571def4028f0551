//! How far a consumer's deliveries have come here.

use super::delivery::Delivery;

/// The newest of a consumer's deliveries that came here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Newest {
    /// Its number among them; 0 before the first.
    pub(super) number: u64,
    /// The highest sequence in the stream.
    pub(super) stream_seq: u64,
    /// Whether it was none for the first time.
    pub(super) is_again: bool,
}

impl Newest {
    pub(super) fn note(&mut self, delivery: &Delivery) {
        self.stream_seq = self.stream_seq.max(delivery.stream_seq);
        if delivery.consumer_seq > self.number {
            self.number = delivery.consumer_seq;
            self.is_again = delivery.delivered > 1;
        }
    }
}
