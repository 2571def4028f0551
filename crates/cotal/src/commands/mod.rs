//! One file per command.

pub mod agent;
pub mod as_agent;
pub mod ask;
pub mod channel;
pub mod completions;
pub mod dead;
pub mod deliver;
pub mod dm;
pub mod doctor;
pub mod down;
pub mod inbox;
pub mod join;
pub mod leave;
pub mod manage;
pub mod members;
pub mod message;
pub mod pending;
pub mod post;
pub mod redeliver;
pub mod request;
pub mod requests;
pub mod serve;
pub mod service;
pub mod space;
pub mod status;
pub mod up;
