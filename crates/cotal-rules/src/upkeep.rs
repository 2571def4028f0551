//! How often a lane looks whether everything still stands.
//!
//! One daemon can look often. The lanes of a host share a process and a broker, so each looks the
//! more seldom the more they are, down to a bound: up to [`FULL_RATE_LANES`] look as often as one
//! daemon does, ten times as many together ask no more than those, and beyond the bounds a lane
//! that does nothing costs next to nothing. What is looked for is also told by events, which wait
//! for no turn; the bounds hold for what no event tells.

use std::time::Duration;

/// Lanes that look as often as a daemon of one space.
const FULL_RATE_LANES: u32 = 10;

/// The looks of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upkeep {
    /// Between two looks at the streams: a stream that became another one is noticed within it.
    pub streams_every: Duration,
    /// Between two heartbeats of an idle pull or watch: one whose consumer is gone without a word
    /// is noticed within twice as long, or when something is seen to be missing.
    pub heartbeat: Duration,
    /// Between two pings of a connection that delivery does not hang on.
    pub ping_every: Duration,
    /// Between two censuses for the feed while nobody is connected.
    pub feed_idle_every: Duration,
}

impl Upkeep {
    /// Of each of `lanes` in one process.
    #[must_use]
    pub fn of_one_in(lanes: usize) -> Self {
        let lanes = u32::try_from(lanes).unwrap_or(u32::MAX);
        let secs = Duration::from_secs;
        let scaled = |base: Duration, longest: Duration| {
            (base.saturating_mul(lanes) / FULL_RATE_LANES).clamp(base, longest)
        };
        Self {
            streams_every: scaled(secs(2), secs(60)),
            heartbeat: scaled(secs(2), secs(30)),
            ping_every: scaled(secs(5), secs(60)),
            feed_idle_every: scaled(secs(15), secs(60)),
        }
    }
}

impl Default for Upkeep {
    fn default() -> Self {
        Self::of_one_in(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_lanes_the_more_seldom_each_looks_within_bounds() {
        let streams = |lanes| Upkeep::of_one_in(lanes).streams_every.as_secs();
        let table = [(0, 2), (1, 2), (10, 2), (50, 10), (100, 20), (1_000, 60), (usize::MAX, 60)];
        for (lanes, every) in table {
            assert_eq!(streams(lanes), every, "{lanes} lanes");
        }
        let many = Upkeep::of_one_in(1_000);
        let bounds = [many.heartbeat, many.ping_every, many.feed_idle_every];
        assert_eq!(bounds.map(|bound| bound.as_secs()), [30, 60, 60]);
        assert_eq!(Upkeep::default(), Upkeep::of_one_in(FULL_RATE_LANES as usize));
    }
}
