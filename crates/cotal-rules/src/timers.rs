//! Which timer requests arm a schedule (TMR-5).
//!
//! A request is an agent's word on a subject of its own; what is armed is built here from what was
//! checked. Nothing that the requester wrote as a header ever reaches the scheduling stream.

use std::collections::HashMap;

use cotal_wire::Space;
use cotal_wire::timers::{SCHEDULING_PREFIX, Timer, TimerBody};

/// Timers whose latest generation is remembered; beyond it the oldest half is forgotten.
const MAX_TIMERS: usize = 10_000;

/// A schedule to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// The subject that holds the schedule; a new one replaces the old.
    pub subject: String,
    /// The value of the schedule header.
    pub schedule: String,
    /// The subject that it fires on.
    pub target: String,
}

/// Why a request arms nothing. It is ended: asking again would change nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The subject is no timer request of this space.
    #[error("the subject is not a timer request")]
    Subject,
    /// It tries to schedule by itself.
    #[error("it carries the scheduling header {0}")]
    Header(String),
    /// The body is not a request.
    #[error("the body is not a timer request: {0}")]
    Body(String),
    /// The body names another timer than the subject.
    #[error("the body names the timer {0:?}, the subject another")]
    Disagrees(String),
    /// The deadline is no time that can be scheduled.
    #[error("the deadline {0} is no time")]
    Deadline(i64),
    /// A later generation is armed already; this one is a late repeat.
    #[error("generation {0} is older than what is armed")]
    Stale(u64),
}

/// What was armed, so that a late repeat of an older request does not replace a newer one.
#[derive(Debug, Default)]
pub struct Timers {
    armed: HashMap<Timer, (u64, u64)>,
    clock: u64,
}

impl Timers {
    /// Judges one request; `headers` are the names of all of its headers.
    ///
    /// # Errors
    /// When it arms nothing.
    pub fn judge<'a>(
        &self,
        space: &Space,
        subject: &str,
        headers: impl IntoIterator<Item = &'a str>,
        payload: &[u8],
    ) -> Result<(Timer, u64, Arm), Refused> {
        let timer = space.parse_schedule(subject).ok_or(Refused::Subject)?;
        let scheduling = |name: &&str| {
            let head = name.get(..SCHEDULING_PREFIX.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(SCHEDULING_PREFIX))
        };
        if let Some(name) = headers.into_iter().find(scheduling) {
            return Err(Refused::Header(name.to_owned()));
        }
        let body = TimerBody::parse(payload).map_err(|error| Refused::Body(error.to_string()))?;
        if body.v != 1 {
            return Err(Refused::Body(format!("version {} is not known", body.v)));
        }
        if body.timer_id != timer.id() {
            return Err(Refused::Disagrees(body.timer_id));
        }
        if self.armed.get(&timer).is_some_and(|(newest, _)| body.generation < *newest) {
            return Err(Refused::Stale(body.generation));
        }
        let schedule = body.schedule().filter(|_| body.deadline > 0);
        let schedule = schedule.ok_or(Refused::Deadline(body.deadline))?;
        let (subject, target) = (space.ept_armed(&timer), space.ept_fire(&timer));
        Ok((timer, body.generation, Arm { subject, schedule, target }))
    }

    /// Notes that the broker has confirmed the schedule.
    pub fn armed(&mut self, timer: Timer, generation: u64) {
        self.clock += 1;
        self.armed.insert(timer, (generation, self.clock));
        if self.armed.len() > MAX_TIMERS {
            let mut ages: Vec<u64> = self.armed.values().map(|(_, at)| *at).collect();
            ages.sort_unstable();
            let middle = ages[ages.len() / 2];
            self.armed.retain(|_, (_, at)| *at >= middle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "cotal.s.ept.wf.i.7.t1.schedule";

    fn judged(timers: &Timers, headers: &[&str], body: &str) -> Result<(Timer, u64, Arm), Refused> {
        let space = Space::parse("s").unwrap();
        timers.judge(&space, SUBJECT, headers.iter().copied(), body.as_bytes())
    }

    fn body(id: &str, generation: u64, deadline: i64) -> String {
        format!(r#"{{"v":1,"timerId":"{id}","generation":{generation},"deadline":{deadline}}}"#)
    }

    #[test]
    fn tmr_5_only_an_honest_request_arms() {
        let timers = Timers::default();
        let good = body("t1", 1, 1_764_437_000_000);
        let (_, generation, arm) = judged(&timers, &["Nats-Msg-Id", "x"], &good).unwrap();
        assert_eq!(generation, 1);
        assert_eq!(arm.subject, "cotal.s.ept.wf.i.7.t1.armed");
        assert_eq!(arm.target, "cotal.s.ept.wf.i.7.t1.fire");
        assert_eq!(arm.schedule, "@at 2025-11-29T17:23:20Z");
        for header in
            ["Nats-Schedule", "nats-schedule-target", "NATS-SCHEDULE-TTL", "Nats-Scheduler"]
        {
            let refused = judged(&timers, &["a", header], &good);
            assert_eq!(refused, Err(Refused::Header(header.to_owned())));
        }
        assert_eq!(judged(&timers, &[], &body("t2", 1, 5)), Err(Refused::Disagrees("t2".into())));
        for deadline in [0, -1, i64::MAX] {
            let refused = judged(&timers, &[], &body("t1", 1, deadline));
            assert_eq!(refused, Err(Refused::Deadline(deadline)));
        }
        let versions = good.replace(r#""v":1"#, r#""v":2"#);
        for bad in ["", "{}", "[1,\"t1\",1,5]", versions.as_str(), &good.replace('}', ",\"x\":1}")]
        {
            assert!(matches!(judged(&timers, &[], bad), Err(Refused::Body(_))), "{bad}");
        }
        let space = Space::parse("other").unwrap();
        let foreign = timers.judge(&space, SUBJECT, [], good.as_bytes());
        assert_eq!(foreign, Err(Refused::Subject));
    }

    #[test]
    fn a_late_repeat_never_replaces_a_newer_generation() {
        let mut timers = Timers::default();
        let (timer, generation, _) = judged(&timers, &[], &body("t1", 5, 1_000)).unwrap();
        timers.armed(timer, generation);
        assert_eq!(judged(&timers, &[], &body("t1", 4, 1_000)), Err(Refused::Stale(4)));
        assert!(judged(&timers, &[], &body("t1", 5, 1_000)).is_ok(), "the same again is harmless");
        assert!(judged(&timers, &[], &body("t1", 6, 1_000)).is_ok());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut timers, space) = (Timers::default(), Space::parse("s").unwrap());
        for n in 0..MAX_TIMERS * 2 {
            let subject = format!("cotal.s.ept.wf.i.7.t{n}.schedule");
            timers.armed(space.parse_schedule(&subject).unwrap(), 1);
        }
        assert!(timers.armed.len() <= MAX_TIMERS);
        let last = format!("cotal.s.ept.wf.i.7.t{}.schedule", MAX_TIMERS * 2 - 1);
        assert!(timers.armed.contains_key(&space.parse_schedule(&last).unwrap()));
    }
}
