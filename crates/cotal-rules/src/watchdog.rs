//! When a daemon gives up its broker or its credential (LIF-3, LIF-4, LIF-5, CRD-6).
//!
//! A disconnect starts a clock, a reconnect stops it. Time in which this process itself was stalled
//! does not count, because it is not the broker's fault; a backstop on the wall clock ends the wait
//! however long the process was stalled. An expired credential is another matter: the broker is
//! there, so the clock does not run, and only a renewal that was proved against the broker ends
//! that state.

/// How long the broker may be away, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    /// Without the time in which this process was stalled.
    pub window_ms: i64,
    /// By the wall clock; never less than the window.
    pub backstop_ms: i64,
}

impl Windows {
    /// The default window of the contract, in milliseconds.
    pub const WINDOW_MS: i64 = 15_000;

    /// A window and its backstop: by default four windows, and never less than one.
    #[must_use]
    pub fn new(window_ms: Option<i64>, backstop_ms: Option<i64>) -> Self {
        let window_ms = window_ms.filter(|ms| *ms > 0).unwrap_or(Self::WINDOW_MS);
        let backstop_ms = backstop_ms.unwrap_or(window_ms.saturating_mul(4)).max(window_ms);
        Self { window_ms, backstop_ms }
    }
}

/// The state of the resident connection and its credential. All levels and counts, no events, so a
/// caller that looks late, or only once, misses nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// The connection is usable.
    pub connected: bool,
    /// How often it dropped so far.
    pub drops: u64,
    /// How often the broker said that its credential has expired.
    pub expiries: u64,
    /// How often a renewed credential was proved against the broker and adopted.
    pub renewals: u64,
    /// The credential that a redial would present has expired, by this host's clock.
    pub is_past_expiry: bool,
}

/// What the shell does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchdogVerdict {
    /// Say at once that the credential has expired.
    AwaitRenewal,
    /// End: the broker is unreachable.
    Unreachable,
    /// End: it is unreachable past the backstop.
    PastBackstop,
    /// End: no renewal came.
    NotRenewed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Away {
    since: i64,
    stalled: i64,
}

/// The state machine. Times are milliseconds of a clock that never jumps and that runs on while the
/// process is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Watchdog {
    windows: Windows,
    seen: Link,
    away: Option<Away>,
    expired_at: Option<i64>,
    last_look: i64,
}

impl Watchdog {
    /// A watchdog over a connection that has just been made.
    #[must_use]
    pub fn new(windows: Windows, now: i64) -> Self {
        let seen = Link { connected: true, ..Link::default() };
        Self { windows, seen, away: None, expired_at: None, last_look: now }
    }

