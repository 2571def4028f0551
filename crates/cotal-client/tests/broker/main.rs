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
mod told;
mod timers;
mod wanted;
