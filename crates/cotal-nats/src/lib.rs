//! The only crate that talks to the broker.
