//! What a lane knows of its space, in memory.

pub(crate) mod changes;
pub(crate) mod view;
