//! The connection, the pull loops, the writer and the buckets against a real broker.

mod classification;
mod common;
mod creds;
mod pull;
mod watch;
mod writer;
