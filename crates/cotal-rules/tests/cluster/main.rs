//! A small simulated space: CHAT, member and ACL rows, INBOX, DLV, agents and two daemons, driven
//! through random interleavings.
//!
//! It is harsher than a real space: both daemons serve at once, as when a paused holder wakes up,
//! and each may decide now and act much later. In spite of that: no eligible post is lost, nothing
//! outside interval and ACL is surfaced, no post is surfaced twice, and no row of a retired
//! lifecycle is left, whichever daemon was writing one.

#![expect(clippy::unwrap_used, reason = "a model that cannot go on has failed its test")]

mod daemon;
mod ops;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use cotal_rules::{DenyReason, Plan, Verdict};
use cotal_wire::envelope::Reason;
use cotal_wire::names::member_key;
use cotal_wire::rows::{AclRow, DeliveryClass, MemberRow};
use cotal_wire::{Channel, ChannelPattern, Lifecycle};
use proptest::prelude::*;

use daemon::Daemon;
use ops::{Op, membership_op, one_member_op, ops};
use space::{Post, Space};

const ACTORS: [&str; 3] = ["alice", "bob", "carol"];

/// How far the manager is with a retirement.
#[derive(Debug, Clone)]
enum Retiring {
    Narrowed,
    Asked { daemon: usize },
    Inventoried(Vec<Channel>),
    Deleted,
    Tombstoned,
}

struct Cluster {
    space: Space,
    daemons: [Daemon; 2],
    channel: Channel,
    members: Vec<Lifecycle>,
    /// Deliveries that agents showed, in order.
    surfaced: BTreeMap<Lifecycle, Vec<u64>>,
    seen: BTreeMap<Lifecycle, BTreeSet<(String, String)>>,
    /// Posts that a verdict released, or rightly denied, at the moment it was made.
    released: BTreeSet<(Lifecycle, u64)>,
    excused: BTreeSet<(Lifecycle, u64)>,
    retiring: [Option<Retiring>; 3],
    /// Lifecycles of which a crash left a row without its second ACL read.
    strays: BTreeSet<Lifecycle>,
}

impl Cluster {
    fn new(defaults: &'static [u8]) -> Self {
        let uid = |n: usize| char::from(b'a' + u8::try_from(n).unwrap()).to_string().repeat(26);
        let life = |(n, who): (usize, &&str)| {
            Lifecycle::parse(&format!("local.{who}.{}", uid(n))).unwrap()
        };
        let mut cluster = Self {
            space: Space::new(defaults),
            daemons: [Daemon::default(), Daemon::default()],
            channel: Channel::parse("team").unwrap(),
            members: ACTORS.iter().enumerate().map(life).collect(),
            surfaced: BTreeMap::new(),
            seen: BTreeMap::new(),
            released: BTreeSet::new(),
            excused: BTreeSet::new(),
            retiring: [const { None }; 3],
            strays: BTreeSet::new(),
        };
        for who in 0..ACTORS.len() {
            cluster.set_acl(who, &["team"], false);
        }
        for daemon in &mut cluster.daemons {
            daemon.restart(&cluster.space);
        }
        cluster
    }

    fn set_acl(&mut self, who: usize, patterns: &[&str], retired: bool) {
        let member = self.members[who].clone();
        if self.space.acls.get(&member).is_some_and(|row| row.retired) {
            return;
        }
        let row = AclRow {
            allow_subscribe: patterns.iter().map(|p| ChannelPattern::parse(p).unwrap()).collect(),
            revision: 1,
            updated_at: 0,
            name: Some(ACTORS[who].to_owned()),
            activated: None,
            retired,
        };
        self.space.put_acl(&member, row);
    }

