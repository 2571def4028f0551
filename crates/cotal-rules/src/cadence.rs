//! When an unanswered request to the daemon is sent again (ADM-4, INV-6).
//!
//! The first retry is sent at once. Later ones start at most a second apart, and the gap shrinks as
//! the wait runs out, so a daemon that binds its rail in the last seconds still gets a request.
//! Nothing is sent after the end of the wait, and an attempt in flight is cut off there.

/// Longest gap between the starts of two attempts, in milliseconds.
const LONGEST_GAP_MS: i64 = 1_000;
/// Shortest gap, so that requests do not spin at the end of a wait.
const SHORTEST_GAP_MS: i64 = 50;

/// How long a starting manager waits for the rail, in milliseconds (ADM-4).
pub const START_WAIT_MS: i64 = 60_000;
/// How long a retirement waits for an eviction, in milliseconds (INV-6).
pub const RETIREMENT_WAIT_MS: i64 = 15_000;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Send at `at`, and stop waiting for the answer at `until`.
    Send {
        /// When: Unix milliseconds, or those of any clock that never jumps.
        at: i64,
        /// The end of the whole wait.
        until: i64,
    },
    /// The wait is over.
    Over,
}

/// One wait: the attempts so far, and when it ends.
#[derive(Debug, Clone)]
pub struct Cadence {
    until: i64,
    attempts: u32,
    last_start: i64,
}

impl Cadence {
    /// A wait that begins now and lasts `wait_ms`.
    #[must_use]
    pub fn new(now: i64, wait_ms: i64) -> Self {
        Self { until: now + wait_ms, attempts: 0, last_start: now }
    }

    /// What to do at the start, or after an attempt that was not answered.
    pub fn next(&mut self, now: i64) -> Next {
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

    fn gap(&self, now: i64) -> i64 {
        ((self.until - now) / 4).clamp(SHORTEST_GAP_MS, LONGEST_GAP_MS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Attempts that are each unanswered for `silence` milliseconds: when each was sent.
    fn sends(wait: i64, silence: i64) -> Vec<i64> {
        let mut cadence = Cadence::new(0, wait);
        let (mut now, mut sent) = (0, Vec::new());
        while let Next::Send { at, until } = cadence.next(now) {
            assert_eq!(until, wait);
            sent.push(at);
            now = (at + silence).min(until);
        }
        sent
    }

    #[test]
    fn adm_4_the_first_retry_is_at_once_and_later_ones_a_second_apart() {
        assert_eq!(sends(10_000, 0)[..4], [0, 0, 1_000, 2_000]);
    }

    #[test]
    fn inv_6_a_daemon_that_binds_in_the_last_second_is_still_asked() {
        let sent = sends(RETIREMENT_WAIT_MS, 5);
        assert!(sent.iter().filter(|&&at| at >= RETIREMENT_WAIT_MS - 1_000).count() >= 3);
    }

    proptest! {
        #[test]
        fn nothing_is_sent_after_the_end_and_no_gap_is_longer_than_a_second(
            wait in 1_i64..100_000, silence in 0_i64..5_000,
        ) {
            let sent = sends(wait, silence);
            prop_assert!(sent.iter().all(|&at| at < wait));
            for pair in sent.windows(2) {
                prop_assert!(pair[1] - pair[0] <= LONGEST_GAP_MS.max(silence));
            }
            let bound = wait / SHORTEST_GAP_MS + 3;
            prop_assert!(i64::try_from(sent.len()).unwrap() <= bound, "bounded in count");
        }
    }
}
