//! The endpoint against a real broker, with and without a delivery daemon.

mod control;
mod delivery;
mod input;
mod join;
mod plane;
mod requests;
mod results;
mod send;
mod support;
mod timers;
mod told;
mod wanted;