    fn run(&mut self, op: Op) {
        let space = &mut self.space;
        match op {
            Op::Post { by, id, mention } => {
                // Ids repeat between senders, never within one; one in four posts has none.
                let nth = space.posts.iter().filter(|p| p.sender.actor() == ACTORS[by]).count();
                let id = if id == 0 { String::new() } else { format!("m{nth}") };
                space.posts.push(Post {
                    sender: self.members[by].principal.clone(),
                    channel: self.channel.clone(),
                    id,
                    mentions: mention.map(|who| ACTORS[who].to_owned()).into_iter().collect(),
                });
            }
            Op::Join { daemon, who } => {
                self.daemons[daemon].start_join(&self.channel, &self.members[who]);
            }
            Op::GoOn { daemon, nth, fault } => {
                self.daemons[daemon].go_on(space, nth, fault);
            }
            Op::Arrive { daemon } => {
                self.daemons[daemon].arrive(space);
            }
            Op::Gate { daemon, closed } => self.daemons[daemon].set_closed(closed),
            Op::Leave { daemon, who } => {
                self.daemons[daemon].start_leave(space, &self.channel, &self.members[who]);
            }
            // A retirement holds the name, so nobody else changes the row.
            Op::Narrow { who, .. } if self.retiring[who].is_some() => {}
            Op::Narrow { who, to } => {
                self.set_acl(who, [&["team"][..], &["other"], &[]][to], false);
            }
            Op::Inventory { daemon, who } => {
                let (daemon, member) = (&mut self.daemons[daemon], &self.members[who]);
                daemon.ask_inventory(space, member);
                inventory(daemon, space, member);
            }
            Op::Retire { daemon, who } => self.retire(daemon, who),
            Op::RetireAtOnce { who } => self.set_acl(who, &[], true),
            Op::GarbleMember { who } => {
                space.garble(false, &member_key(&self.channel, &self.members[who]));
            }
            Op::GarbleAcl { who } => space.garble(true, &self.members[who].dotted()),
            Op::PlanPost { daemon, again } => {
                self.plan_post(daemon, again);
            }
            Op::WritePlan { daemon, some } => {
                self.daemons[daemon].write_plan(space, some);
            }
            Op::Judge { daemon, again } => {
                self.judge(daemon, again);
            }
            Op::Perform { daemon, lose_ack } => {
                self.daemons[daemon].perform(space, lose_ack);
            }
            Op::Flow => self.flow(),
            Op::FallBack { by } => self.fall_back(by),
            Op::Crash { daemon } => self.crash(daemon),
            Op::Surface { who, lose_ack } => {
                self.surface(who, lose_ack);
            }
        }
    }

    fn flow(&mut self) {
        self.run(Op::Post { by: 0, id: 1, mention: None });
        while self.plan_post(0, false) {
            self.daemons[0].write_plan(&mut self.space, None);
        }
        for _ in 0..self.space.inbox.len() {
            self.judge(0, false);
            self.daemons[0].perform(&mut self.space, false);
        }
    }

    /// Every lane ends, and the next start corrects the rows that CHAT contradicts.
    fn fall_back(&mut self, by: usize) {
        for daemon in 0..2 {
            self.crash(daemon);
        }
        let last = self.space.fall_back(by);
        self.released.retain(|(_, seq)| *seq <= last);
        self.excused.retain(|(_, seq)| *seq <= last);
        for (member, shown) in &mut self.surfaced {
            shown.retain(|seq| *seq <= last);
            let key = |seq: &u64| {
                let post = self.space.post_at(*seq);
                (post.sender.to_string(), post.id.clone())
            };
            self.seen.insert(member.clone(), shown.iter().map(key).collect());
        }
        self.daemons[0].restart(&self.space);
        self.daemons[0].correct(&mut self.space);
        self.daemons[1].restart(&self.space);
    }

    fn crash(&mut self, daemon: usize) {
        self.strays.extend(self.daemons[daemon].unseen());
        // Writes in flight of a dead process have arrived before another takes its place.
        while self.daemons[daemon].arrive(&mut self.space) {}
        self.daemons[daemon].restart(&self.space);
        for retiring in self.retiring.iter_mut().flatten() {
            // Its request is lost with the daemon, so the manager asks again.
            if matches!(retiring, Retiring::Asked { daemon: asked } if *asked == daemon) {
                *retiring = Retiring::Narrowed;
            }
        }
    }