    /// The longest allowed time between two calls of [`Self::look`]: short enough to tell a stall
    /// of this process from a short window.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        (self.windows.window_ms / 20).clamp(10, 250)
    }

    /// Takes the current state of the link; returns a verdict when one is due.
    pub fn look(&mut self, link: Link, now: i64) -> Option<WatchdogVerdict> {
        self.meter(now);
        let seen = std::mem::replace(&mut self.seen, link);
        let came_back = link.drops > seen.drops;
        match self.away {
            _ if link.connected => self.away = None,
            Some(_) if !came_back => {}
            _ => self.away = Some(Away { since: now, stalled: 0 }),
        }
        let was_expired = self.expired_at.is_some();
        if link.expiries > seen.expiries {
            self.expired_at.get_or_insert(now);
        }
        if link.renewals > seen.renewals {
            self.renewed(now);
        }
        // While the broker is away it cannot say that the credential has expired, and later it
        // would refuse the redial.
        if !link.connected && link.is_past_expiry {
            self.expired_at.get_or_insert(now);
        }
        if self.expired_at.is_some() && !was_expired {
            return Some(WatchdogVerdict::AwaitRenewal);
        }
        self.judge(now)
    }

    /// The broker itself ended the connection because of the expiry, so only from here on does a
    /// missing connection say anything about the broker.
    fn renewed(&mut self, now: i64) {
        if self.expired_at.take().is_some()
            && let Some(away) = &mut self.away
        {
            *away = Away { since: now, stalled: 0 };
        }
    }

    /// Time since the last call beyond two regular intervals is time in which this process did not
    /// run. The shell also calls when something changes, so an event that had to wait for a stall
    /// to end is not blamed on the broker.
    fn meter(&mut self, now: i64) {
        let stalled = (now - self.last_look - 2 * self.tick_ms()).max(0);
        self.last_look = now;
        if let Some(away) = &mut self.away {
            away.stalled += stalled;
        }
    }

    fn judge(&self, now: i64) -> Option<WatchdogVerdict> {
        if let Some(expired) = self.expired_at {
            let over = now - expired >= self.windows.backstop_ms;
            return over.then_some(WatchdogVerdict::NotRenewed);
        }
        let away = self.away?;
        let elapsed = now - away.since;
        if elapsed - away.stalled >= self.windows.window_ms {
            Some(WatchdogVerdict::Unreachable)
        } else if elapsed >= self.windows.backstop_ms {
            Some(WatchdogVerdict::PastBackstop)
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

    const UP: Link =
        Link { connected: true, drops: 0, expiries: 0, renewals: 0, is_past_expiry: false };
    const DOWN: Link = Link { connected: false, drops: 1, ..UP };

    /// Calls `look` regularly from `from` on, until a verdict or until `until`.
    fn looks(
        dog: &mut Watchdog,
        link: Link,
        from: i64,
        until: i64,
    ) -> Option<(WatchdogVerdict, i64)> {
        let mut now = from;
        while now <= until {
            if let Some(verdict) = dog.look(link, now) {
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
        assert_eq!(looks(&mut dog, UP, 0, 100_000), None, "connected: never");
        let mut dog = Watchdog::new(windows(), 0);
        dog.look(DOWN, 100);
        let (verdict, at) = looks(&mut dog, DOWN, 200, 100_000).unwrap();
        assert_eq!(verdict, WatchdogVerdict::Unreachable);
        assert!((15_100..15_500).contains(&at), "{at}");
    }

    #[test]
    fn lif_3_a_broker_that_was_gone_before_the_first_look_is_given_up_as_well() {
        let mut dog = Watchdog::new(windows(), 0);
        let (verdict, at) = looks(&mut dog, DOWN, 0, 100_000).unwrap();
        assert_eq!(verdict, WatchdogVerdict::Unreachable);
        assert!((15_000..15_500).contains(&at), "{at}");
    }

    #[test]
    fn lif_3_a_reconnect_stops_the_clock_also_one_that_no_look_saw() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.look(DOWN, 0);
        assert_eq!(looks(&mut dog, DOWN, 0, 14_000), None);
        dog.look(Link { drops: 1, ..UP }, 14_100);
        let again = Link { drops: 2, ..DOWN };
        assert_eq!(looks(&mut dog, again, 14_200, 28_000), None);
        let once_more = Link { drops: 3, ..DOWN };
        assert_eq!(looks(&mut dog, once_more, 28_200, 42_000), None, "it was back in between");
    }

    #[test]
    fn lif_3_time_in_which_this_process_was_stopped_is_not_the_brokers() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.look(DOWN, 0);
        assert_eq!(looks(&mut dog, DOWN, 0, 1_000), None);
        assert_eq!(dog.look(DOWN, 40_000), None, "stopped for 39 s");
        assert_eq!(dog.look(Link { drops: 1, ..UP }, 40_100), None);
    }

    #[test]
    fn lif_4_past_the_backstop_no_stall_helps() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.look(DOWN, 0);
        dog.look(DOWN, 250);
        assert_eq!(dog.look(DOWN, 60_000), Some(WatchdogVerdict::PastBackstop));
    }

    #[test]
    fn crd_6_an_expiry_is_told_once_and_a_reconnect_alone_does_not_clear_it() {
        let mut dog = Watchdog::new(windows(), 0);
        let expired = Link { expiries: 1, ..UP };
        assert_eq!(dog.look(expired, 0), Some(WatchdogVerdict::AwaitRenewal));
        assert_eq!(dog.look(expired, 1), None);
        let down = Link { expiries: 1, ..DOWN };
        assert_eq!(looks(&mut dog, down, 3, 30_000), None, "it is no broker disconnect");
        let back = Link { expiries: 1, drops: 1, ..UP };
        let (verdict, at) = looks(&mut dog, back, 30_001, 100_000).unwrap();
        assert_eq!(verdict, WatchdogVerdict::NotRenewed);
        assert!((60_000..60_500).contains(&at));
    }

    #[test]
    fn crd_6_a_proved_renewal_clears_it() {
        let mut dog = Watchdog::new(windows(), 0);
        dog.look(Link { expiries: 1, ..UP }, 0);
        let renewed = Link { expiries: 1, renewals: 1, ..UP };
        assert_eq!(looks(&mut dog, renewed, 10_000, 100_000), None);
    }

    #[test]
    fn crd_6_a_late_renewal_finds_a_broker_that_was_never_blamed() {
        let mut dog = Watchdog::new(windows(), 0);
        let down = Link { expiries: 1, ..DOWN };
        dog.look(down, 0);
        assert_eq!(looks(&mut dog, down, 2, 40_000), None);
        let renewed = Link { renewals: 1, ..down };
        assert_eq!(dog.look(renewed, 40_000), None, "it was away for the expiry's sake");
        let (verdict, at) = looks(&mut dog, renewed, 40_001, 100_000).unwrap();
        assert_eq!(verdict, WatchdogVerdict::Unreachable);
        assert!((55_000..55_500).contains(&at), "{at}");
    }

    /// The broker restarts, and the credential's end comes before it is back.
    #[test]
    fn crd_6_an_expiry_while_the_connection_is_away_is_an_expiry_and_has_the_backstop() {
        let mut dog = Watchdog::new(windows(), 0);
        assert_eq!(looks(&mut dog, DOWN, 0, 5_000), None);
        let past = Link { is_past_expiry: true, ..DOWN };
        assert_eq!(dog.look(past, 5_100), Some(WatchdogVerdict::AwaitRenewal));
        let (verdict, at) = looks(&mut dog, past, 5_200, 100_000).unwrap();
        assert_eq!(verdict, WatchdogVerdict::NotRenewed);
        assert!((65_100..65_500).contains(&at), "{at}");
    }

    /// A clock that runs ahead of the broker's says nothing while the broker is content.
    #[test]
    fn crd_6_the_own_clock_says_nothing_while_the_connection_stands() {
        let mut dog = Watchdog::new(windows(), 0);
        let past = Link { is_past_expiry: true, ..UP };
        assert_eq!(looks(&mut dog, past, 0, 100_000), None);
    }

    proptest! {
        #[test]
        fn a_running_process_blames_the_broker_never_early_and_never_late(
            gaps in prop::collection::vec(1_i64..400, 1..400),
        ) {
            let mut dog = Watchdog::new(windows(), 0);
            dog.look(DOWN, 0);
            let mut now = 0;
            for gap in gaps {
                now += gap;
                match dog.look(DOWN, now) {
                    Some(_) => { prop_assert!(now >= 15_000); break; }
                    None => prop_assert!(now < 15_000 + 400),
                }
            }
        }
    }
}
