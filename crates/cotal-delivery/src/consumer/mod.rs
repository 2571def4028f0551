//! Pulls from the lane's own consumers, answers messages, and speeds up redelivery after a crash.

pub(crate) mod ack_wait;
pub(crate) mod answers;
pub(crate) mod pull_schedule;
pub(crate) mod pull_source;
pub(crate) mod tracker;
