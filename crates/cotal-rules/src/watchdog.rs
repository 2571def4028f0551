//! When a daemon gives its broker up (LIF-3, LIF-4, LIF-5, CRD-6).
//!
//! A disconnect starts a clock, a reconnect stops it. The time that this process itself was stalled
//! is not the broker's fault and is taken off; a backstop on the wall clock holds whatever was
//! stalled. An expired credential is another matter: the broker is there, so the clock does not run,
//! and only a renewal that was proved against the broker ends that state.

/// How long the broker may be away, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Less the process's own stalls.
    pub window_ms: i64,
    /// By the wall clock; never less than the window.
    pub backstop_ms: i64,
}

impl Windows {
    /// The default window of the contract, in milliseconds.
    pub const WINDOW_MS: i64 = 15_000;

    /// A window and its backstop: four windows unless said otherwise, never less than one.
    #[must_use]
    pub fn new(window_ms: Option<i64>, backstop_ms: Option<i64>) -> Self {
        let window_ms = window_ms.filter(|ms| *ms > 0).unwrap_or(Self::WINDOW_MS);
        let backstop_ms = backstop_ms.unwrap_or(window_ms.saturating_mul(4)).max(window_ms);
        Self { window_ms, backstop_ms }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The resident connection dropped.
    Disconnected,
    /// It is back.
    Connected,
    /// The broker said that the credential has expired.
    Expired,
    /// A renewed credential was proved against the broker and adopted.
    Renewed,
    /// A regular look, due every [`Watchdog::tick_ms`].
    Tick,
}

/// What the shell does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Say at once that the credential has expired.
    AwaitRenewal,
    /// End: the broker is unreachable.
    Unreachable,
    /// End: it is unreachable past the backstop.
    PastBackstop,
    /// End: no renewal came.
    NotRenewed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Away {
    since: i64,
    stalled: i64,
}

/// The state. Times are milliseconds of a clock that never jumps and that runs on while the process
/// is stopped.
#[derive(Debug, Clone)]
pub struct Watchdog {
    windows: Windows,
    away: Option<Away>,
    expired_at: Option<i64>,
    last_look: i64,
}

impl Watchdog {
    /// A watchdog over a connection that is up.
    #[must_use]
    pub fn new(windows: Windows, now: i64) -> Self {
        Self { windows, away: None, expired_at: None, last_look: now }
    }

    /// How often a [`Event::Tick`] is due: often enough that a stall is told from a short window.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        (self.windows.window_ms / 20).clamp(10, 250)
    }

    /// Takes an event.
    pub fn on(&mut self, event: Event, now: i64) -> Option<Verdict> {
        self.meter(now);
        match event {
            Event::Disconnected if self.away.is_none() => {
                self.away = Some(Away { since: now, stalled: 0 });
            }
            Event::Connected => self.away = None,
            Event::Expired if self.expired_at.is_none() => {
                self.expired_at = Some(now);
                return Some(Verdict::AwaitRenewal);
            }
            Event::Renewed => self.renewed(now),
            Event::Disconnected | Event::Expired | Event::Tick => {}
        }
        self.judge(now)
    }

    /// The connection is away because the broker ended it, so only from here on does its absence say
    /// anything about the broker.
    fn renewed(&mut self, now: i64) {
        if self.expired_at.take().is_some()
            && let Some(away) = &mut self.away
        {
            *away = Away { since: now, stalled: 0 };
        }
    }

    /// What passed since the last look, beyond what a tick takes, is time in which this process did
    /// not run. Every event is a look, so an event that waited behind a stall is not blamed.
    fn meter(&mut self, now: i64) {
        let stalled = (now - self.last_look - 2 * self.tick_ms()).max(0);
        self.last_look = now;
        if let Some(away) = &mut self.away {
            away.stalled += stalled;
        }
    }

