//! Requests on a control rail, each with its own reply subject below the request's.
//!
//! Invariants: a request ends with its connection and is never replayed (ADM-3), because a lost
//! reply does not prove that the operation did not run; and a denial, an absent daemon, silence, a
//! refusal and a lost connection stay five different outcomes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cotal_nats::{
    Bytes, Connection, Message, NatsError, Operation, RecvError, StatusCode, Subscription,
};
use cotal_wire::control::{Code, Plane, PlaneReply, Reply, Request};
use cotal_wire::names::{replies_of, reply_to};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex as TurnMutex, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fresh::random_id;
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
    #[error("the daemon's reply does not read: {0}")]
    Malformed(String),
    /// The request could not be sent.
    #[error("the control request could not be sent")]
    Nats(#[source] NatsError),
}

impl ControlError {
    fn of(error: NatsError) -> Self {
        match error {
            NatsError::Denied { operation, subject } => Self::Denied { operation, subject },
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

type Pending = Arc<Mutex<HashMap<String, oneshot::Sender<Message>>>>;

/// One request subject with its replies.
#[derive(Debug)]
pub(crate) struct Rail {
    connection: Connection,
    subject: String,
    stop: CancellationToken,
    tasks: TaskTracker,
    pending: Pending,
    /// Cancelled when the reply subscription has ended; `None` before the first request.
    router: TurnMutex<Option<CancellationToken>>,
}

/// Forgets a request however it ends, so that `pending` holds running requests only.
struct Registered<'a> {
    pending: &'a Pending,
    nonce: String,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        entries(self.pending).remove(&self.nonce);
    }
}

fn entries(
    pending: &Pending,
) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<Message>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rail {
    pub(crate) fn new(
        connection: &Connection,
        subject: String,
        stop: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Self {
        Self {
            connection: connection.clone(),
            subject,
            stop: stop.clone(),
            tasks: tasks.clone(),
            pending: Pending::default(),
            router: TurnMutex::new(None),
        }
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
        let exchange = self.exchange(body.into());
        let reply = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(ControlError::Stopped),
            reply = tokio::time::timeout(within, exchange) => reply,
        };
        let reply = reply.map_err(|_| ControlError::Timeout {
            subject: self.subject.clone(),
            after: within,
        })??;
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            let subject = self.subject.clone();
            return Err(ControlError::NoResponders { subject });
        }
        serde_json::from_slice(&reply.payload).map_err(malformed)
    }

    async fn exchange(&self, body: Bytes) -> Result<Message, ControlError> {
        self.bind().await?;
        let mut state = self.connection.state();
        let drops = state.borrow_and_update().drops;
        if !self.connection.is_connected() {
            // Sent now, it would wait in the client and go out on the next connection.
            return Err(ControlError::ConnectionLost);
        }
        let nonce = random_id().map_err(ControlError::Nats)?;
        let reply = reply_to(&self.subject, &nonce);
        let (sender, receiver) = oneshot::channel();
        entries(&self.pending).insert(nonce.clone(), sender);
        let _registered = Registered { pending: &self.pending, nonce };
        let mut denials = self.connection.denials();
        let sent = self.connection.publish_with_reply(self.subject.clone(), reply, None, body);
        sent.await.map_err(ControlError::of)?;
        let denied = async {
            loop {
                match denials.recv().await {
                    Ok(denial) if denial.subject == self.subject => break denial,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            biased;
            reply = receiver => reply.map_err(|_| ControlError::ConnectionLost),
            denial = denied => Err(ControlError::Denied {
                operation: denial.operation,
                subject: denial.subject,
            }),
            _ = state.wait_for(|s| s.drops != drops || !s.is_connected()) => {
                Err(ControlError::ConnectionLost)
            }
        }
    }

    /// Subscribes the replies once, and again if that subscription ended.
    async fn bind(&self) -> Result<(), ControlError> {
        let mut router = self.router.lock().await;
        if router.as_ref().is_some_and(|running| !running.is_cancelled()) {
            return Ok(());
        }
        let replies = self.connection.subscribe(replies_of(&self.subject), None).await;
        let replies = replies.map_err(ControlError::of)?;
        let running = self.stop.child_token();
        let prefix = reply_to(&self.subject, "");
        let pending = Arc::clone(&self.pending);
        self.tasks.spawn(route(replies, prefix, pending, running.clone()));
        *router = Some(running);
        Ok(())
    }
}

/// Gives every reply to its request; one that nobody waits for any more is dropped.
async fn route(
    mut replies: Subscription,
    prefix: String,
    pending: Pending,
    running: CancellationToken,
) {
    let _ended = running.clone().drop_guard();
    loop {
        let reply = tokio::select! {
            biased;
            () = running.cancelled() => return,
            reply = replies.next() => reply,
        };
        let Ok(reply) = reply else {
            // Those who wait learn it from their closed channel.
            entries(&pending).clear();
            return;
        };
        let waiting = reply.subject.strip_prefix(&prefix).map(str::to_owned);
        let waiting = waiting.and_then(|nonce| entries(&pending).remove(&nonce));
        if let Some(waiting) = waiting {
            let _ = waiting.send(reply);
        }
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
