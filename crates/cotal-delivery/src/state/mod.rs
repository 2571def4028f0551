//! What a lane knows of its space, in memory.

pub(crate) mod changes;
mod kept;
pub(crate) mod positions;
pub(crate) mod purged;
pub(crate) mod stream_error;
pub(crate) mod streams;
pub(crate) mod view;
pub(crate) mod watching;