    fn judge(&self, now: i64) -> Option<Verdict> {
        if let Some(expired) = self.expired_at {
            let over = now - expired >= self.windows.backstop_ms;
            return over.then_some(Verdict::NotRenewed);
        }
        let away = self.away?;
        let elapsed = now - away.since;
        if elapsed - away.stalled >= self.windows.window_ms {
            Some(Verdict::Unreachable)
        } else if elapsed >= self.windows.backstop_ms {
            Some(Verdict::PastBackstop)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn windows() -> Windows {
        Windows::new(None, None)
    }

    /// Ticks regularly from `from` until a verdict, at most to `until`.
    fn ticks(dog: &mut Watchdog, from: i64, until: i64) -> Option<(Verdict, i64)> {
        let mut now = from;
        while now <= until {
            if let Some(verdict) = dog.on(Event::Tick, now) {
                return Some((verdict, now));
            }
            now += dog.tick_ms();
        }
        None
    }

    #[test]
    fn windows_have_their_defaults_and_floor() {
        assert_eq!(windows(), Windows { window_ms: 15_000, backstop_ms: 60_000 });
        assert_eq!(Windows::new(Some(1_000), None).backstop_ms, 4_000);
        assert_eq!(Windows::new(Some(1_000), Some(10)).backstop_ms, 1_000);
        assert_eq!(Windows::new(Some(0), None).window_ms, 15_000);
    }

    #[test]
    fn lif_3_a_broker_that_is_away_for_the_window_is_given_up() {
        let mut dog = Watchdog::new(windows(), 0);
        assert_eq!(ticks(&mut dog, 0, 100_000), None, "connected: never");
        let mut dog = Watchdog::new(windows(), 0);
        dog.on(Event::Disconnected, 100);
        let (verdict, at) = ticks(&mut dog, 200, 100_000).unwrap();
        assert_eq!(verdict, Verdict::Unreachable);
        assert!((15_100..15_500).contains(&at), "{at}");
    }

    #[test]
    fn lif_3_a_reconnect_stops_the_clock() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.on(Event::Disconnected, 0);
        assert_eq!(ticks(&mut dog, 0, 14_000), None);
        dog.on(Event::Connected, 14_100);
        dog.on(Event::Disconnected, 14_200);
        assert_eq!(ticks(&mut dog, 14_200, 28_000), None);
    }

    #[test]
    fn lif_3_time_in_which_this_process_was_stopped_is_not_the_brokers() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.on(Event::Disconnected, 0);
        assert_eq!(ticks(&mut dog, 0, 1_000), None);
        assert_eq!(dog.on(Event::Tick, 40_000), None, "stopped for 39 s");
        assert_eq!(dog.on(Event::Connected, 40_100), None);
    }

    #[test]
    fn lif_4_past_the_backstop_no_stall_helps() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.on(Event::Disconnected, 0);
        dog.on(Event::Tick, 250);
        assert_eq!(dog.on(Event::Tick, 60_000), Some(Verdict::PastBackstop));
    }

    #[test]
    fn crd_6_an_expiry_is_told_once_and_a_reconnect_alone_does_not_clear_it() {
        let mut dog = Watchdog::new(windows(), 0);
        assert_eq!(dog.on(Event::Expired, 0), Some(Verdict::AwaitRenewal));
        assert_eq!(dog.on(Event::Expired, 1), None);
        dog.on(Event::Disconnected, 2);
        assert_eq!(ticks(&mut dog, 3, 30_000), None, "it is no broker disconnect");
        dog.on(Event::Connected, 30_000);
        let (verdict, at) = ticks(&mut dog, 30_001, 100_000).unwrap();
        assert_eq!(verdict, Verdict::NotRenewed);
        assert!((60_000..60_500).contains(&at));
    }

    #[test]
    fn crd_6_a_proved_renewal_clears_it() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.on(Event::Expired, 0);
        dog.on(Event::Renewed, 10_000);
        assert_eq!(ticks(&mut dog, 10_000, 100_000), None);
    }

    #[test]
    fn crd_6_a_late_renewal_finds_a_broker_that_was_never_blamed() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.on(Event::Expired, 0);
        dog.on(Event::Disconnected, 1);
        assert_eq!(ticks(&mut dog, 2, 40_000), None);
        assert_eq!(dog.on(Event::Renewed, 40_000), None, "it was away for the expiry's sake");
        let (verdict, at) = ticks(&mut dog, 40_001, 100_000).unwrap();
        assert_eq!(verdict, Verdict::Unreachable);
        assert!((55_000..55_500).contains(&at), "{at}");
    }

    proptest! {
        #[test]
        fn a_running_process_blames_the_broker_never_early_and_never_late(
            gaps in prop::collection::vec(1_i64..400, 1..400),
        ) {
            let mut dog = Watchdog::new(windows(), 0);
            dog.on(Event::Disconnected, 0);
            let mut now = 0;
            for gap in gaps {
                now += gap;
                match dog.on(Event::Tick, now) {
                    Some(_) => { prop_assert!(now >= 15_000); break; }
                    None => prop_assert!(now < 15_000 + 400),
                }
            }
        }
    }
}