    /// The manager's next step, with an inventory from either daemon.
    fn retire(&mut self, daemon: usize, who: usize) {
        let member = self.members[who].clone();
        let next = match self.retiring[who].take() {
            None => {
                self.set_acl(who, &[], false);
                Retiring::Narrowed
            }
            Some(Retiring::Narrowed) => {
                self.daemons[daemon].ask_inventory(&self.space, &member);
                Retiring::Asked { daemon }
            }
            Some(Retiring::Asked { daemon }) => {
                match inventory(&mut self.daemons[daemon], &self.space, &member) {
                    Some(channels) => Retiring::Inventoried(channels),
                    None => Retiring::Asked { daemon },
                }
            }
            Some(Retiring::Inventoried(channels)) => {
                for channel in channels {
                    self.space.drop_member(&channel, &member);
                }
                Retiring::Deleted
            }
            Some(Retiring::Deleted) => {
                self.set_acl(who, &[], true);
                Retiring::Tombstoned
            }
            Some(Retiring::Tombstoned) => Retiring::Tombstoned,
        };
        self.retiring[who] = Some(next);
    }

    /// Retirements in progress are completed while every process in the middle of a change sleeps.
    /// Only then they wake up, late, and do what they had decided.
    fn wake_late(&mut self) {
        for who in 0..ACTORS.len() {
            while self.retiring[who].is_some()
                && !matches!(self.retiring[who], Some(Retiring::Tombstoned))
            {
                self.retire(1, who);
                if let Some(Retiring::Asked { daemon }) = self.retiring[who] {
                    let member = &self.members[who];
                    while self.daemons[daemon].is_busy_with(member) {
                        self.daemons[daemon].go_on(&mut self.space, 0, None);
                    }
                }
            }
        }
        for daemon in &mut self.daemons {
            while daemon.go_on(&mut self.space, 0, None) {}
            while daemon.arrive(&mut self.space) {}
        }
    }

    /// Compares a plan with every interval that ever was. A miss is excused only if the bucket's
    /// history no longer has the interval's end.
    fn plan_post(&mut self, daemon: usize, again: bool) -> bool {
        let (space, excused) = (&self.space, &mut self.excused);
        let mut truth = |seq: u64, plan: &Plan| {
            let post = space.post_at(seq);
            if plan.class == DeliveryClass::Live {
                return check_mentions(space, post, plan);
            }
            for interval in space.intervals.iter().filter(|i| i.activated && i.holds(seq)) {
                let member = &interval.member;
                let copied = plan.copies.iter().any(|copy| copy.member == *member);
                if copied || member.principal == post.sender {
                    continue;
                }
                let history = space.history(false, &member_key(&interval.channel, member));
                let closed = history.iter().filter_map(|change| {
                    serde_json::from_slice::<MemberRow>(change.value.as_deref()?).ok()
                });
                let mut own = closed.filter(|row| row.generation == interval.generation);
                assert!(
                    !own.any(|row| row.leave_cursor == interval.leave),
                    "{interval:?} is missed"
                );
                excused.insert((member.clone(), seq));
            }
        };
        self.daemons[daemon].plan_post(space, again, &mut truth)
    }

