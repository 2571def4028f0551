//! How far a consumer's reader has provably come: the sequence up to which every message of the
//! stream has been dealt with.
//!
//! The highest settled sequence proves nothing: a message below it may still be with a process that
//! died or is paused, or lost with a connection. Two things prove something:
//! - The broker's **ack floor**: everything up to it is acknowledged.
//! - The broker **numbers** a consumer's deliveries without a gap. While the numbers that arrive
//!   here follow on each other, every first delivery since the start came here, in the order of the
//!   stream; so whatever is at or below the highest one and not *open* here has been dealt with.
//!
//! What was delivered before the start, and what a gap in the numbers hides, went somewhere else.
//! Up to the last of those, progress stands still at the ack floor until the floor has passed them
//! all.
//!
//! Invariant: [`Progress::done`] never falls, and nothing at or below it is undelivered, or
//! delivered and not yet dealt with, by anybody.

use std::collections::BTreeSet;

/// What the broker says of a consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerLook {
    /// Deliveries made so far, repeated ones included.
    pub deliveries: u64,
    /// The highest sequence that was delivered.
    pub delivered: u64,
    /// Everything at or below is acknowledged.
    pub ack_floor: u64,
    /// Messages delivered and not acknowledged.
    pub unacked: u64,
    /// Messages never delivered.
    pub pending: u64,
}

/// When a look was asked for: it proves nothing of a gap that shows later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookTicket {
    gaps: u64,
}

/// The progress of the only process that may answer for a consumer's messages.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The number of the last delivery that arrived here, or was made before the start.
    number: u64,
    /// Everything at or below was delivered, here or elsewhere.
    delivered: u64,
    /// Everything at or below was delivered elsewhere in part: only the ack floor proves it.
    elsewhere: u64,
    /// Gaps in the numbers so far.
    gaps: u64,
    /// Gaps whose end a look has shown.
    gaps_bounded: u64,
    /// The broker's ack floor.
    floor: u64,
    /// Delivered here, and not dealt with.
    open: BTreeSet<u64>,
    done: u64,
}

impl Progress {
    /// Begins with what others did before; `last` is the stream's last sequence as it was read
    /// before the look was asked for.
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

    /// A consumer was made anew, and begins with the message at `first`.
    pub fn recreated(&mut self, first: u64) {
        self.number = 0;
        self.delivered = first.saturating_sub(1).max(self.done);
        self.elsewhere = self.floor;
        self.gaps_bounded = self.gaps;
        self.open.clear();
        self.advance();
    }

    /// A delivery has arrived: its number and its sequence. They must be told in the order of
    /// arrival.
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

    /// A message that arrived has been dealt with, for the first time at least.
    pub fn dealt_with(&mut self, seq: u64) {
        if self.open.remove(&seq) {
            self.advance();
        }
    }

    /// Begins a look.
    #[must_use]
    pub fn ticket(&self) -> LookTicket {
        LookTicket { gaps: self.gaps }
    }

    /// Takes what a look has shown; `last` is a sequence that the stream had given before the look
    /// was asked for.
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
            // Whatever is not delivered at or below `last` does not exist any more.
            if look.deliveries <= self.number && ticket.gaps == self.gaps {
                self.delivered = self.delivered.max(last);
            }
        }
        self.open = self.open.split_off(&(self.floor + 1));
        self.advance();
    }

    /// Everything at or below has been dealt with once.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Everything at or below was delivered, here or elsewhere.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Whether nothing is owed by a delivery that went elsewhere.
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
