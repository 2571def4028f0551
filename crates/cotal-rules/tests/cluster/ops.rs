//! The operations that a run is made of, and how they are chosen.

use proptest::prelude::*;

use crate::daemon::Fault;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Post {
        by: usize,
        id: u8,
        mention: Option<usize>,
    },
    Join {
        daemon: usize,
        who: usize,
    },
    GoOn {
        daemon: usize,
        nth: usize,
        fault: Option<Fault>,
    },
    Arrive {
        daemon: usize,
    },
    Gate {
        daemon: usize,
        closed: bool,
    },
    Leave {
        daemon: usize,
        who: usize,
    },
    Narrow {
        who: usize,
        to: usize,
    },
    Inventory {
        daemon: usize,
        who: usize,
    },
    Retire {
        daemon: usize,
        who: usize,
    },
    RetireAtOnce {
        who: usize,
    },
    GarbleMember {
        who: usize,
    },
    GarbleAcl {
        who: usize,
    },
    PlanPost {
        daemon: usize,
        again: bool,
    },
    WritePlan {
        daemon: usize,
        some: Option<usize>,
    },
    Judge {
        daemon: usize,
        again: bool,
    },
    Perform {
        daemon: usize,
        lose_ack: bool,
    },
    /// A post, and everything before it, is delivered.
    Flow,
    /// CHAT loses its newest posts, as when an older copy of it is restored; the buckets keep
    /// theirs.
    FallBack {
        by: usize,
    },
    Crash {
        daemon: usize,
    },
    Surface {
        who: usize,
        lose_ack: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (daemon, who) = (0_usize..2, 0_usize..3);
    prop_oneof![
        8 => (who.clone(), 0_u8..4, proptest::option::of(who.clone()))
            .prop_map(|(by, id, mention)| Op::Post { by, id, mention }),
        4 => (daemon.clone(), who.clone()).prop_map(|(daemon, who)| Op::Join { daemon, who }),
        20 => go_on(),
        1 => daemon.clone().prop_map(|daemon| Op::Arrive { daemon }),
        1 => (daemon.clone(), any::<bool>())
            .prop_map(|(daemon, closed)| Op::Gate { daemon, closed }),
        2 => (daemon.clone(), who.clone()).prop_map(|(daemon, who)| Op::Leave { daemon, who }),
        1 => (who.clone(), 0_usize..3).prop_map(|(who, to)| Op::Narrow { who, to }),
        1 => (daemon.clone(), who.clone()).prop_map(|(daemon, who)| Op::Inventory { daemon, who }),
        1 => who.clone().prop_map(|who| Op::GarbleMember { who }),
        1 => who.clone().prop_map(|who| Op::GarbleAcl { who }),
        8 => (daemon.clone(), prop::bool::weighted(0.2))
            .prop_map(|(daemon, again)| Op::PlanPost { daemon, again }),
        6 => (daemon.clone(), proptest::option::weighted(0.2, 0_usize..3))
            .prop_map(|(daemon, some)| Op::WritePlan { daemon, some }),
        6 => (daemon.clone(), prop::bool::weighted(0.2))
            .prop_map(|(daemon, again)| Op::Judge { daemon, again }),
        5 => (daemon.clone(), prop::bool::weighted(0.2))
            .prop_map(|(daemon, lose_ack)| Op::Perform { daemon, lose_ack }),
        1 => daemon.prop_map(|daemon| Op::Crash { daemon }),
        1 => (1_usize..6).prop_map(|by| Op::FallBack { by }),
        4 => (who, prop::bool::weighted(0.3))
            .prop_map(|(who, lose_ack)| Op::Surface { who, lose_ack }),
    ]
}

/// A step of a change in progress; the broker leaves one in five without an answer.
fn go_on() -> impl Strategy<Value = Op> {
    let fault = prop_oneof![Just(Fault::LostRequest), Just(Fault::LostAnswer), Just(Fault::Late)];
    (0_usize..2, 0_usize..3, proptest::option::weighted(0.2, fault))
        .prop_map(|(daemon, nth, fault)| Op::GoOn { daemon, nth, fault })
}

/// Mostly changes of memberships, and what races with them.
pub(crate) fn membership_op() -> impl Strategy<Value = Op> {
    let (daemon, who) = (0_usize..2, 0_usize..3);
    prop_oneof![
        6 => (daemon.clone(), who.clone()).prop_map(|(daemon, who)| Op::Join { daemon, who }),
        2 => (daemon.clone(), who.clone()).prop_map(|(daemon, who)| Op::Leave { daemon, who }),
        20 => go_on(),
        1 => daemon.clone().prop_map(|daemon| Op::Arrive { daemon }),
        1 => (daemon.clone(), any::<bool>())
            .prop_map(|(daemon, closed)| Op::Gate { daemon, closed }),
        1 => (daemon.clone(), who.clone()).prop_map(|(daemon, who)| Op::Inventory { daemon, who }),
        1 => (who.clone(), 0_usize..3).prop_map(|(who, to)| Op::Narrow { who, to }),
        1 => (who.clone()).prop_map(|by| Op::Post { by, id: 1, mention: None }),
        1 => who.prop_map(|who| Op::GarbleMember { who }),
        1 => daemon.prop_map(|daemon| Op::Crash { daemon }),
    ]
}

/// One member that joins and leaves repeatedly, while posts are judged and its ACL changes.
pub(crate) fn one_member_op() -> impl Strategy<Value = Op> {
    let daemon = prop::bool::weighted(0.1).prop_map(usize::from);
    let narrow = (1_usize..2, prop_oneof![3 => Just(0_usize), 1 => Just(2_usize)]);
    let fault = prop_oneof![Just(Fault::LostRequest), Just(Fault::LostAnswer), Just(Fault::Late)];
    prop_oneof![
        4 => daemon.clone().prop_map(|daemon| Op::Join { daemon, who: 1 }),
        4 => daemon.clone().prop_map(|daemon| Op::Leave { daemon, who: 1 }),
        30 => (daemon.clone(), 0_usize..3, proptest::option::weighted(0.1, fault))
            .prop_map(|(daemon, nth, fault)| Op::GoOn { daemon, nth, fault }),
        3 => narrow.prop_map(|(who, to)| Op::Narrow { who, to }),
        1 => daemon.prop_map(|daemon| Op::Arrive { daemon }),
        8 => Just(Op::Flow),
        1 => (1_usize..6).prop_map(|by| Op::FallBack { by }),
    ]
}

/// Most runs retire nobody. Some retire one lifecycle half-way: at once, as when another root does
/// it, or step by step among everything else.
pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let step = (op(), prop::bool::weighted(0.2), 0_usize..2);
    (
        proptest::collection::vec(op(), 0..70),
        proptest::option::weighted(0.5, (0_usize..3, prop::bool::weighted(0.8))),
        proptest::collection::vec(step, 0..90),
    )
        .prop_map(|(mut ops, ended, rest)| {
            if let Some((who, false)) = ended {
                ops.push(Op::RetireAtOnce { who });
            }
            for (op, retires, daemon) in rest {
                if let (Some((who, true)), true) = (ended, retires) {
                    ops.push(Op::Retire { daemon, who });
                }
                ops.push(op);
            }
            ops
        })
}