    /// Compares a verdict with the truth at the moment it is made.
    fn judge(&mut self, daemon: usize, again: bool) -> bool {
        let (space, released, excused) = (&self.space, &mut self.released, &mut self.excused);
        let mut truth = |at: usize, verdict: Verdict| {
            let entry = &space.inbox[at];
            let allowed = space.acl(&entry.member).allows(&entry.channel);
            let mut own = space.intervals.iter().filter(|interval| {
                interval.member == entry.member && interval.channel == entry.channel
            });
            let inside = own.any(|interval| interval.holds(entry.seq));
            let place = (entry.member.clone(), entry.seq);
            match verdict {
                Verdict::Release => {
                    assert!(allowed, "released against the ACL");
                    assert!(inside || entry.reason == Reason::LiveMention, "released in a gap");
                    released.insert(place);
                }
                Verdict::Deny(DenyReason::EarlierGeneration) => {
                    let key = member_key(&entry.channel, &entry.member);
                    let held = space.history(false, &key).len();
                    assert!(!allowed || !inside || held == 8, "denied though history knows");
                    excused.insert(place);
                }
                Verdict::Deny(reason) => {
                    assert!(!allowed || !inside, "an eligible post is denied: {reason:?}");
                    if !allowed {
                        excused.insert(place);
                    }
                }
                Verdict::Retired => {
                    assert!(space.acls[&entry.member].retired);
                    excused.insert(place);
                }
                Verdict::Leaving => {}
                Verdict::NoAclRow => panic!("every ACL row is known or recovered"),
            }
        };
        self.daemons[daemon].judge(space, again, &mut truth)
    }

    /// The agent takes its oldest copy, shows it unless it has shown that post, and acks.
    fn surface(&mut self, who: usize, lose_ack: bool) -> bool {
        let member = &self.members[who];
        let copies = self.space.dlv.get_mut(member);
        let copy = copies.and_then(|copies| copies.iter_mut().find(|(_, acked)| !acked));
        let Some((seq, acked)) = copy else {
            return false;
        };
        let (seq, sure) = (*seq, !lose_ack);
        *acked = sure;
        let post = self.space.post_at(seq);
        let key = (post.sender.to_string(), post.id.clone());
        let seen = self.seen.entry(member.clone()).or_default();
        if post.id.is_empty() || seen.insert(key) {
            self.surfaced.entry(member.clone()).or_default().push(seq);
        }
        true
    }

    /// A newly started daemon processes the whole backlog.
    fn settle(&mut self) {
        self.wake_late();
        self.check_every_writer_has_cleaned_up();
        self.daemons[0].restart(&self.space);
        for member in &self.members {
            self.daemons[0].resume(&self.space, &self.channel, member);
        }
        while self.daemons[0].go_on(&mut self.space, 0, None) {}
        while self.plan_post(0, false) {
            self.daemons[0].write_plan(&mut self.space, None);
        }
        while self.judge(0, false) {
            self.daemons[0].perform(&mut self.space, false);
        }
        for who in 0..ACTORS.len() {
            while self.surface(who, false) {}
        }
    }

    /// Whoever wrote a row of a retired lifecycle has taken it back without the next start, unless
    /// it crashed.
    fn check_every_writer_has_cleaned_up(&self) {
        for (member, retiring) in self.members.iter().zip(&self.retiring) {
            if retiring.is_some() && !self.strays.contains(member) {
                let rows = self.space.rows_of(member);
                assert_eq!(rows, [], "{member:?} is retired and has rows that no inventory saw");
            }
        }
    }

    /// A row of a retired lifecycle was in the inventory, or its writer took it back (INV-3). One
    /// that a crash left half-written was removed when the next daemon saw it.
    fn check_no_row_is_left(&self) {
        for (member, retiring) in self.members.iter().zip(&self.retiring) {
            if retiring.is_some() {
                assert!(self.space.acls[member].retired, "the tombstone is final");
                let mut rows = self.space.rows_of(member);
                // A closed row gets no copies; one made earlier is removed together with it
                // (RDR-7).
                let open = |c: &Channel| {
                    self.space.read_member(c, member).membership.is_some_and(|r| r.is_open())
                };
                rows.retain(|channel| !self.strays.contains(member) || open(channel));
                assert_eq!(rows, [], "{member:?} is retired and has rows");
            }
        }
    }

