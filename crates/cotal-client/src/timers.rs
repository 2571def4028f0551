//! Timers of a workflow endpoint: asking for them, and reading when they fire.
//!
//! Invariant: a timer that fires is shown only when the broker itself shows that this timer's
//! schedule fired it. It comes again until it is acked.

use std::time::Duration;

use cotal_nats::{
    ConnectOptions, Connection, CredsError, Delivery, NatsError, PullConsumer, PullError,
    PullOptions, TlsMode, headers,
};
use cotal_wire::creds::Claims;
use cotal_wire::timers::{Held, LATEST_DEADLINE, Phase, TimerBody};
use cotal_wire::{EndpointName, Space, Timer};
use tokio::time::Instant;
use tracing::warn;

use crate::options::Credential;

/// Fired timers asked for ahead of the caller.
const PREFETCH: usize = 100;
/// How long closing may take.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);

/// Why a timer was not asked for, or no firing could be read.
#[derive(Debug, thiserror::Error)]
pub enum TimerError {
    /// The credential cannot be presented, or is no endpoint's.
    #[error("the credential is not a workflow endpoint's: {0}")]
    Credential(String),
    /// The timer is another endpoint's.
    #[error("the timer {timer} is not of the endpoint {endpoint} that the credential is for")]
    OtherEndpoint {
        /// What was asked for.
        timer: Timer,
        /// Whose credential it is.
        endpoint: EndpointName,
    },
    /// The deadline cannot be armed.
    #[error(
        "the deadline {0} cannot be armed: give Unix milliseconds between 1 and {LATEST_DEADLINE}"
    )]
    Deadline(i64),
    /// The broker did not store the request, or cannot be read from.
    #[error(transparent)]
    Nats(#[from] NatsError),
    /// The endpoint's consumer cannot be read.
    #[error(transparent)]
    Pull(#[from] PullError),
}

impl From<CredsError> for TimerError {
    fn from(error: CredsError) -> Self {
        Self::Credential(error.to_string())
    }
}

/// A workflow endpoint's side of its timers.
///
/// ```no_run
/// use std::time::Duration;
/// use cotal_client::{Credential, Timer, Timers, TlsMode};
///
/// # async fn run(deadline: i64) -> Result<(), Box<dyn std::error::Error>> {
/// let creds = Credential::File("wf.creds".into());
/// let mut timers = Timers::connect("nats://127.0.0.1:4222", creds, TlsMode::Plain).await?;
/// timers.set(&Timer::parse("wf.run-7.1.step-3")?, 1, deadline).await?;
/// while let Some(fired) = timers.next(Duration::from_secs(60)).await? {
///     println!("{} fired", fired.timer);
///     fired.ack().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Timers {
    connection: Connection,
    space: Space,
    endpoint: EndpointName,
    fires: Option<PullConsumer>,
}

/// A timer that has fired.
#[derive(Debug)]
#[must_use = "a firing that is not acked comes again"]
pub struct Fired {
    /// Which timer.
    pub timer: Timer,
    /// Of which of its requests. One that is older than the last that was asked for came too late.
    pub generation: u64,
    /// When it was due, Unix milliseconds.
    pub deadline: i64,
    delivery: Delivery,
}

impl Fired {
    /// Says that it was dealt with; it never comes again.
    ///
    /// # Errors
    /// When the broker does not confirm it: then it may come again.
    pub async fn ack(self) -> Result<(), NatsError> {
        self.delivery.ack_confirmed().await
    }

    /// Has it delivered again at once, to whichever instance of the endpoint reads next.
    ///
    /// # Errors
    /// When the connection is closed: then it comes again after the ack wait, a minute.
    pub async fn give_back(self) -> Result<(), NatsError> {
        self.delivery.nak(None).await
    }
}

impl Timers {
    /// Connects. The credential says for which endpoint of which space.
    ///
    /// # Errors
    /// When the credential is no endpoint's, or the broker does not take it.
    pub async fn connect(
        server: impl Into<String>,
        credential: Credential,
        tls: TlsMode,
    ) -> Result<Self, TimerError> {
        let source = credential.into_source()?;
        let creds = source.current()?;
        let creds = creds.ok_or_else(|| TimerError::Credential("it is anonymous".to_owned()))?;
        let claims = Claims::parse(creds.jwt());
        let claims = claims.map_err(|e| TimerError::Credential(e.to_string()))?;
        let space = claims.space().map_err(|e| TimerError::Credential(e.to_string()))?;
        let endpoint = claims.endpoint().map_err(|e| TimerError::Credential(e.to_string()))?;
        let options = ConnectOptions::new(server, format!("cotal {endpoint}"), source).tls(tls);
        Ok(Self { connection: Connection::connect(options).await?, space, endpoint, fires: None })
    }

