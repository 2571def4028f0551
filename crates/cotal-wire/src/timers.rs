//! Timer subjects and bodies (`wire.md` §2, §6).

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::ids::{EndpointName, IdError, is_route_token};
use crate::json::object;
use crate::limits::MAX_TIMER_REQUEST;
use crate::names::Space;

/// The header that makes a message a schedule.
pub const SCHEDULE_HEADER: &str = "Nats-Schedule";
/// The header that names where a schedule fires.
pub const SCHEDULE_TARGET_HEADER: &str = "Nats-Schedule-Target";
/// The header by which the broker says which schedule a message was fired by. It refuses it from
/// everybody else.
pub const SCHEDULER_HEADER: &str = "Nats-Scheduler";
/// What every scheduling header begins with.
pub const SCHEDULING_PREFIX: &str = "Nats-Schedul";

/// The latest deadline that can be armed: the start of the year 2200, in Unix milliseconds. The
/// broker counts nanoseconds in 63 bits and fires at once whatever lies beyond their end in 2262.
///
/// A timer that is cancelled is re-armed for this instant (`wire.md` §6).
pub const LATEST_DEADLINE: i64 = 7_258_118_400_000;

/// One timer: `<endpoint>.<instanceId>.<epoch>.<timerId>`, which its three subjects share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timer {
    path: String,
    endpoint_len: usize,
    id_at: usize,
}

impl Timer {
    /// Reads `<endpoint>.<instanceId>.<epoch>.<timerId>`.
    ///
    /// # Errors
    /// When the text is not exactly four route tokens.
    pub fn parse(path: &str) -> Result<Self, IdError> {
        let bad = || IdError::Timer(path.chars().take(64).collect());
        let mut lengths = path.split('.').map(|token| is_route_token(token).then_some(token.len()));
        let mut next = || lengths.next().flatten().ok_or_else(bad);
        let (endpoint_len, instance, epoch, _) = (next()?, next()?, next()?, next()?);
        if lengths.next().is_some() {
            return Err(bad());
        }
        let id_at = endpoint_len + instance + epoch + 3;
        Ok(Self { path: path.to_owned(), endpoint_len, id_at })
    }

    /// The endpoint's name.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.path[..self.endpoint_len]
    }

    /// The timer's own id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.path[self.id_at..]
    }

    /// All four tokens.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Subjects and names of timers.
impl Space {
    fn ept(&self, path: &str, kind: &str) -> String {
        format!("{}.ept.{path}.{kind}", self.prefix())
    }

    fn parse_ept(&self, subject: &str, kind: &str) -> Option<Timer> {
        let tail = subject.strip_prefix(&self.prefix())?.strip_prefix(".ept.")?;
        Timer::parse(tail.strip_suffix(kind)?.strip_suffix('.')?).ok()
    }

    /// Where a timer is asked for.
    #[must_use]
    pub fn ept_schedule(&self, timer: &Timer) -> String {
        self.ept(timer.as_str(), "schedule")
    }

    /// Where a timer is armed.
    #[must_use]
    pub fn ept_armed(&self, timer: &Timer) -> String {
        self.ept(timer.as_str(), "armed")
    }

    /// Where a timer fires.
    #[must_use]
    pub fn ept_fire(&self, timer: &Timer) -> String {
        self.ept(timer.as_str(), "fire")
    }

    /// Everything that EPT holds of a timer.
    #[must_use]
    pub fn ept_of(&self, timer: &Timer) -> String {
        self.ept(timer.as_str(), "*")
    }

    /// Reads a `.schedule` subject.
    #[must_use]
    pub fn parse_schedule(&self, subject: &str) -> Option<Timer> {
        self.parse_ept(subject, "schedule")
    }

    /// Reads an `.armed` subject.
    #[must_use]
    pub fn parse_armed(&self, subject: &str) -> Option<Timer> {
        self.parse_ept(subject, "armed")
    }

    /// Reads a `.fire` subject.
    #[must_use]
    pub fn parse_fire(&self, subject: &str) -> Option<Timer> {
        self.parse_ept(subject, "fire")
    }

    /// Timer subjects of one endpoint and one kind: `schedule`, `armed` or `fire`.
    #[must_use]
    pub fn ept_endpoint(&self, endpoint: &EndpointName, kind: &str) -> String {
        self.ept(&format!("{endpoint}.*.*.*"), kind)
    }

    /// The consumer on EPT that an endpoint reads its fired timers through.
    #[must_use]
    pub fn ept_consumer(&self, endpoint: &EndpointName) -> String {
        format!("ept_{endpoint}")
    }
}

/// The body of a timer's three messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimerBody {
    /// The version: 1.
    pub v: u64,
    /// The timer's id, as in the subject.
    pub timer_id: String,
    /// Counts the requests for this timer.
    pub generation: u64,
    /// When it fires, Unix milliseconds.
    pub deadline: i64,
}

