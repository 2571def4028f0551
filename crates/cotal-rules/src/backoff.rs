//! A retry delay that grows with each consecutive failure.

use std::time::Duration;

use crate::waiting::retry_delay;

/// Longest delay: work resumes at most this long after the cause of the failures is gone.
const LONGEST: Duration = Duration::from_secs(30);

/// Counts consecutive failures, and gives the delay after each.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff {
    failures: u64,
}

impl Backoff {
    /// Notes a failure; returns how long to wait.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        retry_delay(self.failures).min(LONGEST)
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
        let delays: Vec<_> = (0..7).map(|_| backoff.next_delay().as_secs()).collect();
        assert_eq!(delays, [2, 4, 8, 16, 30, 30, 30]);
        backoff.reset();
        assert_eq!((backoff.failures(), backoff.next_delay().as_secs()), (0, 2));
    }
}
