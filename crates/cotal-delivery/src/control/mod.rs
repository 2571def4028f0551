//! The request/reply services of a lane: what agents and operators may ask, and how it is answered.

pub(crate) mod admin_api;
pub(crate) mod agent_api;
pub(crate) mod fair_queue;
pub(crate) mod rail;
