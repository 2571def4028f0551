//! The one place that waits for a state that no event tells.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How long a state may take to come about on a busy machine.
const WITHIN: Duration = Duration::from_secs(30);
/// Between two looks.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Looks until `look` gives what `enough` accepts.
///
/// # Panics
/// When that takes longer than 30 s; the last look is shown.
pub async fn eventually<T: Debug, F: Future<Output = T>>(
    what: &str,
    mut look: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + WITHIN;
    loop {
        let seen = look().await;
        if enough(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what} did not come about; last seen: {seen:?}");
        sleep(POLL_EVERY).await;
    }
}
