//! A retry delay that grows with each consecutive failure.

use crate::waiting::retry_delay_ms;

/// Longest delay: work resumes at most this long after the cause of the failures is gone.
const LONGEST_MS: i64 = 30_000;

/// Counts consecutive failures, and gives the delay after each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff {
    failures: u64,
}

impl Backoff {
    /// Notes a failure; returns how long to wait, in milliseconds.
    pub fn next_ms(&mut self) -> i64 {
        self.failures = self.failures.saturating_add(1);
        retry_delay_ms(self.failures).min(LONGEST_MS)
    }

    /// Notes a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Consecutive failures so far.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_to_half_a_minute_and_begins_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let delays: Vec<_> = (0..7).map(|_| backoff.next_ms()).collect();
        assert_eq!(delays, [2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        backoff.reset();
        assert_eq!((backoff.failures(), backoff.next_ms()), (0, 2_000));
    }
}
