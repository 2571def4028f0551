//! When the host reopens a lane that has ended (HST-3, STB-1).
//!
//! A held lease is no fault: the lane waits until the lease row is gone, and also asks for it at a
//! fixed interval. After any other cause the host backs off, because the next attempt meets the
//! same broker. After an invalid credential it starts with a longer delay, because only a person or
//! a renewal can replace it.

/// Interval at which a waiting lane asks for a held lease row, in milliseconds (STB-1).
pub const HELD_RETRY_MS: i64 = 5_000;
/// The first delay after a fault, or after the broker went away, in milliseconds.
const FAULT_FIRST_MS: i64 = 500;
/// The first delay after an invalid credential, in milliseconds.
const REFUSED_FIRST_MS: i64 = 2_000;
/// The longest delay, in milliseconds: a lane is reopened at most this long after its fault is
/// mended.
const LONGEST_MS: i64 = 30_000;
/// A lane that served for this long, in milliseconds, has recovered: its next end starts with the
/// first delay again. A lane that ends sooner must not be reopened in a tight loop.
const RECOVERED_MS: i64 = 30_000;

/// Why a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Another daemon holds the lease.
    Held,
    /// The broker refused its credentials, or something that they must be allowed to do.
    Refused,
    /// The broker went away, or could not be reached.
    BrokerAway,
    /// It failed in another way.
    Failed,
}

/// When to open the lane again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopen {
    /// As soon as the lease row is gone; the row is also asked for at this interval.
    OnceTheRowIsGone {
        /// The interval, in milliseconds.
        ask_every_ms: i64,
    },
    /// After this many milliseconds.
    After(i64),
}

/// The reopen policy of one lane.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReopenPolicy {
    /// Ends without recovery in between.
    failures: u32,
}

impl ReopenPolicy {
    /// The lane ended for `cause` after it had served for `served_ms`; `random` spreads the retries
    /// of lanes that ended together.
    pub fn ended(&mut self, cause: Cause, served_ms: i64, random: u64) -> Reopen {
        if cause == Cause::Held || served_ms >= RECOVERED_MS {
            self.failures = 0;
        }
        let first = match cause {
            Cause::Held => return Reopen::OnceTheRowIsGone { ask_every_ms: HELD_RETRY_MS },
            Cause::Refused => REFUSED_FIRST_MS,
            Cause::BrokerAway | Cause::Failed => FAULT_FIRST_MS,
        };
        let doubled = first.saturating_mul(1_i64.checked_shl(self.failures).unwrap_or(i64::MAX));
        self.failures = self.failures.saturating_add(1).min(i64::BITS - 2);
        Reopen::After(jittered(doubled.clamp(first, LONGEST_MS), random))
    }
}

/// A random delay between half of `delay` and all of it.
fn jittered(delay: i64, random: u64) -> i64 {
    let half = delay / 2;
    let spread = half.unsigned_abs().saturating_add(1);
    delay - half + i64::try_from(random % spread).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(cause: Cause, random: u64) -> Vec<i64> {
        let mut policy = ReopenPolicy::default();
        let delay = |_| match policy.ended(cause, 0, random) {
            Reopen::After(ms) => ms,
            other @ Reopen::OnceTheRowIsGone { .. } => panic!("{other:?}"),
        };
        (0..100).map(delay).collect()
    }

    #[test]
    fn stb_1_a_held_lease_is_asked_for_every_five_seconds_however_often_it_was_held() {
        let mut policy = ReopenPolicy::default();
        for _ in 0..100 {
            let held = policy.ended(Cause::Held, 0, 7);
            assert_eq!(held, Reopen::OnceTheRowIsGone { ask_every_ms: 5_000 });
        }
    }

    #[test]
    fn hst_3_delays_double_up_to_half_a_minute_and_never_leave_their_bounds() {
        for (cause, first) in [(Cause::Refused, 2_000), (Cause::BrokerAway, 500)] {
            let least = delays(cause, 0);
            assert_eq!(least[..3], [first / 2, first, 2 * first]);
            assert_eq!(least.last(), Some(&15_000));
            for random in [1, 12_345, u64::MAX] {
                for (least, delay) in least.iter().zip(delays(cause, random)) {
                    assert!((*least..=2 * least).contains(&delay), "{delay} of {least}");
                }
            }
        }
    }

    #[test]
    fn hst_3_a_lane_that_recovered_or_waited_for_another_begins_anew() {
        let mut policy = ReopenPolicy::default();
        let mut fail = |served| policy.ended(Cause::Failed, served, 0);
        assert_eq!((fail(0), fail(29_999)), (Reopen::After(250), Reopen::After(500)));
        assert_eq!(fail(30_000), Reopen::After(250));
        fail(0);
        policy.ended(Cause::Held, 0, 0);
        assert_eq!(policy.ended(Cause::Failed, 0, 0), Reopen::After(250));
    }
}
