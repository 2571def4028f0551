//! What a lane knows of its space, in memory.

pub(crate) mod acl_changes;
pub(crate) mod bucket_watch;
mod kept_rows;
pub(crate) mod purged_rows;
pub(crate) mod sequence_check;
pub(crate) mod stream_error;
pub(crate) mod streams;
pub(crate) mod view;
