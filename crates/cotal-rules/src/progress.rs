//! How far a consumer has provably come: the sequence up to which every message of the stream has
//! been processed.
//!
//! The highest settled sequence proves nothing: a message below it may still be with a process that
//! died or is paused, or may be lost with a connection. Two things are proof:
//! - The broker's **ack floor**: everything up to it is acknowledged.
//! - The broker **numbers** a consumer's deliveries without a gap. While the numbers that arrive
//!   here are consecutive, every first delivery since the start came here, in the order of the
//!   stream. So whatever is at or below the highest one, and not *open* here, has been processed.
//!
//! Deliveries made before the start, and those missing in a gap of the numbers, went to another
//! process or were lost. Until the ack floor has passed all of them, the ack floor alone is the
//! progress.
//!
//! Invariant: [`Progress::done`] never falls, and every message at or below it has been delivered
//! and processed, by whichever process.

use std::collections::BTreeSet;

/// What the broker's consumer info says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerLook {
    /// Deliveries made so far, redeliveries included.
    pub deliveries: u64,
    /// The highest sequence delivered.
    pub delivered: u64,
    /// Everything at or below is acknowledged.
    pub ack_floor: u64,
    /// Messages delivered and not acknowledged.
    pub unacked: u64,
    /// Messages not delivered yet.
    pub pending: u64,
}

/// Marks when consumer info was requested: the answer proves nothing about a gap noticed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookTicket {
    gaps: u64,
}

/// The progress of the one process that processes a consumer's messages.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The number of the last delivery that arrived here, or that was made before the start.
    number: u64,
    /// Every message at or below was delivered, here or elsewhere.
    delivered: u64,
    /// Some messages at or below were delivered elsewhere: for those only the ack floor is proof.
    elsewhere: u64,
    /// Gaps in the numbers so far.
    gaps: u64,
    /// Those of them whose end a consumer info has bounded since.
    gaps_bounded: u64,
    /// The broker's ack floor.
    floor: u64,
    /// Delivered here, and not processed yet.
    open: BTreeSet<u64>,
    done: u64,
}

impl Progress {
    /// Starts from what was delivered before. `last` is the stream's last sequence, read before the
    /// consumer info was requested.
    #[must_use]
    pub fn start(look: ConsumerLook, last: u64) -> Self {
        let mut progress = Self {
            number: look.deliveries,
            delivered: look.delivered,
            elsewhere: look.delivered,
            ..Self::default()
        };
        progress.looked(progress.ticket(), look, last);
        progress
    }

    /// The consumer was created again, and starts with the message at `first`.
    pub fn recreated(&mut self, first: u64) {
        self.number = 0;
        self.delivered = first.saturating_sub(1).max(self.done);
        self.elsewhere = self.floor;
        self.gaps_bounded = self.gaps;
        self.open.clear();
        self.advance();
    }

    /// A delivery has arrived, with its number and its sequence. Call this in the order of arrival.
    pub fn arrived(&mut self, number: u64, seq: u64) {
        if number != self.number + 1 {
            self.gaps += 1;
        }
        self.number = number;
        self.delivered = self.delivered.max(seq);
        if seq > self.done {
            self.open.insert(seq);
        }
    }

    /// A message that arrived has been processed at least once.
    pub fn dealt_with(&mut self, seq: u64) {
        if self.open.remove(&seq) {
            self.advance();
        }
    }

    /// Call this before consumer info is requested.
    #[must_use]
    pub fn ticket(&self) -> LookTicket {
        LookTicket { gaps: self.gaps }
    }

    /// Applies a consumer info. `last` is a sequence that the stream had given out before the
    /// consumer info was requested.
    pub fn looked(&mut self, ticket: LookTicket, look: ConsumerLook, last: u64) {
        if ticket.gaps > self.gaps_bounded {
            self.gaps_bounded = ticket.gaps;
            self.elsewhere = self.elsewhere.max(look.delivered);
        }
        self.floor = self.floor.max(look.ack_floor);
        if look.pending == 0 {
            if look.unacked == 0 {
                self.floor = self.floor.max(last);
            }
            // No message at or below `last` is undelivered any more.
            if look.deliveries <= self.number && ticket.gaps == self.gaps {
                self.delivered = self.delivered.max(last);
            }
        }
        self.open = self.open.split_off(&(self.floor + 1));
        self.advance();
    }

    /// Every message at or below has been processed at least once.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Every message at or below was delivered, here or elsewhere.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Whether no delivery that went elsewhere is still unacknowledged.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.gaps == self.gaps_bounded && self.floor >= self.elsewhere
    }

    fn advance(&mut self) {
        self.done = self.done.max(self.floor);
        if self.is_proven() {
            let here = self.open.first().map_or(self.delivered, |first| first - 1);
            self.done = self.done.max(here);
        }
    }
}

#[cfg(test)]
mod tests;
