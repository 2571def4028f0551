//! What came of a role request: its holder says it, its sender waits for it.

use std::time::Duration;

use cotal_wire::Principal;
use cotal_wire::anycast::{NotTaken, Recorded, ResultArgs, TakeRefusal};
use cotal_wire::control::{Code, op};
use cotal_wire::envelope::Part;
use cotal_wire::rows::{Outcome, RequestResult, RequestRow};
use tokio::time::{Instant, sleep};

use crate::control::ControlError;
use crate::endpoint::Endpoint;
use crate::holder::RoleRequest;
use crate::incoming::AckError;
use crate::requests::RequestState;
use crate::send::Draft;

/// The first wait between two looks at a request that is not finished.
const FIRST_STATUS_POLL: Duration = Duration::from_millis(100);
/// A result is seen within this once it is there.
const LONGEST_STATUS_POLL: Duration = Duration::from_secs(2);

/// Why a holder's result did not count.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultError {
    /// The daemon did not record it: it does not answer, or the result is too large. The request
    /// comes again, to some holder, once its ack wait is over.
    #[error("the result of the request is not recorded; the request will be redelivered")]
    Control(#[source] ControlError),
    /// The request is not this holder's any more: it moved on, and the result is dropped.
    #[error("another holder has the request now, so this result is dropped")]
    NotHeld,
    /// The result is recorded, and the request did not leave the queue yet. The daemon removes it.
    #[error("the result is recorded; the request will leave the queue later")]
    Ack(#[source] AckError),
}

impl RoleRequest {
    /// Done: its sender gets this answer, of at most 32 KiB, and the request leaves the queue.
    ///
    /// # Errors
    /// When the daemon did not record it, or the request is another's by now.
    pub async fn complete(self, answer: impl Into<Draft>) -> Result<(), ResultError> {
        self.record(Outcome::Done, answer.into()).await?;
        self.ack().await.map_err(ResultError::Ack)
    }

    /// It cannot be done, and nobody is to try it again: its sender gets the reason, and the
    /// request leaves the queue.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    pub async fn fail(self, reason: impl Into<Draft>) -> Result<(), ResultError> {
        self.record(Outcome::Failed, reason.into()).await?;
        self.ack().await.map_err(ResultError::Ack)
    }

    /// Not done: its sender gets the reason, and some holder gets the request again, at once or
    /// after `delay`.
    ///
    /// # Errors
    /// As [`complete`](Self::complete). The request comes again in any case.
    pub async fn give_back_with(
        self,
        reason: impl Into<Draft>,
        delay: Option<Duration>,
    ) -> Result<(), ResultError> {
        let recorded = self.record(Outcome::Returned, reason.into()).await;
        if !matches!(recorded, Err(ResultError::NotHeld)) {
            self.give_back(delay).await.map_err(ResultError::Ack)?;
        }
        recorded
    }

    async fn record(&self, outcome: Outcome, answer: Draft) -> Result<(), ResultError> {
        let args = ResultArgs {
            seq: self.seq,
            stream_created: self.created.clone(),
            delivery: self.delivery,
            outcome,
            parts: answer.into_parts(),
        };
        let recorded: Result<Recorded, _> = self.plane.holding(op::RESULT, &args).await;
        match recorded {
            Ok(_) => Ok(()),
            Err(error) if is_lost(&error) => Err(ResultError::NotHeld),
            Err(error) => Err(ResultError::Control(error)),
        }
    }
}

/// Whether a refusal says that the request is not the caller's any more.
fn is_lost(error: &ControlError) -> bool {
    let ControlError::Refused { data: Some(data), .. } = error else { return false };
    let reason = serde_json::from_value(data.clone()).map(|NotTaken { reason }| reason);
    reason.is_ok_and(|reason| reason != TakeRefusal::NotYours)
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOutcome {
    /// Whether it was done.
    pub outcome: Outcome,
    /// Who said so.
    pub holder: Option<Principal>,
    /// What the holder answered; empty when it only took the request off the queue.
    pub parts: Vec<Part>,
}

impl RequestOutcome {
    /// The text parts, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        Part::texts(&self.parts)
    }

    /// What a record says, once nobody works on the request any more.
    #[must_use]
    pub fn of(row: &RequestRow) -> Option<Self> {
        let holder = row.holder.clone();
        match &row.result {
            Some(RequestResult { outcome, parts, .. }) if outcome.is_final() => {
                Some(Self { outcome: *outcome, holder, parts: parts.clone() })
            }
            _ if row.gone > 0 => Some(Self { outcome: Outcome::Done, holder, parts: Vec::new() }),
            _ => None,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It is not finished; it can be waited for again.
    #[error("request {seq} has no result after {after:?}: {state}")]
    TimedOut {
        /// The request.
        seq: u64,
        /// How long it was waited for.
        after: Duration,
        /// Where it stood last.
        state: Box<RequestState>,
    },
    /// Its sender took it back.
    #[error("request {0} was cancelled: it gets no result")]
    Cancelled(u64),
    /// The agent has no such request, or it left the queue over a day ago.
    #[error("this agent has no request {0}")]
    Unknown(u64),
    /// The daemon did not answer, or refused. The result may be there.
    #[error("the state of request {seq} is not known")]
    Control {
        /// The request.
        seq: u64,
        /// What was heard instead.
        #[source]
        source: ControlError,
    },
}

impl Endpoint {
    /// Waits for what comes of a request of this agent. It can be read for a day after the request
    /// left the queue, by any process of the agent. A daemon that is away for a while is waited for
    /// as well.
    ///
    /// # Errors
    /// When there is no result within this time, or never will be, or the daemon refuses to say.
    pub async fn wait_for_result(
        &self,
        seq: u64,
        within: Duration,
    ) -> Result<RequestOutcome, WaitError> {
        let deadline = Instant::now() + within;
        let mut look = FIRST_STATUS_POLL;
        loop {
            let asked = self.request_status(seq).await;
            let over = Instant::now() >= deadline;
            match asked {
                Ok(RequestState::Unknown) => return Err(WaitError::Unknown(seq)),
                Ok(RequestState::Cancelled(_)) => return Err(WaitError::Cancelled(seq)),
                Ok(state) => {
                    if let RequestState::Taken(row) = &state
                        && let Some(outcome) = RequestOutcome::of(row)
                    {
                        return Ok(outcome);
                    }
                    if over {
                        let state = Box::new(state);
                        return Err(WaitError::TimedOut { seq, after: within, state });
                    }
                }
                Err(source) if over || !passes(&source) => {
                    return Err(WaitError::Control { seq, source });
                }
                Err(_) => {}
            }
            sleep(look.min(deadline.saturating_duration_since(Instant::now()))).await;
            look = (look * 2).min(LONGEST_STATUS_POLL);
        }
    }
}

/// Whether asking again may help.
fn passes(error: &ControlError) -> bool {
    match error {
        ControlError::NoResponders { .. }
        | ControlError::Timeout { .. }
        | ControlError::ConnectionLost => true,
        ControlError::Refused { code, .. } => {
            matches!(code, Some(Code::NotReady | Code::Unavailable))
        }
        _ => false,
    }
}
