//! Role requests against a real broker: who took each one, and which were cancelled (ANY-1 to
//! ANY-7).
//!
//! To keep a take's row without its notice, a test makes the DM stream refuse messages: then the
//! daemon dies while it sends the notice.

mod cancel;
mod crash;
mod hostile;
mod support;
mod take;
