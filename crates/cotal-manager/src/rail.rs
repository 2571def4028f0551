//! The rails of the delivery daemon, as the manager's side asks on them.
//!
//! Invariant: every reply subject lies below the caller's own request subject, and an answer that
//! did not come is never read as one that did.

use std::time::{Duration, Instant};

use cotal_nats::{Bucket, Bytes, Connection, Entry, Message, NatsError, RailClient};
use cotal_rules::cadence::{Cadence, Next};
use cotal_wire::control::{Plane, PlaneReply, Reply, Request};
use cotal_wire::envelope::From as Sender;
use cotal_wire::names::{self, DELIVERY, DELIVERY_ADMIN, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Principal, Space};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;

use crate::error::{Doing, ManagerError};

/// A daemon that serves answers a probe at once.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// An administrative request may sweep the broker.
const ADMIN_WITHIN: Duration = Duration::from_secs(15);

/// Of a wait, at least so many attempts are made where each is lost on its way.
const ATTEMPTS_AT_LEAST: u32 = 3;
/// A daemon that is there answers most requests well within this.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(2);
/// Later than this an answer that was lost is not missed any sooner by waiting.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

/// What a probe of the daemon's responder proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// It answered that it serves.
    Bound,
    /// It answered that it does not serve at the moment.
    Quiet,
    /// Another daemon of the space answered: the lease is not that of the process asked about.
    Elsewhere(String),
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
                Err(error) => Liveness::Unknown(format!("its answer cannot be parsed: {error}")),
            },
            Err(NatsError::NoResponders { .. }) => Liveness::Unbound,
            Err(error @ NatsError::Denied { .. }) => Liveness::Denied(error.to_string()),
            Err(error) => Liveness::Unknown(error.to_string()),
        }
    }

    /// Asks whether the daemon that runs as `pid` serves (the operator's office). A responder
    /// answers for whoever listens, so the lease must say, besides, that it is this process that
    /// is bound.
    pub async fn probe_process(&self, pid: u32) -> Liveness {
        let answer = match self.probe().await {
            Liveness::Bound => Ok(()),
            // Several may listen, and the broker chose one that is silent.
            Liveness::Unknown(why) => Err(why),
            other => return other,
        };
        let row = match self.lease().await {
            Ok(row) => row,
            Err(error) => return Liveness::Unknown(error.to_string()),
        };
        let holder = row.as_ref().map_or("nobody", |row| &row.incarnation);
        match (answer, &row) {
            (Ok(()), Some(row)) if row.pid() == Some(pid) && row.ready => Liveness::Bound,
            (Ok(()), Some(row)) if row.pid() == Some(pid) => Liveness::Quiet,
            (Ok(()), _) => Liveness::Elsewhere(holder.to_owned()),
            (Err(why), Some(row)) if row.pid() == Some(pid) => Liveness::Unknown(why),
            (Err(why), _) => Liveness::Unknown(format!("{why}; the lease is held by {holder}")),
        }
    }

    /// The lease row, as the leader has it; what is no lease is nobody's.
    async fn lease(&self) -> Result<Option<LeaseRow>, NatsError> {
        let bucket = Bucket::new(&self.connection, &self.space.bucket(names::Bucket::Delivery));
        let entry = bucket.get(LEASE_KEY).await?;
        let row = entry.as_ref().and_then(Entry::live).map(|value| LeaseRow::parse(value));
        Ok(row.and_then(Result::ok))
    }

    /// Sends an administrative request (the supervisor's office) and returns its result.
    ///
    /// # Errors
    /// When nobody answers, the answer cannot be parsed, or it is a refusal.
    pub async fn admin(&self, op: &str, args: Value) -> Result<Value, ManagerError> {
        let subject = self.space.ctl(DELIVERY_ADMIN, &self.own);
        let body = self.request(op, args)?;
        let reply = self.ask(&subject, body, ADMIN_WITHIN).await.doing(|| self.asking(op))?;
        self.result(op, &reply)
    }

    /// The same, where silence alone is asked again, for `wait` in total: the first retry at
    /// once, later ones at most a second apart. It ends on time, also while an attempt is under
    /// way, and nothing is sent after it (ADM-4, INV-6).
    ///
    /// A request that is lost on its way is answered by nobody, so an attempt has only a part of
    /// the wait. The answer to any attempt counts, also one that comes while a later one is under
    /// way; so asking again takes nothing from a daemon that is slow.
    ///
    /// # Errors
    /// At once what [`Self::admin`] gives for an answer; [`ManagerError::RailSilent`] for none.
    pub async fn admin_patiently(
        &self,
        op: &str,
        args: Value,
        wait: Duration,
    ) -> Result<Value, ManagerError> {
        self.admin_within(op, args, Instant::now(), wait).await
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
        wait: Duration,
    ) -> Result<Value, ManagerError> {
        let subject = self.space.ctl(DELIVERY_ADMIN, &self.own);
        let body = self.request(op, args)?;
        let longest = longest_attempt(wait);
        let mut cadence = Cadence::new(wait);
        let client = RailClient::new(&self.connection, subject.clone());
        let mut asked = FuturesUnordered::new();
        let mut sent = 0;
        let (mut last, mut timed_out) = ("no attempt was answered".to_owned(), true);
        while let Next::Send { at, until } = cadence.next(started.elapsed()) {
            tokio::time::sleep(at.saturating_sub(started.elapsed())).await;
            let within = until.saturating_sub(started.elapsed()).min(longest);
            sent += 1;
            let left = until.saturating_sub(started.elapsed());
            let (newest, attempt) = (sent, client.ask(body.clone(), left));
            asked.push(async move { (newest, attempt.await) });
            let answer = match tokio::time::timeout(within, first_answer(&mut asked, newest)).await
            {
                Ok(Ok(reply)) => self.result(op, &reply),
                Ok(Err(error)) => Err(error).doing(|| self.asking(op)),
                Err(_) => {
                    let error = NatsError::Timeout { what: subject.clone(), after: within };
                    Err(error).doing(|| self.asking(op))
                }
            };
            match answer {
                Err(error) if error.is_silence() || error.is_disconnected() => {
                    if error.is_disconnected() {
                        asked.clear();
                    }
                    (last, timed_out) = (chain(&error), error.is_timeout());
                }
                answer => return answer,
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
        RailClient::new(&self.connection, subject.to_owned()).ask(body, within).await
    }

    fn request(&self, op: &str, args: Value) -> Result<Bytes, ManagerError> {
        let request = Request {
            op: op.to_owned(),
            args,
            from: Sender { id: self.own.to_string(), name: "cotal".to_owned(), role: None },
        };
        let body = serde_json::to_vec(&request).map_err(|error| malformed(op, &error));
        Ok(body.doing(|| self.asking(op))?.into())
    }

    /// What the daemon answered, or why it refused.
    fn result(&self, op: &str, reply: &Message) -> Result<Value, ManagerError> {
        let reply = serde_json::from_slice(&reply.payload).map_err(|error| malformed(op, &error));
        let reply: Reply = reply.doing(|| self.asking(op))?;
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

    fn asking(&self, op: &str) -> String {
        format!("ask the daemon of space {} for {op}", self.space)
    }
}

fn malformed(op: &str, error: &serde_json::Error) -> NatsError {
    NatsError::Malformed { what: op.to_owned(), detail: error.to_string() }
}

/// How long one attempt of a wait is listened to before the request is sent again.
fn longest_attempt(wait: Duration) -> Duration {
    (wait / ATTEMPTS_AT_LEAST).clamp(SHORTEST_ATTEMPT, LONGEST_ATTEMPT)
}

/// The first answer to any attempt. That nobody listens counts for the newest alone: an earlier one
/// may still be answered by whoever listened then.
async fn first_answer<F>(
    asked: &mut FuturesUnordered<F>,
    newest: usize,
) -> Result<Message, NatsError>
where
    F: Future<Output = (usize, Result<Message, NatsError>)>,
{
    loop {
        match asked.next().await {
            Some((attempt, Err(NatsError::NoResponders { .. }))) if attempt != newest => {}
            Some((_, answer)) => return answer,
            // The newest attempt is among them until it is answered.
            None => std::future::pending().await,
        }
    }
}

/// An error with its cause, in one line.
pub(crate) fn chain(error: &ManagerError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
