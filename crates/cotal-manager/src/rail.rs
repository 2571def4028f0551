//! The rails of the delivery daemon, as the manager's side asks on them.
//!
//! Invariant: every reply subject lies below the caller's own request subject, and an answer that
//! did not come is never read as one that did.

use std::time::{Duration, Instant};

use cotal_nats::{Bytes, Connection, Message, NatsError, StatusCode};
use cotal_rules::cadence::{Cadence, Next};
use cotal_wire::control::{Plane, PlaneReply, Reply, Request};
use cotal_wire::envelope::From as Sender;
use cotal_wire::names::{DELIVERY, DELIVERY_ADMIN, replies_of, reply_to};
use cotal_wire::{Principal, Space};
use serde_json::Value;

use crate::error::{Doing, ManagerError};

/// A daemon that serves answers a probe at once.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// An administrative request may sweep the broker.
const ADMIN_WITHIN: Duration = Duration::from_secs(15);

/// What a probe of the daemon's responder proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// It answered that it serves.
    Bound,
    /// It answered that it does not serve at the moment.
    Quiet,
    /// The broker said that nobody listens.
    Unbound,
    /// The broker forbids to ask.
    Denied(String),
    /// Nothing was proven.
    Unknown(String),
}

/// A caller on the rails of one space.
#[derive(Debug)]
pub struct Rail {
    connection: Connection,
    space: Space,
    own: Principal,
}

impl Rail {
    /// A caller that is `own` on `connection`.
    #[must_use]
    pub fn new(connection: &Connection, space: &Space, own: &Principal) -> Self {
        Self { connection: connection.clone(), space: space.clone(), own: own.clone() }
    }

    /// Asks the daemon's responder whether it serves (the operator's office).
    pub async fn probe(&self) -> Liveness {
        let subject = self.space.live(DELIVERY, &self.own);
        let body = Bytes::from_static(b"{}");
        match self.ask(&subject, body, PROBE_WITHIN).await {
            Ok(reply) => match serde_json::from_slice::<PlaneReply>(&reply.payload) {
                Ok(PlaneReply { state: Plane::Bound }) => Liveness::Bound,
                Ok(_) => Liveness::Quiet,
                Err(error) => Liveness::Unknown(format!("its answer does not read: {error}")),
            },
            Err(NatsError::NoResponders { .. }) => Liveness::Unbound,
            Err(error @ NatsError::Denied { .. }) => Liveness::Denied(error.to_string()),
            Err(error) => Liveness::Unknown(error.to_string()),
        }
    }

    /// Sends an administrative request (the supervisor's office) and returns its result.
    ///
    /// # Errors
    /// When nobody answers, the answer does not read, or it is a refusal.
    pub async fn admin(&self, op: &str, args: Value) -> Result<Value, ManagerError> {
        let doing = || format!("ask the daemon of space {} for {op}", self.space);
        let request = Request {
            op: op.to_owned(),
            args,
            from: Sender { id: self.own.to_string(), name: "cotal".to_owned(), role: None },
        };
        let malformed = |error: serde_json::Error| NatsError::Malformed {
            what: op.to_owned(),
            detail: error.to_string(),
        };
        let body = serde_json::to_vec(&request).map_err(malformed).doing(doing)?;
        let subject = self.space.ctl(DELIVERY_ADMIN, &self.own);
        let reply = self.ask(&subject, body.into(), ADMIN_WITHIN).await.doing(doing)?;
        let reply: Reply =
            serde_json::from_slice(&reply.payload).map_err(malformed).doing(doing)?;
        if reply.ok {
            return Ok(reply.data.unwrap_or_default());
        }
        Err(ManagerError::Refused {
            space: self.space.clone(),
            op: op.to_owned(),
            reason: reply.error.unwrap_or_else(|| "it gave no reason".to_owned()),
            code: reply.code,
        })
    }

    /// The same, where only silence is asked again, for `wait_ms` in total: the first retry at once,
    /// later ones at most a second apart. It ends on time, also while an attempt is under way, and
    /// nothing is sent after it (ADM-4, INV-6).
    ///
    /// # Errors
    /// At once what [`Self::admin`] gives for an answer; [`ManagerError::RailSilent`] for none.
    pub async fn admin_patiently(
        &self,
        op: &str,
        args: Value,
        wait_ms: i64,
    ) -> Result<Value, ManagerError> {
        self.admin_within(op, args, Instant::now(), wait_ms).await
    }

    /// The same, where the wait began earlier.
    ///
    /// # Errors
    /// As [`Self::admin_patiently`].
    pub(crate) async fn admin_within(
        &self,
        op: &str,
        args: Value,
        started: Instant,
        wait_ms: i64,
    ) -> Result<Value, ManagerError> {
        let now = || i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let wait = |ms: i64| Duration::from_millis(ms.max(0).unsigned_abs());
        let mut cadence = Cadence::new(0, wait_ms);
        let (mut last, mut timed_out) = ("no attempt was answered".to_owned(), true);
        while let Next::Send { at, until } = cadence.next(now()) {
            tokio::time::sleep(wait(at - now())).await;
            let asked = self.admin(op, args.clone());
            match tokio::time::timeout(wait(until - now()), asked).await {
                Ok(Err(error)) if error.is_silence() => {
                    (last, timed_out) = (chain(&error), error.is_timeout());
                }
                Ok(answer) => return answer,
                Err(_) => {
                    timed_out = true;
                    break;
                }
            }
        }
        let (space, op) = (self.space.clone(), op.to_owned());
        Err(ManagerError::RailSilent { space, op, last, timed_out })
    }

    async fn ask(
        &self,
        subject: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Message, NatsError> {
        let mut replies = self.connection.subscribe(replies_of(subject), None).await?;
        let reply = reply_to(subject, &nonce()?);
        let mut denials = self.connection.denials();
        self.connection.publish_with_reply(subject, reply.as_str(), None, body).await?;
        let answered = async {
            loop {
                tokio::select! {
                    message = replies.next() => {
                        let message = message?;
                        if message.subject.as_str() == reply {
                            return Ok(message);
                        }
                    }
                    Ok(denial) = denials.recv() => if denial.subject == subject {
                        let (operation, subject) = (denial.operation, denial.subject);
                        return Err(NatsError::Denied { operation, subject });
                    }
                }
            }
        };
        let message = tokio::time::timeout(within, answered).await.unwrap_or_else(|_| {
            Err(NatsError::Timeout { what: subject.to_owned(), after: within })
        })?;
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            let subject = subject.to_owned();
            return Err(NatsError::NoResponders { subject });
        }
        Ok(message)
    }
}

/// An error with its cause, in one line.
pub(crate) fn chain(error: &ManagerError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn nonce() -> Result<String, NatsError> {
    let mut random = [0; 26];
    getrandom::fill(&mut random).map_err(|e| NatsError::Malformed {
        what: "kernel randomness".to_owned(),
        detail: e.to_string(),
    })?;
    // A uid's alphabet is one that a nonce may have.
    Ok(cotal_wire::LifecycleUid::from_random(random).to_string())
}
