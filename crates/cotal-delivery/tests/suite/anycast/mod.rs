//! Role requests against a real broker: who took each, and which were taken back (ANY-1 to ANY-7).
//!
//! A take whose row must stay without its notice is made by a DM stream that takes no message: that
//! is where the daemon then dies.

mod cancel;
mod crash;
mod hostile;
mod support;
mod take;
