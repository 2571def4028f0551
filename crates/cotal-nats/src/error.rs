//! The one place where a broker's answer becomes a typed error.
//!
//! Invariant: *denied*, *conflict*, *absent*, *timeout*, *no responders* and *refused* never blur
//! into each other, and whatever the broker refused for its own reasons is quoted as it gave it.

use std::fmt;
use std::time::Duration;

use async_nats::{PublishError, RequestErrorKind, client::PublishErrorKind};
use serde::Deserialize;

use crate::creds::CredsError;

/// What the broker forbade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Publishing, which every request begins with.
    Publish,
    /// Subscribing.
    Subscribe,
    /// Publishing with a reply subject that the credential may not use.
    Reply,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Publish => "publish to",
            Self::Subscribe => "subscribe to",
            Self::Reply => "publish with the reply subject",
        })
    }
}

/// A permissions violation, as the broker reported it on the connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Denial {
    /// What was attempted.
    pub operation: Operation,
    /// The exact subject it was attempted on.
    pub subject: String,
}

/// The error object of a JetStream API reply.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP-like class of the failure.
    #[serde(default)]
    pub code: u16,
    /// The broker's own error number.
    #[serde(default)]
    pub err_code: u32,
    /// The broker's sentence.
    #[serde(default)]
    pub description: String,
}

