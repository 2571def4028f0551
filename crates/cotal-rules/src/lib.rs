//! The decisions of the delivery service as pure functions and small state machines.
