//! What happens to a connection, as events, as a state, and as a stream of denials.
//!
//! Invariant: the client's event callback only enqueues here, so it never holds the client up and
//! the client's own small event channel does not overflow.

use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::{ClientError, Event, ServerError};
use tokio::sync::watch;

use crate::broadcast::Broadcast;
use crate::error::{Denial, Operation};

/// Enough for the bursts of one lane; a reader that lags learns that it lagged.
const EVENT_CAPACITY: usize = 256;
/// As many messages as a writer has in flight, and so as many denials as may come before a listener
/// runs.
const DENIAL_CAPACITY: usize = 1_024;

/// Something that happened to the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnEvent {
    /// The handshake succeeded, for the first time or again.
    Connected,
    /// The connection dropped; the client redials by itself.
    Disconnected,
    /// The broker ended the connection because the JWT expired.
    AuthExpired,
    /// The broker ended the connection because the user was revoked.
    AuthRevoked,
    /// The broker rejects the credential.
    AuthViolation,
    /// The credential was not presented, because it is expired, foreign or unreadable.
    CredsUnusable,
    /// The broker forbade an operation.
    Denied(Denial),
    /// The broker is about to shut down.
    LameDuck,
    /// A subscription's buffer was full and a message was dropped.
    SlowConsumer(u64),
    /// Any other error line of the broker.
    ServerError(String),
    /// A redial failed for this reason.
    RedialFailed(String),
    /// The connection was closed on purpose and will not come back.
    Closed,
}

/// Where the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not connected yet.
    Connecting,
    /// Usable.
    Connected,
    /// Dropped; the client redials.
    Disconnected,
    /// Closed on purpose.
    Closed,
}

/// The state that a watcher sees. `drops` tells two connected states apart that a fast redial
/// separates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnState {
    /// Where the connection stands.
    pub phase: Phase,
    /// How often the connection dropped so far.
    pub drops: u64,
    /// How often the broker said that its credential has expired.
    pub expiries: u64,
}

impl ConnState {
    /// Whether the connection is usable.
    pub fn is_connected(self) -> bool {
        self.phase == Phase::Connected
    }
}

/// The fan-out of everything the client reports.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) events: Broadcast<ConnEvent>,
    pub(crate) denials: Broadcast<Denial>,
    pub(crate) state: watch::Sender<ConnState>,
    /// Set when nobody needs the connection any more, also while it redials.
    pub(crate) abandoned: AtomicBool,
}

impl Hub {
    pub(crate) fn new() -> Self {
        let initial = ConnState { phase: Phase::Connecting, drops: 0, expiries: 0 };
        Self {
            events: Broadcast::new(EVENT_CAPACITY),
            denials: Broadcast::new(DENIAL_CAPACITY),
            state: watch::channel(initial).0,
            abandoned: AtomicBool::new(false),
        }
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.state.send_modify(|state| state.phase = Phase::Closed);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn on_client_event(&self, event: Event) {
        let Some(event) = translate(event) else {
            return;
        };
        match &event {
            ConnEvent::Connected => self.set_phase(Phase::Connected),
            ConnEvent::Disconnected => self.state.send_modify(|state| {
                state.drops += 1;
                if state.phase != Phase::Closed {
                    state.phase = Phase::Disconnected;
                }
            }),
            ConnEvent::Closed => self.set_phase(Phase::Closed),
            ConnEvent::AuthExpired => self.state.send_modify(|state| state.expiries += 1),
            ConnEvent::Denied(denial) => {
                self.denials.send(denial.clone());
            }
            _ => {}
        }
        self.events.send(event);
    }

    fn set_phase(&self, phase: Phase) {
        self.state.send_modify(|state| {
            if state.phase != Phase::Closed {
                state.phase = phase;
            }
        });
    }
}

fn translate(event: Event) -> Option<ConnEvent> {
    Some(match event {
        Event::Connected => ConnEvent::Connected,
        Event::Disconnected => ConnEvent::Disconnected,
        Event::LameDuckMode => ConnEvent::LameDuck,
        Event::Draining => return None,
        Event::Closed => ConnEvent::Closed,
        Event::SlowConsumer(sid) | Event::ServerError(ServerError::SlowConsumer(sid)) => {
            ConnEvent::SlowConsumer(sid)
        }
        Event::ServerError(ServerError::AuthorizationViolation) => ConnEvent::AuthViolation,
        Event::ServerError(ServerError::Other(text)) => server_error(text),
        Event::ClientError(ClientError::Other(text)) => match text.as_str() {
            "authorization violation" => ConnEvent::AuthViolation,
            "failed signing nonce" => ConnEvent::CredsUnusable,
            _ => ConnEvent::RedialFailed(text),
        },
        Event::ClientError(other) => ConnEvent::RedialFailed(other.to_string()),
    })
}

fn server_error(text: String) -> ConnEvent {
    if let Some(denial) = parse_denial(&text) {
        return ConnEvent::Denied(denial);
    }
    let lower = text.to_ascii_lowercase();
    if lower.contains("authentication expired") {
        ConnEvent::AuthExpired
    } else if lower.contains("authentication revoked") {
        ConnEvent::AuthRevoked
    } else {
        ConnEvent::ServerError(text)
    }
}

/// Reads `Permissions Violation for <operation> "<subject>"…`.
pub(crate) fn parse_denial(text: &str) -> Option<Denial> {
    let rest = text.strip_prefix("Permissions Violation for ")?;
    let (operation, quoted) = if let Some(rest) = rest.strip_prefix("Publish to ") {
        (Operation::Publish, rest)
    } else if let Some(rest) = rest.strip_prefix("Subscription to ") {
        (Operation::Subscribe, rest)
    } else {
        (Operation::Reply, rest.strip_prefix("Publish with Reply of ")?)
    };
    Some(Denial { operation, subject: unquote(quoted)? })
}

/// Reads a Go-quoted string up to its closing quote.
fn unquote(text: &str) -> Option<String> {
    let mut chars = text.strip_prefix('"')?.chars();
    let mut out = String::new();
    loop {
        match chars.next()? {
            '"' => return Some(out),
            '\\' => out.push(chars.next()?),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_read_from_the_brokers_sentence() {
        let table = [
            (r#"Permissions Violation for Publish to "a.b""#, Operation::Publish, "a.b"),
            (r#"Permissions Violation for Subscription to "a.>""#, Operation::Subscribe, "a.>"),
            (
                r#"Permissions Violation for Subscription to "a" using queue "q""#,
                Operation::Subscribe,
                "a",
            ),
            (r#"Permissions Violation for Publish with Reply of "r""#, Operation::Reply, "r"),
            (r#"Permissions Violation for Publish to "a\"b""#, Operation::Publish, "a\"b"),
        ];
        for (text, operation, subject) in table {
            let expected = Denial { operation, subject: subject.to_owned() };
            assert_eq!(parse_denial(text), Some(expected), "{text}");
        }
        assert_eq!(parse_denial("Unknown Protocol Operation"), None);
    }

    #[test]
    fn expiry_is_no_plain_server_error() {
        assert_eq!(server_error("User Authentication Expired".into()), ConnEvent::AuthExpired);
        assert_eq!(server_error("User Authentication Revoked".into()), ConnEvent::AuthRevoked);
    }
}
