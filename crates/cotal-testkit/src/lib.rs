//! A real broker per test, fault injection and the reference model of the contracts.
