//! The lease of a space, and the gate through which every write of a lane must go.

mod bucket;
pub(crate) mod error;
pub(crate) mod gate;
pub(crate) mod handle;
pub(crate) mod keeper;
pub(crate) mod progress_check;
mod row_watch;
