//! The real binary, as a person and a script use it: every test has a root, a registry and a
//! broker of its own, and leaves nothing running.

mod agents;
mod codes;
mod daemon;
mod mesh;
mod site;
