//! Which timer requests arm a schedule (TMR-1, TMR-5).
//!
//! An endpoint writes its request to a subject of its own; the schedule is built here from what was
//! checked. No header of the request ever reaches the scheduling stream.
//!
//! The daemon remembers nothing about timers: it reads the current generation from what the broker
//! holds, so a restart forgets nothing. A message there counts only if the broker itself shows that
//! the timer writer or a schedule wrote it.

use cotal_wire::timers::{Held, LATEST_DEADLINE, Phase, SCHEDULING_PREFIX, TimerBody};
use cotal_wire::{Space, Timer};

/// A request that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which timer.
    pub timer: Timer,
    /// What is requested.
    pub body: TimerBody,
    /// The deadline in the form that the broker expects.
    schedule: String,
}

/// A schedule to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// The subject that stores the schedule; a new schedule replaces the old one.
    pub subject: String,
    /// The value of the schedule header.
    pub schedule: String,
    /// The subject that it fires on.
    pub target: String,
    /// The subjects on which `last_seq` must still be the newest message.
    pub guarded: String,
    /// The newest message of the timer when the decision was made; 0 for none.
    pub last_seq: u64,
}

/// Why a request arms nothing. It is terminated, because a retry would change nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The subject is not a timer request of this space.
    #[error("the subject is not a timer request")]
    Subject,
    /// It carries a scheduling header of its own.
    #[error("it carries the scheduling header {0}")]
    Header(String),
    /// It has header lines that nobody can read, and that the broker may have read otherwise.
    #[error("its headers cannot be read")]
    Unreadable,
    /// The body is not a request.
    #[error("the body is not a timer request: {0}")]
    Body(String),
    /// The body names another timer than the subject does.
    #[error("the body names the timer {0:?}, the subject another")]
    Disagrees(String),
    /// The deadline cannot be scheduled.
    #[error("the deadline {0} is not a time in milliseconds between 1970 and {LATEST_DEADLINE}")]
    Deadline(i64),
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Publish this schedule.
    Arm(Arm),
    /// The same generation is armed already, or has fired: nothing changes.
    Stands,
    /// A later generation is armed, or has fired: nothing changes.
    Superseded(u64),
}

impl Request {
    /// Checks one request; `headers` are the names of all of its headers.
    ///
    /// # Errors
    /// If it arms nothing.
    pub fn read<'a>(
        space: &Space,
        subject: &str,
        headers: impl IntoIterator<Item = &'a str>,
        payload: &[u8],
    ) -> Result<Self, Refused> {
        let timer = space.parse_schedule(subject).ok_or(Refused::Subject)?;
        if let Some(name) = headers.into_iter().find(|name| is_scheduling(name)) {
            return Err(Refused::Header(name.chars().take(64).collect()));
        }
        let body = TimerBody::parse(payload).map_err(|error| Refused::Body(error.to_string()))?;
        if body.v != 1 {
            return Err(Refused::Body(format!("version {} is not known", body.v)));
        }
        if body.timer_id != timer.id() {
            return Err(Refused::Disagrees(body.timer_id.chars().take(64).collect()));
        }
        let schedule = body.schedule().ok_or(Refused::Deadline(body.deadline))?;
        Ok(Self { timer, body, schedule })
    }

    /// Whether this request replaces `other`, an earlier request for the same timer.
    #[must_use]
    pub fn supersedes(&self, other: &Self) -> bool {
        self.body.generation > other.body.generation
    }

    /// Decides by what the broker holds of the timer.
    #[must_use]
    pub fn decide(&self, space: &Space, record: &Record) -> Decision {
        match record.stands {
            Some(stands) if stands > self.body.generation => Decision::Superseded(stands),
            Some(stands) if stands == self.body.generation && !record.is_covered => {
                Decision::Stands
            }
            _ => Decision::Arm(Arm {
                subject: space.ept_armed(&self.timer),
                schedule: self.schedule.clone(),
                target: space.ept_fire(&self.timer),
                guarded: space.ept_of(&self.timer),
                last_seq: record.last_seq,
            }),
        }
    }
}

fn is_scheduling(name: &str) -> bool {
    let head = name.get(..SCHEDULING_PREFIX.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(SCHEDULING_PREFIX))
}

/// What the broker holds of one timer. The newest message tells everything, unless
/// [`Space::read_timer`] does not know it; then every message must be noted, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The newest message.
    last_seq: u64,
    /// The highest generation that was armed or has fired.
    stands: Option<u64>,
    /// Whether that one has fired.
    has_fired: bool,
    /// Whether another message was stored over the schedule: the broker then drops the schedule.
    is_covered: bool,
}