/// Everything that can go wrong between this process and its broker.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NatsError {
    /// The credential lacks the permission.
    #[error("denied: the broker forbids this credential to {operation} {subject}")]
    Denied {
        /// What was attempted.
        operation: Operation,
        /// On which subject.
        subject: String,
    },
    /// A compare-and-set lost: the stored revision is not the expected one, or the thing exists
    /// already.
    #[error("conflict on {what}: {description} (error {err_code})")]
    Conflict {
        /// What was written.
        what: String,
        /// The broker's error number.
        err_code: u32,
        /// The broker's sentence.
        description: String,
    },
    /// The message, stream or consumer does not exist.
    #[error("absent: {what}: {description} (error {err_code})")]
    Absent {
        /// What was looked for.
        what: String,
        /// The broker's error number.
        err_code: u32,
        /// The broker's sentence.
        description: String,
    },
    /// No answer came in time although nothing forbade the request.
    #[error("no answer to {what} within {after:?}")]
    Timeout {
        /// What was asked.
        what: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// Nobody serves the subject.
    #[error("nobody answers on {subject}")]
    NoResponders {
        /// The subject of the request.
        subject: String,
    },
    /// The broker refused for its own reason.
    #[error("the broker refused {what}: {description} (code {code}, error {err_code})")]
    Refused {
        /// What was asked.
        what: String,
        /// HTTP-like class.
        code: u16,
        /// The broker's error number.
        err_code: u32,
        /// The broker's sentence, verbatim.
        description: String,
    },
    /// The connection is down, so whatever was asked is unanswered.
    #[error("the broker connection is down, {what} is unanswered")]
    Disconnected {
        /// What was being done.
        what: String,
    },
    /// The connection was closed on purpose.
    #[error("the broker connection is closed")]
    Closed,
    /// Whoever asked for the write may not write any more.
    #[error("{what} was not sent: this process may not write any more")]
    Withheld {
        /// What was to be written.
        what: String,
    },
    /// The message does not fit into one the broker accepts.
    #[error("{what} is {size} bytes, the broker accepts at most {max}")]
    TooLarge {
        /// What was to be sent.
        what: String,
        /// Headers and payload together.
        size: usize,
        /// The broker's `max_payload`.
        max: usize,
    },
    /// An answer or a subject does not have its documented shape.
    #[error("malformed {what}: {detail}")]
    Malformed {
        /// What was read.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The connection could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Why no connection came about.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be used.
    #[error("{url} is no usable broker address: {detail}")]
    Address {
        /// As given.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Nobody listens there, or the connection broke during the handshake.
    #[error("no broker reachable at {url}: {detail}")]
    Unreachable {
        /// As given.
        url: String,
        /// The operating system's or the broker's sentence.
        detail: String,
    },
    /// The handshake did not finish in time.
    #[error("the broker at {url} did not finish the handshake within {after:?}")]
    Timeout {
        /// As given.
        url: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// TLS is demanded and the peer does not speak it, or its certificate is not trusted.
    #[error("TLS is required and {url} did not offer an acceptable TLS session: {detail}")]
    Tls {
        /// As given.
        url: String,
        /// What the TLS layer said.
        detail: String,
    },
    /// The broker does not accept the credential (unknown, revoked, expired).
    #[error("the broker at {url} rejects the credential: {detail}")]
    Rejected {
        /// As given.
        url: String,
        /// The broker's sentence.
        detail: String,
    },
    /// The credential was not even presented.
    #[error("the credential cannot be presented: {0}")]
    Creds(#[from] CredsError),
}

/// Error numbers that mean a lost compare-and-set or a thing that exists already.
const CONFLICT: [u32; 6] = [
    10_071, // wrong last sequence
    10_164, // wrong last sequence, without the sequence
    10_070, // wrong last message id
    10_058, // stream name already in use with a different configuration
    10_148, // consumer already exists
    10_105, // consumer name already in use
];

/// "No message found".
pub(crate) const NO_MESSAGE: u32 = 10_037;

/// Error numbers that mean the named thing does not exist.
const ABSENT: [u32; 3] = [
    NO_MESSAGE, 10_014, // consumer not found
    10_059, // stream not found
];

/// "Sequence not found": the usual answer to a repeated delete.
const SEQUENCE_NOT_FOUND: u32 = 10_043;
/// "Delete failed" for whatever reason the text gives; the store's own "not found" is one of them.
const DELETE_FAILED: u32 = 10_057;

impl ApiError {
    /// Classifies the broker's refusal of `what`.
    pub fn classify(self, what: impl Into<String>) -> NatsError {
        let what = what.into();
        let Self { code, err_code, description } = self;
        if CONFLICT.contains(&err_code) {
            NatsError::Conflict { what, err_code, description }
        } else if ABSENT.contains(&err_code) {
            NatsError::Absent { what, err_code, description }
        } else {
            NatsError::Refused { what, code, err_code, description }
        }
    }
}

impl NatsError {
    /// Whether a later attempt of the same thing can succeed without anything else being changed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::NoResponders { .. } | Self::Disconnected { .. })
    }

    /// Whether the named thing does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    /// Whether a compare-and-set lost.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the credential lacks the permission.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }

    /// Whether a delete failed only because the stream does not hold the message.
    pub(crate) fn is_already_deleted(&self) -> bool {
        match self {
            Self::Absent { err_code, .. } => *err_code == NO_MESSAGE,
            Self::Refused { err_code, description, .. } => {
                *err_code == SEQUENCE_NOT_FOUND
                    || (*err_code == DELETE_FAILED && description.contains("no message found"))
            }
            _ => false,
        }
    }

    pub(crate) fn denied(denial: Denial) -> Self {
        Self::Denied { operation: denial.operation, subject: denial.subject }
    }

    pub(crate) fn malformed(what: impl Into<String>, detail: impl fmt::Display) -> Self {
        Self::Malformed { what: what.into(), detail: detail.to_string() }
    }

    pub(crate) fn disconnected(what: impl Into<String>) -> Self {
        Self::Disconnected { what: what.into() }
    }

    pub(crate) fn from_publish(error: &PublishError, subject: &str) -> Self {
        match error.kind() {
            PublishErrorKind::Send => Self::Closed,
            PublishErrorKind::InvalidSubject | PublishErrorKind::MaxPayloadExceeded => {
                Self::malformed(format!("message to {subject}"), error)
            }
        }
    }

    pub(crate) fn from_request(
        kind: RequestErrorKind,
        subject: &str,
        detail: &dyn fmt::Display,
        after: Duration,
    ) -> Self {
        match kind {
            RequestErrorKind::TimedOut => Self::Timeout { what: subject.to_owned(), after },
            RequestErrorKind::NoResponders => Self::NoResponders { subject: subject.to_owned() },
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                Self::malformed(format!("request to {subject}"), detail)
            }
            RequestErrorKind::Other => Self::disconnected(subject),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(err_code: u32) -> ApiError {
        ApiError { code: 400, err_code, description: "as given".into() }
    }

    #[test]
    fn classes_do_not_blur() {
        for code in CONFLICT {
            assert!(api(code).classify("x").is_conflict(), "{code}");
        }
        for code in ABSENT {
            assert!(api(code).classify("x").is_absent(), "{code}");
        }
        let NatsError::Refused { err_code, description, .. } = api(10_047).classify("x") else {
            panic!("an unknown number is a refusal");
        };
        assert_eq!((err_code, description.as_str()), (10_047, "as given"));
    }
}