    /// The endpoint's name.
    #[must_use]
    pub fn endpoint(&self) -> &EndpointName {
        &self.endpoint
    }

    /// Asks for `timer` to fire at `deadline`, in Unix milliseconds; a past one fires at once.
    /// Each request for a timer has a higher `generation` than the one before: the same one again
    /// changes nothing, a lower one is passed over. What is returned is the request's number: the
    /// request is stored, and armed as soon as a delivery daemon serves the space.
    ///
    /// # Errors
    /// When the timer is not this endpoint's, the deadline cannot be armed, or the broker did not
    /// confirm the request; then it may be made again.
    pub async fn set(
        &self,
        timer: &Timer,
        generation: u64,
        deadline: i64,
    ) -> Result<u64, TimerError> {
        if timer.endpoint() != self.endpoint.as_str() {
            let endpoint = self.endpoint.clone();
            return Err(TimerError::OtherEndpoint { timer: timer.clone(), endpoint });
        }
        let body = TimerBody::new(timer, generation, deadline);
        if body.schedule().is_none() {
            return Err(TimerError::Deadline(deadline));
        }
        let payload = serde_json::to_vec(&body)
            .map_err(|e| NatsError::Malformed { what: "timer".into(), detail: e.to_string() })?;
        let subject = self.space.ept_schedule(timer);
        let stored = self.connection.publish_confirmed(subject, None, payload.into(), None).await?;
        Ok(stored.seq)
    }

    /// Puts `timer` off for ever, under a higher `generation` than that of its last request. A
    /// firing of an earlier generation may be under way; [`Fired::generation`] tells.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub async fn cancel(&self, timer: &Timer, generation: u64) -> Result<u64, TimerError> {
        self.set(timer, generation, LATEST_DEADLINE).await
    }

    /// The next timer that fires; `None` when none does within `wait`. Cancel-safe.
    ///
    /// # Errors
    /// When the endpoint's consumer is gone or may not be read.
    pub async fn next(&mut self, wait: Duration) -> Result<Option<Fired>, TimerError> {
        let deadline = Instant::now() + wait;
        if self.fires.is_none() {
            let (stream, name) = (self.space.ept_stream(), self.space.ept_consumer(&self.endpoint));
            let options = PullOptions { batch: PREFETCH, ..PullOptions::default() };
            let fires = PullConsumer::open(&self.connection, &stream, &name, options).await?;
            self.fires = Some(fires);
        }
        let Some(fires) = &mut self.fires else { return Ok(None) };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(delivery) = fires.next_one(left).await? else { return Ok(None) };
            match read(&self.space, &delivery) {
                Some((timer, body)) => {
                    let TimerBody { generation, deadline, .. } = body;
                    return Ok(Some(Fired { timer, generation, deadline, delivery }));
                }
                None => {
                    // Whoever can make the broker answer can aim the answer here (`wire.md` §8).
                    warn!(subject = %delivery.subject, "dropped a message that no schedule fired");
                    delivery.term().await?;
                }
            }
        }
    }

    /// Gives back what was read ahead, and closes the connection.
    pub async fn close(self) {
        if let Some(fires) = self.fires {
            for ahead in fires.end().await {
                // What is not given back comes again after its ack wait.
                let _ = ahead.nak(None).await;
            }
        }
        self.connection.close(CLOSED_WITHIN).await;
    }
}

fn read(space: &Space, delivery: &Delivery) -> Option<(Timer, TimerBody)> {
    let header = |name| headers::get(delivery.headers.as_ref(), name);
    let held = Held::new(&delivery.subject, delivery.stream_seq, header, &delivery.payload);
    match space.read_timer(&held)? {
        (timer, Phase::Fired(body)) => Some((timer, body)),
        (_, Phase::Armed(_)) => None,
    }
}
