//! The endpoint against a real broker, with and without a delivery daemon.

mod control;
mod delivery;
mod join;
mod requests;
mod send;
mod support;
