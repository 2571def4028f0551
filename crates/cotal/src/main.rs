//! The Cotal command line: mesh, daemon and agent commands in one binary.
fn main() {}
