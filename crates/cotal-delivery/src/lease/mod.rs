//! The single-flight lease, and the gate through which every write of a lane must go.

pub(crate) mod gate;
pub(crate) mod keeper;
pub(crate) mod witness;
