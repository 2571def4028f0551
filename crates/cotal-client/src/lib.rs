//! The endpoint that agents and integrators use on a Cotal space.
//!
//! Purpose: with a creds file and the broker's URL, and nothing else, an agent posts, joins, leaves
//! and reads. Invariants:
//!
//! - Whatever ways a post takes to reach the agent (live, from history, through its delivery
//!   durable), it is **one** delivery, and the durable copy owns the ack (AGT-3).
//! - Live join and live delivery never wait for the delivery daemon (AGT-2). What a join
//!   established is said in two parts, so that a missing backstop is never mistaken for `joined
//!   durable` (MEM-8).
//! - A broker's denial, an absent daemon, silence, a refusal and a lost connection are five
//!   different answers.
//!
//! # Posting
//!
//! ```no_run
//! use cotal_client::{Channel, Draft, Endpoint, EndpointOptions};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let options = EndpointOptions::from_file("nats://127.0.0.1:4222", "alice.creds").send_only();
//! let alice = Endpoint::connect(options).await?;
//! let channel = Channel::parse("team.backend")?;
//! let posted = alice.post(&channel, Draft::text("The build is green").mention("Bob")).await?;
//! println!("{} is number {}", posted.id, posted.seq);
//! alice.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Reading
//!
//! A delivery that is not acked comes again: after the broker's ack wait of 60 s, or at once when
//! the endpoint was closed properly.
//!
//! ```no_run
//! use cotal_client::{Channel, Endpoint, EndpointOptions, Event};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let bob = Endpoint::connect(EndpointOptions::from_file("nats://127.0.0.1:4222", "bob.creds")).await?;
//! println!("{}", bob.join(&Channel::parse("team.backend")?).await);
//! while let Some(event) = bob.next().await {
//!     match event {
//!         Event::Message(incoming) => {
//!             println!("{}: {}", incoming.sender, incoming.text());
//!             incoming.ack().await?;
//!         }
//!         Event::Notice(notice) => eprintln!("{notice}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Both stand as programs in `examples/`; the whole way from the first agent to its shutdown is in
//! `docs/rust.md`.
//!
//! # Role requests
//!
//! [`Endpoint::ask`] sends a request to whoever holds a role; its number is what
//! [`Endpoint::request_status`] and [`Endpoint::cancel_request`] go by. A holder works requests off
//! with [`Endpoint::holder`]: each is shown only once the daemon has recorded who took it.
//!
//! # Timers
//!
//! A workflow endpoint has a credential of its own kind and no agent's rights: [`Timers`] asks for
//! its timers and reads when they fire.
//!
//! # Bounds
//!
//! Of stored messages 256, and 32 MiB, wait for the caller; behind them the broker waits. Of live
//! ones 4,096, and 32 MiB: what comes beyond is dropped and told as [`Notice::Overrun`], and its
//! durable copy still comes. The last 16,384 settled messages are remembered; a copy that comes
//! later than that is delivered again. The broker hands out at most 1,000 unacked deliveries. What
//! an agent may see beyond its messages: `STREAM.INFO` of the channel stream shows the names of
//! channels and posters of the whole space, never content.

mod backstop;
mod connection_watch;
mod control;
mod copy;
mod daemon_rails;
mod destination;
mod dropped_live;
mod endpoint;
mod fresh;
mod history;
mod holder;
mod identity;
mod incoming;
mod join;
mod ledger;
mod live;
mod missed;
mod notice;
mod options;
mod pending_joins;
mod presence;
mod pump;
mod queue_limit;
mod recent;
mod requests;
mod results;
mod send;
mod settings;
mod sink;
mod timers;

pub use backstop::{Backstop, Shortfall};
pub use control::{ControlError, Liveness};
pub use cotal_nats::{Bytes, Creds, CredsError, CredsSource, NatsError, Operation, TlsMode};
pub use cotal_wire::anycast::{ListedRequest, Standing};
pub use cotal_wire::control::{Code, MembershipItem};
pub use cotal_wire::envelope::{From, Message, Part};
pub use cotal_wire::posts::MissedPosts;
pub use cotal_wire::rows::{Outcome, RequestResult, RequestRow};
pub use cotal_wire::{
    Channel, ConnId, EndpointName, Lifecycle, LifecycleUid, Principal, Role, Space, Timer,
};
pub use destination::{Destination, Source};
pub use endpoint::{ConnectError, Endpoint, Waiting};
pub use history::HistoryError;
pub use holder::{Holder, NoRole, RoleRequest};
pub use identity::Identity;
pub use incoming::{AckError, Event, Incoming};
pub use join::{Departure, JoinState, LeaveState, Live};
pub use notice::{LeaseCondition, NoTakes, Notice};
pub use options::{Credential, EndpointOptions};
pub use requests::{Cancel, RequestState};
pub use results::{RequestOutcome, ResultError, WaitError};
pub use send::{Draft, MAX_ID, Posted, RETRY_WITHIN, SendError};
pub use settings::Replay;
pub use timers::{Fired, TimerError, Timers};

/// The guide's code, compiled with this crate's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;
