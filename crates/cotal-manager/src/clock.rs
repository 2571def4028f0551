//! The wall clock, read in one place.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix seconds, as JWTs count.
#[must_use]
pub fn unix_seconds() -> i64 {
    i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX)
}

/// Unix milliseconds, as rows count.
#[must_use]
pub fn unix_millis() -> i64 {
    i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)
}

/// A clock before 1970 is no clock; zero makes every credential look expired, which is the safe
/// way.
fn since_epoch() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
