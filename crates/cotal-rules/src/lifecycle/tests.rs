//! Every order in which the parts of a lane can start and fail.

use std::collections::HashSet;

use super::*;

/// The time step of the model; the longest wait of the machine is a multiple of it.
const UNIT: i64 = 500;
const WINDOWS: Windows = Windows { window_ms: 1_000, backstop_ms: 2_000 };
/// The number of time steps in an exploration.
const HORIZON: i64 = 6;

/// A lane whose parts do what they are told, or fail, in any order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    machine: Lifecycle,
    levels: Levels,
    orders: Orders,
    now: i64,
    /// Whether components were ever ordered to run; if so, they must be told to finish.
    was_bound: bool,
    /// When its end began.
    leaving: Option<i64>,
    faults: u8,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Advance,
    Stop,
    Drop,
    Reconnect,
    Expire,
    Renew,
    Claim,
    Lose,
    Regain,
    KeeperEnds,
    Scan,
    Bind,
    Confirm,
    Withdraw,
    Drain,
    Fail,
}

impl World {
    fn new() -> Self {
        let link = Link { connected: true, ..Link::default() };
        let mut world = Self {
            machine: Lifecycle::new(WINDOWS, 0),
            levels: Levels { link, ..Levels::default() },
            orders: Orders::default(),
            now: 0,
            was_bound: false,
            leaving: None,
            faults: 2,
        };
        world.look();
        world
    }

    fn look(&mut self) {
        let before = self.orders;
        let again = self.machine.look(&self.levels, self.now);
        self.orders = again;
        self.was_bound |= again.bind;
        self.leaving = self.leaving.or(self.machine.cause.map(|_| self.now));
        let twice = self.machine.clone().look(&self.levels, self.now);
        assert_eq!(Orders { say_expired: false, ..again }, Orders { say_expired: false, ..twice });
        self.check(before);
    }

    fn check(&self, before: Orders) {
        let Levels { lease, is_scanned, is_bound, is_ready, .. } = self.levels;
        let orders = self.orders;
        assert!(!orders.follow || lease != Lease::Claiming, "it follows before the claim");
        assert!(!orders.bind || is_scanned, "it binds before it knows the space");
        assert!(!orders.want_ready || is_bound, "ready before everything is bound");
        assert!(!(orders.finish && orders.want_ready), "ready while it finishes");
        let goes = orders.finish && !before.finish && self.levels.may_say_ready;
        let waited = self.leaving.is_some_and(|since| self.now >= since + WITHDRAW_MS);
        assert!(!goes || waited || self.may_skip(), "the responders go while the row says ready");
        assert!(!before.finish || orders.finish, "what was told to finish goes on");
        assert!(!before.release || orders.release || lease == Lease::Ended);
        assert!(!self.machine.has_served() || is_scanned && is_bound || is_ready);
        if orders.release {
            assert!(orders.finish || !self.was_bound, "released under components that run");
        }
        if let Some(cause) = self.machine.ended() {
            assert_eq!(lease, Lease::Ended, "it is over and the keeper still keeps");
            assert!(orders.finish || cause == Cause::Lease);
        }
    }

    /// A lane that lost its lease or its broker cannot write its row.
    fn may_skip(&self) -> bool {
        let gone = matches!(self.machine.cause, Some(Cause::Link(_)));
        self.levels.lease == Lease::Ended || gone || !self.levels.link.connected
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let Levels { lease, link, .. } = self.levels;
        let alive = lease != Lease::Ended;
        if self.now < HORIZON * UNIT {
            actions.push(Action::Advance);
        }
        let may = |actions: &mut Vec<Action>, when: bool, action| {
            if when {
                actions.push(action);
            }
        };
        may(&mut actions, lease == Lease::Claiming && link.connected, Action::Claim);
        may(&mut actions, lease == Lease::Doubtful && link.connected, Action::Regain);
        may(&mut actions, alive && self.orders.release, Action::KeeperEnds);
        may(&mut actions, self.orders.follow && !self.levels.is_scanned, Action::Scan);
        may(&mut actions, self.orders.bind && !self.levels.is_bound, Action::Bind);
        may(&mut actions, self.orders.want_ready && !self.levels.is_ready, Action::Confirm);
        let stale = self.levels.may_say_ready && !self.orders.want_ready && link.connected;
        may(&mut actions, stale, Action::Withdraw);
        may(&mut actions, self.orders.finish && !self.levels.is_drained, Action::Drain);
        may(&mut actions, !link.connected, Action::Reconnect);
        may(&mut actions, self.levels.link.is_past_expiry, Action::Renew);
        may(&mut actions, !self.levels.is_told_to_stop, Action::Stop);
        if self.faults > 0 {
            may(&mut actions, link.connected, Action::Drop);
            may(&mut actions, !link.is_past_expiry, Action::Expire);
            may(&mut actions, lease == Lease::Held, Action::Lose);
            may(&mut actions, alive, Action::KeeperEnds);
            may(&mut actions, self.orders.follow && !self.levels.has_failed, Action::Fail);
        }
        actions
    }

