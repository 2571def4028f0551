//! The Cotal wire contract: names, rows, envelopes, control requests and profiles. No I/O, no clock.
pub mod permissions;
