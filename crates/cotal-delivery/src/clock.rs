//! The clocks. Only this file reads them.

use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The clock that continues while the host sleeps.
#[cfg(target_os = "linux")]
const UNINTERRUPTED: ClockId = ClockId::Boottime;
/// On other systems the monotonic clock must do.
#[cfg(not(target_os = "linux"))]
const UNINTERRUPTED: ClockId = ClockId::Monotonic;

/// Now, in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// An instant of a clock that never jumps, and that continues while this process is stopped or the
/// whole host sleeps. `std::time::Instant` stands still then, while a broker on another host goes
/// on counting the lease's age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(Duration);

impl BootInstant {
    /// Now.
    pub(crate) fn now() -> Self {
        let now = clock_gettime(UNINTERRUPTED);
        let whole = Duration::from_secs(now.tv_sec.unsigned_abs());
        Self(whole + Duration::from_nanos(now.tv_nsec.unsigned_abs()))
    }

    /// How long ago this was.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// The same in milliseconds, as the rules expect.
    pub(crate) fn elapsed_ms(self) -> i64 {
        i64::try_from(self.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's uptime includes the time that the host slept.
    #[cfg(target_os = "linux")]
    #[test]
    fn lse_6_the_clock_of_the_gate_counts_the_time_that_the_host_slept() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let apart = (BootInstant::now().0.as_secs_f64() - seconds).abs();
        assert!(apart < 5.0, "{apart} s apart");
        assert!(BootInstant::now() + Duration::from_secs(1) > BootInstant::now());
    }
}
