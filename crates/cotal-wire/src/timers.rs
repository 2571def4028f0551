//! Timer subjects and bodies (`wire.md` §2, §6).

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::ids::is_route_token;
use crate::json::object;
use crate::names::Space;

/// The header that makes a message a schedule.
pub const SCHEDULE_HEADER: &str = "Nats-Schedule";
/// The header that names where a schedule fires.
pub const SCHEDULE_TARGET_HEADER: &str = "Nats-Schedule-Target";
/// What every scheduling header begins with.
pub const SCHEDULING_PREFIX: &str = "Nats-Schedul";

/// One timer: the tokens that its three subjects share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Timer {
    /// `<endpoint>.<instanceId>.<epoch>.<timerId>`.
    path: String,
    id_at: usize,
}

impl Timer {
    /// The timer's own id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.path[self.id_at..]
    }
}

impl Space {
    /// Reads a `.schedule` subject.
    #[must_use]
    pub fn parse_schedule(&self, subject: &str) -> Option<Timer> {
        let head = format!("{}.ept.", self.prefix());
        let path = subject.strip_prefix(&head)?.strip_suffix(".schedule")?;
        let tokens = path.split('.').filter(|token| is_route_token(token)).count();
        let (_, id) = path.rsplit_once('.')?;
        let id_at = path.len() - id.len();
        (tokens == 4 && path.split('.').count() == 4)
            .then(|| Timer { path: path.to_owned(), id_at })
    }

    /// Where a timer is armed.
    #[must_use]
    pub fn ept_armed(&self, timer: &Timer) -> String {
        format!("{}.ept.{}.armed", self.prefix(), timer.path)
    }

    /// Where a timer fires.
    #[must_use]
    pub fn ept_fire(&self, timer: &Timer) -> String {
        format!("{}.ept.{}.fire", self.prefix(), timer.path)
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
    /// Reads a body.
    ///
    /// # Errors
    /// When the bytes are not exactly a body.
    pub fn parse(payload: &[u8]) -> Result<Self, serde_json::Error> {
        object(payload)
    }

    /// The deadline as a `Nats-Schedule` says it, if it is a time that can be said. The broker reads
    /// whole seconds, so a fraction is rounded up: no timer fires early.
    #[must_use]
    pub fn schedule(&self) -> Option<String> {
        let seconds = self.deadline.checked_add(999)?.div_euclid(1_000);
        let at = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
        Some(format!("@at {}", at.format(&Rfc3339).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_subjects_read_back_and_foreign_ones_do_not() {
        let space = Space::parse("s").unwrap();
        let timer = space.parse_schedule("cotal.s.ept.wf.i-1.7.t_9.schedule").unwrap();
        assert_eq!(timer.id(), "t_9");
        assert_eq!(space.ept_armed(&timer), "cotal.s.ept.wf.i-1.7.t_9.armed");
        assert_eq!(space.ept_fire(&timer), "cotal.s.ept.wf.i-1.7.t_9.fire");
        for bad in [
            "cotal.s.ept.wf.i.7.t.armed",
            "cotal.t.ept.wf.i.7.t.schedule",
            "cotal.s.ept.wf.i.t.schedule",
            "cotal.s.ept.wf.i.7.x.t.schedule",
            "cotal.s.ept.wf.i..t.schedule",
            "cotal.s.ept.wf.*.7.t.schedule",
        ] {
            assert!(space.parse_schedule(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn deadlines_are_said_in_whole_seconds_and_never_early() {
        let at =
            |deadline| TimerBody { v: 1, timer_id: "t".into(), generation: 1, deadline }.schedule();
        assert_eq!(at(1_764_437_000_000).unwrap(), "@at 2025-11-29T17:23:20Z");
        assert_eq!(at(1_764_437_000_001).unwrap(), "@at 2025-11-29T17:23:21Z");
        assert_eq!(at(i64::MAX), None);
        assert_eq!(at(i64::MIN), None);
    }
}
