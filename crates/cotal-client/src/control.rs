//! Requests on a control rail, each with its own reply subject below the request's.
//!
//! Invariants: a request ends with its connection and is never replayed (ADM-3), because a lost
//! reply does not prove that the operation did not run; and a denial, an absent daemon, silence, a
//! refusal and a lost connection stay five different outcomes.

use std::time::Duration;

use cotal_nats::{Connection, NatsError, Operation, RailClient};
use cotal_wire::control::{Code, Plane, PlaneReply, Reply, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::identity::Identity;

/// How a control request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The broker forbids this credential the request.
    #[error("denied: the broker forbids this credential to {operation} {subject}")]
    Denied {
        /// What was attempted.
        operation: Operation,
        /// On which subject.
        subject: String,
    },
    /// No daemon serves the rail.
    #[error("no delivery daemon answers: is one running for this space?")]
    NoResponders {
        /// The request's subject.
        subject: String,
    },
    /// Something listens, and no reply came in time. The operation may have run.
    #[error("the delivery daemon did not reply within {after:?}; the operation may have run")]
    Timeout {
        /// The request's subject.
        subject: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The daemon refused.
    #[error("the daemon refused: {message}")]
    Refused {
        /// What kind of refusal.
        code: Option<Code>,
        /// The daemon's sentence.
        message: String,
        /// Details, if any.
        data: Option<Value>,
    },
    /// The connection closed before the reply. The operation may have run.
    #[error("the connection closed before the reply; the operation may have run")]
    ConnectionLost,
    /// The endpoint was closed before the reply. The operation may have run.
    #[error("the endpoint was closed before the reply; the operation may have run")]
    Stopped,
    /// The reply is not one.
    #[error("the daemon's reply cannot be parsed: {0}")]
    Malformed(String),
    /// The request could not be sent.
    #[error("the control request could not be sent")]
    Nats(#[source] NatsError),
}

impl ControlError {
    fn of(error: NatsError, subject: &str) -> Self {
        match error {
            NatsError::Denied { operation, subject } => Self::Denied { operation, subject },
            NatsError::NoResponders { subject } => Self::NoResponders { subject },
            NatsError::Timeout { after, .. } => {
                Self::Timeout { subject: subject.to_owned(), after }
            }
            NatsError::Disconnected { .. } => Self::ConnectionLost,
            NatsError::Closed => Self::Stopped,
            other => Self::Nats(other),
        }
    }
}

/// What a liveness probe showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// A daemon serves the space.
    Bound,
    /// None does.
    Unbound,
    /// The probe was not answered, or was cut off.
    Unknown,
}

impl Liveness {
    /// Judges a probe; a denial is the caller's to know.
    pub(crate) fn judge(probe: Result<PlaneReply, ControlError>) -> Result<Self, ControlError> {
        match probe {
            Ok(PlaneReply { state: Plane::Bound }) => Ok(Self::Bound),
            Ok(PlaneReply { state: Plane::Unbound }) | Err(ControlError::NoResponders { .. }) => {
                Ok(Self::Unbound)
            }
            Err(ControlError::Denied { operation, subject }) => {
                Err(ControlError::Denied { operation, subject })
            }
            Err(_) => Ok(Self::Unknown),
        }
    }
}

/// One request subject of the daemon.
#[derive(Debug)]
pub(crate) struct Rail {
    client: RailClient,
    stop: CancellationToken,
}

impl Rail {
    pub(crate) fn new(connection: &Connection, subject: String, stop: &CancellationToken) -> Self {
        Self { client: RailClient::new(connection, subject), stop: stop.clone() }
    }

    /// One operation: arguments out, result in.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        op: &str,
        args: &impl Serialize,
        identity: &Identity,
        within: Duration,
    ) -> Result<T, ControlError> {
        let malformed = |e: serde_json::Error| ControlError::Malformed(e.to_string());
        let request = Request {
            op: op.to_owned(),
            args: serde_json::to_value(args).map_err(malformed)?,
            from: identity.from(),
        };
        let reply: Reply = self.ask(&request, within).await?;
        if reply.ok {
            return serde_json::from_value(reply.data.unwrap_or(Value::Null)).map_err(malformed);
        }
        Err(ControlError::Refused {
            code: reply.code,
            message: reply.error.unwrap_or_else(|| "it gave no reason".to_owned()),
            data: reply.data,
        })
    }

    /// One exchange of JSON.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        body: &impl Serialize,
        within: Duration,
    ) -> Result<T, ControlError> {
        let malformed = |e: serde_json::Error| ControlError::Malformed(e.to_string());
        let body = serde_json::to_vec(body).map_err(malformed)?;
        let reply = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(ControlError::Stopped),
            reply = self.client.ask(body.into(), within) => reply,
        };
        let reply = reply.map_err(|error| ControlError::of(error, self.client.subject()))?;
        serde_json::from_slice(&reply.payload).map_err(malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adm_3_only_an_answer_or_an_empty_rail_says_unbound() {
        let said = |state| Liveness::judge(Ok(PlaneReply { state })).unwrap();
        assert_eq!(said(Plane::Bound), Liveness::Bound);
        assert_eq!(said(Plane::Unbound), Liveness::Unbound);
        let failed = |error| Liveness::judge(Err(error));
        let subject = "s".to_owned();
        let nobody = ControlError::NoResponders { subject: subject.clone() };
        assert_eq!(failed(nobody).unwrap(), Liveness::Unbound);
        let after = Duration::from_secs(1);
        let silent = ControlError::Timeout { subject: subject.clone(), after };
        assert_eq!(failed(silent).unwrap(), Liveness::Unknown);
        assert_eq!(failed(ControlError::ConnectionLost).unwrap(), Liveness::Unknown);
        assert_eq!(failed(ControlError::Stopped).unwrap(), Liveness::Unknown);
        let denied = ControlError::Denied { operation: Operation::Publish, subject };
        assert!(matches!(failed(denied), Err(ControlError::Denied { .. })));
    }
}
