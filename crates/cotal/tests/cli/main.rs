//! The real binary, as a person and a script use it: every test has a root, a registry and a
//! broker of its own, and leaves nothing running.

#![allow(unreachable_pub, reason = "`pub` says what a module offers to the other tests")]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails it where it stands")]

mod agents;
mod answers;
mod codes;
mod components;
mod daemon;
mod daily;
mod disk;
mod endings;
mod files;
mod foreground;
mod hosted;
mod identity;
mod isolate;
mod lifetime;
mod listener;
mod manager;
mod mesh;
mod paused;
mod readme;
mod requests;
mod roots;
mod said;
mod service;
mod site;
mod timers;
mod tls;
mod typed;
mod waiting;
