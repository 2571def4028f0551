//! Entries that wait outside the reader's slots, or were given up (`docs/wire.md` §3, §4).
//!
//! Invariant: an entry that was neither delivered nor denied is recorded in the dead bucket before
//! it leaves the reader, so it never disappears without a trace.

pub(crate) mod retrier;
pub(crate) mod store;
