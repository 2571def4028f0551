//! The only crate that talks to the broker.
//!
//! Everything above it speaks of subjects, streams and rows; here they become NATS protocol and
//! JetStream API calls, and every answer of the broker becomes one of a few typed outcomes
//! ([`NatsError`]): denied, conflict, absent, timeout, no responders, refused (quoted).
//!
//! - [`Connection`]: connect, reconnect, events, requests that a denial cannot stall.
//! - [`js`]: JetStream API calls on visible subjects, so that a permission table can be read off
//!   the code.
//! - [`Writer`]: confirmed writes into one stream, many in flight, in order.
//! - [`PullConsumer`] and [`Delivery`]: overlapping pulls with an owned ackable message.
//! - [`Bucket`] and [`Watch`]: compare-and-set rows and a watch that notices when it is stale.
//!
//! Payloads are slices of the client's read buffer: whoever keeps one for long copies it, or it
//! keeps its neighbours alive.

mod broadcast;
mod connection;
mod creds;
mod error;
mod event;
mod fence;
mod guard;
pub mod headers;
pub mod js;
mod json;
mod kv;
mod no_responder;
mod pull;
mod rail_client;
mod request;
mod transport;
mod watch;
mod writer;

pub use async_nats::{HeaderMap, HeaderName, HeaderValue, Message, StatusCode, Subject};
pub use bytes::Bytes;

pub use broadcast::{Listener, RecvError};
pub use connection::{ConnectOptions, Connection, Proof, prove};
pub use creds::{Creds, CredsError, CredsSource, Replacements};
pub use error::{ApiError, ConnectError, Denial, NatsError, Operation};
pub use event::{ConnEvent, ConnState, Phase};
pub use fence::Fence;
pub use js::{ConsumerConfig, Get, PubAck, StoredMessage, StreamConfig};
pub use json::to_json;
pub use kv::{Bucket, Entry, EntryOperation, Key, revisions};
pub use no_responder::retry_without_responder;
pub use pull::{Delivery, Gather, Left, PullConsumer, PullError, PullOptions};
pub use rail_client::RailClient;
pub use request::Subscription;
pub use transport::TlsMode;
pub use watch::{RemovalReason, Watch, WatchEvent, WatchOptions};
pub use writer::{BatchError, Engine, Outgoing, Ticket, WriteError, Writer, WriterOptions};
