//! The checkpoint timer writer against a real broker (TMR-1 to TMR-5).

mod arming;
mod faults;
#[path = "../credentials/support.rs"]
#[allow(dead_code, reason = "of the host only what the writer's connection shows is needed")]
mod host;
mod refusals;
mod support;