impl Record {
    /// Notes one message; returns whether it is known.
    pub fn note(&mut self, space: &Space, timer: &Timer, held: &Held<'_>) -> bool {
        self.last_seq = self.last_seq.max(held.seq);
        let (generation, has_fired) = match space.read_timer(held) {
            Some((_, Phase::Armed(body))) => (body.generation, false),
            Some((_, Phase::Fired(body))) => (body.generation, true),
            None => {
                self.is_covered |= !self.has_fired && held.subject == space.ept_armed(timer);
                return false;
            }
        };
        if self.stands.is_none_or(|stands| generation >= stands) {
            self.stands = Some(generation);
            self.has_fired = has_fired;
            self.is_covered = false;
        } else {
            // A writer that did not check replaced the schedule with an older one.
            self.is_covered |= !self.has_fired && !has_fired;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "cotal.s.ept.wf.i.7.t1.schedule";
    const ARMED: &str = "cotal.s.ept.wf.i.7.t1.armed";
    const FIRE: &str = "cotal.s.ept.wf.i.7.t1.fire";

    fn space() -> Space {
        Space::parse("s").unwrap()
    }

    fn read(headers: &[&str], body: &str) -> Result<Request, Refused> {
        Request::read(&space(), SUBJECT, headers.iter().copied(), body.as_bytes())
    }

    fn body(id: &str, generation: u64, deadline: i64) -> String {
        format!(r#"{{"v":1,"timerId":"{id}","generation":{generation},"deadline":{deadline}}}"#)
    }

    fn request(generation: u64) -> Request {
        read(&[], &body("t1", generation, 1_000)).unwrap()
    }

    fn armed(seq: u64, payload: &str) -> Held<'_> {
        let (schedule, target) = (Some("@at 1970-01-01T00:00:01Z"), Some(FIRE));
        let payload = payload.as_bytes();
        Held { subject: ARMED, seq, schedule, target, scheduler: None, payload }
    }

    fn fired(seq: u64, payload: &str) -> Held<'_> {
        let (scheduler, payload) = (Some(ARMED), payload.as_bytes());
        Held { subject: FIRE, seq, schedule: None, target: None, scheduler, payload }
    }

    fn record(held: &[Held<'_>]) -> Record {
        let mut record = Record::default();
        for held in held {
            record.note(&space(), &request(1).timer, held);
        }
        record
    }

    fn arms(generation: u64, held: &[Held<'_>]) -> Option<u64> {
        match request(generation).decide(&space(), &record(held)) {
            Decision::Arm(arm) => Some(arm.last_seq),
            _ => None,
        }
    }

    #[test]
    fn tmr_5_only_an_honest_request_arms() {
        let good = body("t1", 1, 1_764_437_000_000);
        let honest = read(&["Nats-Msg-Id", "x"], &good).unwrap();
        let Decision::Arm(arm) = honest.decide(&space(), &Record::default()) else {
            panic!("nothing stands");
        };
        assert_eq!((arm.subject.as_str(), arm.target.as_str()), (ARMED, FIRE));
        assert_eq!((arm.guarded.as_str(), arm.last_seq), ("cotal.s.ept.wf.i.7.t1.*", 0));
        assert_eq!(arm.schedule, "@at 2025-11-29T17:23:20Z");
        for header in
            ["Nats-Schedule", "nats-schedule-target", "NATS-SCHEDULE-TTL", "Nats-Scheduler"]
        {
            let refused = read(&["a", header], &good);
            assert_eq!(refused, Err(Refused::Header(header.to_owned())));
        }
        assert_eq!(read(&[], &body("t2", 1, 5)), Err(Refused::Disagrees("t2".into())));
        for deadline in [0, -1, LATEST_DEADLINE + 1, i64::MAX] {
            let refused = read(&[], &body("t1", 1, deadline));
            assert_eq!(refused, Err(Refused::Deadline(deadline)));
        }
        let versions = good.replace(r#""v":1"#, r#""v":2"#);
        for bad in ["", "{}", "[1,\"t1\",1,5]", versions.as_str(), &good.replace('}', ",\"x\":1}")]
        {
            assert!(matches!(read(&[], bad), Err(Refused::Body(_))), "{bad}");
        }
        let other = Space::parse("other").unwrap();
        let foreign = Request::read(&other, SUBJECT, [], good.as_bytes());
        assert_eq!(foreign, Err(Refused::Subject));
    }

    #[test]
    fn tmr_1_the_broker_tells_which_generation_stands() {
        let five = body("t1", 5, 1_000);
        assert_eq!(arms(1, &[]), Some(0));
        for held in [armed(9, &five), fired(9, &five)] {
            assert_eq!(arms(6, &[held]), Some(9), "a later one replaces it");
            assert_eq!(arms(5, &[held]), None, "the same again changes nothing");
            let older = request(4).decide(&space(), &record(&[held]));
            assert_eq!(older, Decision::Superseded(5));
        }
        assert!(request(6).supersedes(&request(5)));
        assert!(!request(5).supersedes(&request(5)), "the first of a generation counts");
    }

    #[test]
    fn what_nobody_entitled_wrote_neither_arms_nor_blocks() {
        let (five, high) = (body("t1", 5, 1_000), body("t1", 99, 1_000));
        let plain = Held { schedule: None, ..armed(2, &high) };
        let aimed = Held { target: Some("cotal.s.ept.wf.i.7.t2.fire"), ..armed(2, &high) };
        let unfired = Held { scheduler: None, ..fired(2, &high) };
        let others = Held { scheduler: Some("cotal.s.ept.x.i.7.t1.armed"), ..fired(2, &high) };
        let (stranger, renamed) = (armed(2, "{\"seq\":1}"), body("t2", 99, 1_000));
        for garbage in [plain, aimed, unfired, others, stranger, armed(2, &renamed)] {
            assert_eq!(arms(1, &[garbage]), Some(2), "{garbage:?} blocks nothing");
            assert_eq!(arms(4, &[armed(1, &five), garbage]), None, "{garbage:?}");
        }
        assert_eq!(arms(5, &[armed(1, &five), plain]), Some(2), "what was written over is armed");
        assert_eq!(arms(5, &[armed(1, &five), unfired]), None, "its schedule stands");
        assert_eq!(arms(5, &[armed(1, &five), plain, armed(3, &five)]), None);
        let four = body("t1", 4, 1_000);
        assert_eq!(
            arms(5, &[armed(1, &five), armed(2, &four)]),
            Some(2),
            "an older one lies on it"
        );
        for on_top in [plain, armed(2, &four)] {
            assert_eq!(
                arms(5, &[fired(1, &five), on_top]),
                None,
                "what has fired never fires again"
            );
        }
    }
}
