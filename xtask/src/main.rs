//! The commands of the repository itself: demo, test, bench, contracts.
fn main() {}