    fn check(&self) {
        for member in &self.members {
            let shown = self.surfaced.get(member).map_or(&[][..], Vec::as_slice);
            for seq in shown {
                let place = (member.clone(), *seq);
                assert!(self.released.contains(&place), "{member:?} saw {seq} without a verdict");
                let post = self.space.post_at(*seq);
                assert_ne!(post.sender, member.principal, "a member got its own post");
                let times = shown.iter().filter(|other| *other == seq).count();
                assert!(times == 1 || post.id.is_empty(), "{seq} was surfaced {times} times");
            }
        }
    }

    fn check_nothing_lost(&self) {
        for interval in self.space.intervals.iter().filter(|interval| interval.activated) {
            for seq in 1..=self.space.last_seq() {
                let post = self.space.post_at(seq);
                let own = post.sender == interval.member.principal;
                if own || post.channel != interval.channel || !interval.holds(seq) {
                    continue;
                }
                let member = &interval.member;
                let shown = self.surfaced.get(member).is_some_and(|shown| shown.contains(&seq));
                let excused = self.excused.contains(&(member.clone(), seq));
                assert!(shown || excused, "{member:?} lost {seq} of {interval:?}");
            }
        }
    }
}

/// A daemon must list every row that exists at that moment.
fn inventory(daemon: &mut Daemon, space: &Space, member: &Lifecycle) -> Option<Vec<Channel>> {
    let listed = daemon.inventory(space, member)?;
    let rows = space.rows_of(member);
    assert!(rows.iter().all(|channel| listed.contains(channel)), "{rows:?} but {listed:?}");
    Some(listed)
}

/// On a live channel exactly the mentioned peers that may read it now get a copy, joined or not.
fn check_mentions(space: &Space, post: &Post, plan: &Plan) {
    let mentioned = |row: &AclRow| row.name.iter().any(|name| post.mentions.contains(name));
    let peers = space.acls.iter().filter(|(_, row)| mentioned(row) && row.allows(&post.channel));
    let want: Vec<_> = peers.map(|(m, _)| m).filter(|m| m.principal != post.sender).collect();
    let got: Vec<_> = plan.copies.iter().map(|copy| &copy.member).collect();
    assert_eq!(got, want);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn fan_1_rdr_1_rdr_10_mem_2_every_eligible_post_arrives_once_and_nothing_else_does(
        ops in ops()
    ) {
        let mut cluster = Cluster::new(br#"{"deliveryClass":"durable"}"#);
        for op in ops {
            cluster.run(op);
        }
        cluster.settle();
        cluster.check();
        cluster.check_nothing_lost();
        cluster.check_no_row_is_left();
    }

    #[test]
    fn inv_3_inv_4_no_row_of_a_retired_lifecycle_is_left_whoever_wakes_up_late(
        before in proptest::collection::vec(membership_op(), 0..30),
        among in proptest::collection::vec((membership_op(), 0_usize..2), 5..40),
        who in 0_usize..3,
    ) {
        let mut cluster = Cluster::new(br#"{"deliveryClass":"durable"}"#);
        for op in before {
            cluster.run(op);
        }
        for (op, daemon) in among {
            cluster.run(Op::Retire { daemon, who });
            cluster.run(op);
        }
        cluster.settle();
        cluster.check();
        cluster.check_nothing_lost();
        cluster.check_no_row_is_left();
    }

    #[test]
    fn mem_6_rdr_10_no_generation_begins_twice_and_nothing_is_released_past_a_leave(
        ops in proptest::collection::vec(one_member_op(), 40..160),
    ) {
        let mut cluster = Cluster::new(br#"{"deliveryClass":"durable"}"#);
        for op in ops {
            cluster.run(op);
        }
        cluster.settle();
        cluster.check();
        cluster.check_nothing_lost();
    }

    #[test]
    fn fan_2_rdr_11_mentions_on_a_live_channel_arrive_once_and_nothing_else_does(ops in ops()) {
        let mut cluster = Cluster::new(br#"{"deliveryClass":"live"}"#);
        for op in ops {
            cluster.run(op);
        }
        cluster.settle();
        cluster.check();
    }
}