impl TimerBody {
    /// The body for `timer`.
    #[must_use]
    pub fn new(timer: &Timer, generation: u64, deadline: i64) -> Self {
        Self { v: 1, timer_id: timer.id().to_owned(), generation, deadline }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// When the bytes are not exactly a body, or more than one can have.
    pub fn parse(payload: &[u8]) -> Result<Self, serde_json::Error> {
        if payload.len() > MAX_TIMER_REQUEST {
            return Err(serde::de::Error::custom("it is too large"));
        }
        object(payload)
    }

    /// The deadline as a `Nats-Schedule` says it, if it is a time that can be armed. The broker
    /// honours fractions of a second and never fires early.
    #[must_use]
    pub fn schedule(&self) -> Option<String> {
        if !(1..=LATEST_DEADLINE).contains(&self.deadline) {
            return None;
        }
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.deadline) * 1_000_000);
        Some(format!("@at {}", at.ok()?.format(&Rfc3339).ok()?))
    }
}

/// A message that EPT holds, as far as it matters.
#[derive(Debug, Clone, Copy)]
pub struct Held<'a> {
    /// Its subject.
    pub subject: &'a str,
    /// Its sequence.
    pub seq: u64,
    /// When it fires, if it is a schedule.
    pub schedule: Option<&'a str>,
    /// Where it fires, if it is a schedule.
    pub target: Option<&'a str>,
    /// Which schedule fired it, if one did.
    pub scheduler: Option<&'a str>,
    /// Its body.
    pub payload: &'a [u8],
}

impl<'a> Held<'a> {
    /// A message with this `header` look-up.
    pub fn new(
        subject: &'a str,
        seq: u64,
        header: impl Fn(&'static str) -> Option<&'a str>,
        payload: &'a [u8],
    ) -> Self {
        Self {
            subject,
            seq,
            schedule: header(SCHEDULE_HEADER),
            target: header(SCHEDULE_TARGET_HEADER),
            scheduler: header(SCHEDULER_HEADER),
            payload,
        }
    }
}

/// What a message of EPT is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// A schedule that stands.
    Armed(TimerBody),
    /// A timer that has fired.
    Fired(TimerBody),
}

impl Space {
    /// What a message of EPT says, and of which timer. `None` for anything that neither the timer
    /// writer nor a schedule put there: another's bytes can be aimed at any subject (`wire.md` §8).
    #[must_use]
    pub fn read_timer(&self, held: &Held<'_>) -> Option<(Timer, Phase)> {
        let body = TimerBody::parse(held.payload).ok()?;
        let armed = self.parse_armed(held.subject);
        let is_armed = armed.is_some();
        let timer = armed.or_else(|| self.parse_fire(held.subject))?;
        if body.v != 1 || body.timer_id != timer.id() {
            return None;
        }
        let phase = if is_armed {
            let fires = held.schedule.is_some() && held.target == Some(&self.ept_fire(&timer));
            fires.then_some(Phase::Armed(body))
        } else {
            let is_fired = held.scheduler == Some(&self.ept_armed(&timer));
            is_fired.then_some(Phase::Fired(body))
        };
        Some((timer, phase?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_subjects_read_back_and_foreign_ones_do_not() {
        let space = Space::parse("s").unwrap();
        let timer = space.parse_schedule("cotal.s.ept.wf.i-1.7.t_9.schedule").unwrap();
        assert_eq!((timer.endpoint(), timer.id()), ("wf", "t_9"));
        assert_eq!(timer.to_string(), "wf.i-1.7.t_9");
        assert_eq!(space.ept_schedule(&timer), "cotal.s.ept.wf.i-1.7.t_9.schedule");
        assert_eq!(space.ept_armed(&timer), "cotal.s.ept.wf.i-1.7.t_9.armed");
        assert_eq!(space.ept_fire(&timer), "cotal.s.ept.wf.i-1.7.t_9.fire");
        assert_eq!(space.parse_armed(&space.ept_armed(&timer)), Some(timer.clone()));
        assert_eq!(space.parse_fire(&space.ept_fire(&timer)), Some(timer));
        for bad in [
            "cotal.s.ept.wf.i.7.t.armed",
            "cotal.t.ept.wf.i.7.t.schedule",
            "cotal.s.ept.wf.i.t.schedule",
            "cotal.s.ept.wf.i.7.x.t.schedule",
            "cotal.s.ept.wf.i..t.schedule",
            "cotal.s.ept.wf.*.7.t.schedule",
            "cotal.s.ept.wf.i.7.tschedule",
        ] {
            assert!(space.parse_schedule(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn deadlines_are_said_to_the_millisecond_and_none_that_the_broker_would_misread() {
        let at =
            |deadline| TimerBody { v: 1, timer_id: "t".into(), generation: 1, deadline }.schedule();
        assert_eq!(at(1_764_437_000_000).unwrap(), "@at 2025-11-29T17:23:20Z");
        assert_eq!(at(1_764_437_000_001).unwrap(), "@at 2025-11-29T17:23:20.001Z");
        assert_eq!(at(LATEST_DEADLINE).unwrap(), "@at 2200-01-01T00:00:00Z");
        for none in [i64::MIN, -1, 0, LATEST_DEADLINE + 1, i64::MAX] {
            assert_eq!(at(none), None, "{none}");
        }
    }

    #[test]
    fn a_body_has_its_fields_and_its_size() {
        let body = r#"{"v":1,"timerId":"t","generation":1,"deadline":5}"#;
        assert!(TimerBody::parse(body.as_bytes()).is_ok());
        let padded = format!("{body}{}", " ".repeat(MAX_TIMER_REQUEST));
        assert!(TimerBody::parse(padded.as_bytes()).is_err());
    }
}
