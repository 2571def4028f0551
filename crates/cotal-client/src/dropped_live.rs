//! Live copies that were dropped because the caller did not read as fast as they came.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cotal_wire::Channel;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::notice::Notice;

/// While copies are dropped all the time, this often the caller is told how many.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// What was dropped since the caller was told last. The sum of what it is told is exact.
#[derive(Debug, Default)]
pub(crate) struct DroppedLive {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By channel; no more of them than are subscribed.
    dropped: BTreeMap<Channel, Dropped>,
    told_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Dropped {
    count: u64,
    /// Whether the durable copies of all of them are bound to come.
    backed: bool,
}

impl DroppedLive {
    /// Counts one dropped copy; `backed` says whether its durable copy is bound to come.
    pub(crate) fn dropped(&self, channel: &Channel, backed: bool) {
        let mut state = self.state();
        let first = Dropped { count: 0, backed: true };
        let dropped = state.dropped.entry(channel.clone()).or_insert(first);
        dropped.count += 1;
        dropped.backed &= backed;
        drop(state);
        self.news.notify_one();
    }

    /// The next thing to tell. Cancel-safe.
    pub(crate) async fn next(&self) -> Notice {
        loop {
            let wait = {
                let mut state = self.state();
                let now = Instant::now();
                let next = state.told_at.map_or(now, |told| told + TOLD_EVERY);
                match state.dropped.is_empty() {
                    true => None,
                    false if next > now => Some(next),
                    false => {
                        if let Some((channel, Dropped { count, backed })) =
                            state.dropped.pop_first()
                        {
                            if state.dropped.is_empty() {
                                state.told_at = Some(now);
                            }
                            return Notice::Overrun { channel, dropped: count, durable: backed };
                        }
                        None
                    }
                }
            };
            match wait {
                Some(until) => sleep_until(until).await,
                None => self.news.notified().await,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_that_is_dropped_is_told_once_and_not_in_a_flood() {
        let overruns = DroppedLive::default();
        let (a, b) = (Channel::parse("a").unwrap(), Channel::parse("b").unwrap());
        for _ in 0..3 {
            overruns.dropped(&a, true);
        }
        overruns.dropped(&b, false);
        let told = |channel: &Channel, dropped, durable| Notice::Overrun {
            channel: channel.clone(),
            dropped,
            durable,
        };
        assert_eq!(overruns.next().await, told(&a, 3, true));
        assert_eq!(overruns.next().await, told(&b, 1, false));
        let began = Instant::now();
        overruns.dropped(&a, true);
        overruns.dropped(&a, false);
        assert_eq!(overruns.next().await, told(&a, 2, false));
        assert_eq!(began.elapsed(), TOLD_EVERY);
    }
}
