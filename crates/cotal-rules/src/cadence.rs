//! When an unanswered request to the daemon is sent again (ADM-4, INV-6).
//!
//! The first retry is sent at once. Later ones start at most a second apart, and the gap shrinks as
//! the wait runs out, so a daemon that binds its rail in the last seconds still gets a request.
//! Nothing is sent after the end of the wait, and an attempt in flight is cut off there.

use std::time::Duration;

/// Longest gap between the starts of two attempts.
const LONGEST_GAP: Duration = Duration::from_secs(1);
/// Shortest gap, so that requests do not spin at the end of a wait.
const SHORTEST_GAP: Duration = Duration::from_millis(50);

/// How long a starting manager waits for the rail (ADM-4).
pub const START_WAIT: Duration = Duration::from_secs(60);
/// How long a retirement waits for an eviction (INV-6).
pub const RETIREMENT_WAIT: Duration = Duration::from_secs(15);

/// What to do next. Times are counted from the start of the wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Send at `at`, and stop waiting for the answer at `until`.
    Send {
        /// When.
        at: Duration,
        /// The end of the whole wait.
        until: Duration,
    },
    /// The wait is over.
    Over,
}

/// One wait: the attempts so far, and when it ends.
#[derive(Debug, Clone)]
pub struct Cadence {
    until: Duration,
    attempts: u32,
    last_start: Duration,
}

impl Cadence {
    /// A wait that lasts `wait`.
    #[must_use]
    pub fn new(wait: Duration) -> Self {
        Self { until: wait, attempts: 0, last_start: Duration::ZERO }
    }

    /// What to do at the start, or after an attempt that was not answered; `now` since the start.
    pub fn next(&mut self, now: Duration) -> Next {
        let at = match self.attempts {
            0 | 1 => now,
            _ => now.max(self.last_start + self.gap(now)),
        };
        if at >= self.until {
            return Next::Over;
        }
        self.attempts += 1;
        self.last_start = at;
        Next::Send { at, until: self.until }
    }

    fn gap(&self, now: Duration) -> Duration {
        (self.until.saturating_sub(now) / 4).clamp(SHORTEST_GAP, LONGEST_GAP)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Attempts that are each unanswered for `silence`: when each was sent.
    fn sends(wait: Duration, silence: Duration) -> Vec<Duration> {
        let mut cadence = Cadence::new(wait);
        let (mut now, mut sent) = (Duration::ZERO, Vec::new());
        while let Next::Send { at, until } = cadence.next(now) {
            assert_eq!(until, wait);
            sent.push(at);
            now = (at + silence).min(until);
        }
        sent
    }

    #[test]
    fn adm_4_the_first_retry_is_at_once_and_later_ones_a_second_apart() {
        assert_eq!(sends(ms(10_000), ms(0))[..4], [ms(0), ms(0), ms(1_000), ms(2_000)]);
    }

    #[test]
    fn inv_6_a_daemon_that_binds_in_the_last_second_is_still_asked() {
        let sent = sends(RETIREMENT_WAIT, ms(5));
        assert!(sent.iter().filter(|&&at| at >= RETIREMENT_WAIT - ms(1_000)).count() >= 3);
    }

    proptest! {
        #[test]
        fn nothing_is_sent_after_the_end_and_no_gap_is_longer_than_a_second(
            wait in 1_u64..100_000, silence in 0_u64..5_000,
        ) {
            let (wait, silence) = (ms(wait), ms(silence));
            let sent = sends(wait, silence);
            prop_assert!(sent.iter().all(|&at| at < wait));
            for pair in sent.windows(2) {
                prop_assert!(pair[1] - pair[0] <= LONGEST_GAP.max(silence));
            }
            let bound = wait.as_millis() / SHORTEST_GAP.as_millis() + 3;
            prop_assert!(sent.len() as u128 <= bound, "bounded in count");
        }
    }
}
