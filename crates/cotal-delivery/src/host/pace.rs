//! The pace at which lanes are opened.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Gives out start times at fixed intervals. Nobody holds a turn, so a lane whose broker or store
/// hangs delays no other lane.
pub(super) struct Pace {
    every: Duration,
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, next: Mutex::new(None) }
    }

    /// Waits for the caller's turn.
    pub(super) async fn turn(&self) {
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let turn = next.map_or(now, |next| next.max(now));
            *next = Some(turn + self.every);
            turn
        };
        sleep_until(turn).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_lie_apart_and_a_caller_that_gives_up_holds_none() {
        let pace = Pace::new(Duration::from_millis(10));
        let begin = Instant::now();
        pace.turn().await;
        assert_eq!(begin.elapsed(), Duration::ZERO);
        drop(pace.turn());
        pace.turn().await;
        assert_eq!(begin.elapsed(), Duration::from_millis(10));
        tokio::time::advance(Duration::from_secs(1)).await;
        let idle = Instant::now();
        pace.turn().await;
        assert_eq!(idle.elapsed(), Duration::ZERO);
    }
}
