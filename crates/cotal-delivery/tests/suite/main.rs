//! The daemon against a real broker. One program, so that all tests link the product only once.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

mod anycast;
mod caps;
mod catch_up;
mod cluster;
mod consumers;
mod crash;
mod credentials;
mod dead;
mod drain;
mod eviction;
mod fanout;
mod feed;
mod fresh;
mod garbled;
mod hand_off;
mod handover;
mod host;
mod hostile;
mod lease;
mod lifecycle;
mod membership;
mod rails;
mod reader;
mod retirement;
mod setup;
mod timers;
mod unanswered;
mod unconfirmed;
mod unrouted;
mod went_back;
