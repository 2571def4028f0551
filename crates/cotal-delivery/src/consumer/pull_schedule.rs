//! When a loop pulls, and how many messages it waits for.

use cotal_nats::Gather;

/// How a loop pulls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PullSchedule {
    /// Batches that may be in progress at once.
    pub(crate) batches: usize,
    /// While a batch is in progress, the next one gathers this many messages, because each batch
    /// costs a round trip.
    pub(crate) gather: Gather,
}

/// What is in progress in a loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Batches that are not settled, as the loop counts them.
    pub(crate) batches: usize,
    /// Whether anything is in progress.
    pub(crate) is_busy: bool,
}

impl PullSchedule {
    /// How to gather the next batch; `None` if none must be pulled now. An idle loop takes the
    /// first message that comes, so that none waits for others.
    pub(crate) fn next(&self, load: Load) -> Option<Gather> {
        if load.batches >= self.batches {
            return None;
        }
        Some(if load.is_busy { self.gather } else { Gather::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_idle_loop_waits_for_nothing_a_busy_one_gathers_and_a_full_one_does_not_pull() {
        let gather = Gather { enough: 64, within: Duration::from_millis(2) };
        let schedule = PullSchedule { batches: 4, gather };
        let enough =
            |batches, is_busy| schedule.next(Load { batches, is_busy }).map(|it| it.enough);
        assert_eq!(enough(0, false), Some(0));
        assert_eq!(enough(0, true), Some(64), "what is routed keeps it busy");
        assert_eq!(enough(3, true), Some(64));
        assert_eq!(enough(4, true), None);
    }
}