    fn act(&mut self, action: Action) {
        let Self { levels, faults, .. } = self;
        match action {
            Action::Advance => {
                for _ in 1..UNIT / self.machine.tick_ms() {
                    self.now += self.machine.tick_ms();
                    self.look();
                }
                self.now += self.machine.tick_ms();
            }
            Action::Stop => levels.is_told_to_stop = true,
            Action::Drop => {
                *faults -= 1;
                levels.link.connected = false;
                levels.link.drops += 1;
            }
            Action::Reconnect => levels.link.connected = true,
            Action::Expire => {
                *faults -= 1;
                levels.link.is_past_expiry = true;
                if levels.link.connected {
                    levels.link.expiries += 1;
                }
            }
            Action::Renew => {
                levels.link.is_past_expiry = false;
                levels.link.renewals += 1;
            }
            Action::Claim | Action::Regain => levels.lease = Lease::Held,
            Action::Lose => {
                *faults -= 1;
                (levels.lease, levels.is_ready) = (Lease::Doubtful, false);
            }
            Action::KeeperEnds => {
                *faults = faults.saturating_sub(u8::from(!self.orders.release));
                levels.lease = Lease::Ended;
                (levels.is_ready, levels.may_say_ready) = (false, false);
            }
            Action::Scan => levels.is_scanned = true,
            Action::Bind => levels.is_bound = true,
            Action::Confirm => (levels.is_ready, levels.may_say_ready) = (true, true),
            Action::Withdraw => (levels.is_ready, levels.may_say_ready) = (false, false),
            Action::Drain => levels.is_drained = true,
            Action::Fail => {
                *faults -= 1;
                levels.has_failed = true;
            }
        }
        self.look();
    }
}

/// From any state: a lane that was told to stop is over once the keeper has ended, and orders its
/// release in bounded time, whatever else hangs.
fn ends(mut world: World) {
    world.levels.is_told_to_stop = true;
    world.look();
    for _ in 0..20 {
        if world.machine.ended().is_some() {
            return;
        }
        if world.orders.release {
            world.act(Action::KeeperEnds);
            assert!(world.machine.ended().is_some(), "not over:\n{world:#?}");
            return;
        }
        world.act(Action::Advance);
    }
    panic!("it never ends:\n{world:#?}");
}

/// From any state without an end: when everything that was lost is back, the lane serves.
fn serves(mut world: World) {
    let Levels { has_failed, lease, .. } = world.levels;
    if has_failed || lease == Lease::Ended || world.machine.cause.is_some() {
        return;
    }
    for action in [Action::Renew, Action::Reconnect, Action::Regain, Action::Scan, Action::Bind] {
        world.act(action);
    }
    assert!(world.machine.cause.is_some() || world.orders.want_ready, "{world:#?}");
    world.act(Action::Confirm);
    assert!(world.machine.cause.is_some() || world.machine.has_served(), "{world:#?}");
}

#[test]
fn lse_7_lse_8_crd_3_every_order_of_events_keeps_the_order_of_a_lanes_life() {
    let mut seen = HashSet::new();
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        ends(world.clone());
        serves(world.clone());
        for action in world.actions() {
            let mut next = world.clone();
            next.act(action);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert!(seen.len() > 10_000, "only {} states", seen.len());
}

/// Several causes in one look: the gravest is reported, and stays.
#[test]
fn the_first_cause_of_an_end_is_the_one_that_is_told() {
    let mut world = World::new();
    for action in [Action::Claim, Action::Scan, Action::Bind, Action::Confirm] {
        world.act(action);
    }
    world.act(Action::Fail);
    world.act(Action::Stop);
    world.act(Action::Withdraw);
    world.act(Action::Drain);
    world.act(Action::KeeperEnds);
    assert_eq!(world.machine.ended(), Some(Cause::Failed));
}

#[test]
fn lse_8_a_stop_takes_the_ready_back_before_the_responders_go_and_waits_a_second_at_most() {
    let mut world = World::new();
    for action in [Action::Claim, Action::Scan, Action::Bind, Action::Confirm, Action::Stop] {
        world.act(action);
    }
    assert!(!world.orders.want_ready && !world.orders.finish && !world.orders.release);
    let mut withdrawn = world.clone();
    withdrawn.act(Action::Withdraw);
    assert!(withdrawn.orders.finish && !withdrawn.orders.release);
    world.act(Action::Advance);
    assert!(!world.orders.finish);
    world.act(Action::Advance);
    assert!(world.orders.finish, "the broker does not take it back");
}

/// Without a broker nothing is finished, and the keeper is told to release at once; it stops
/// waiting by itself.
#[test]
fn lif_3_a_broker_that_dies_while_the_lane_claims_ends_it_as_a_broker_that_is_gone() {
    let mut world = World::new();
    for action in [Action::Drop, Action::Advance, Action::Advance] {
        world.act(action);
    }
    assert!(world.orders.release && world.orders.finish);
    world.act(Action::KeeperEnds);
    assert_eq!(world.machine.ended(), Some(Cause::Link(WatchdogVerdict::Unreachable)));
}

#[test]
fn crd_6_an_expiry_is_said_in_one_look_and_ends_the_lane_at_the_backstop() {
    let mut world = World::new();
    world.act(Action::Drop);
    world.act(Action::Expire);
    assert!(world.orders.say_expired);
    for _ in 0..4 {
        assert!(!world.orders.release, "{world:#?}");
        world.act(Action::Advance);
        assert!(!world.orders.say_expired);
    }
    world.act(Action::KeeperEnds);
    assert_eq!(world.machine.ended(), Some(Cause::Link(WatchdogVerdict::NotRenewed)));
}
