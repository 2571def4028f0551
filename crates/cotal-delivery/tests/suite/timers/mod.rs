//! The checkpoint timer writer against a real broker (TMR-1 to TMR-5).

mod arming;
mod faults;
mod refusals;
mod support;
