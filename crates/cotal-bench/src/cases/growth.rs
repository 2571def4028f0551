//! Cost per copy as the space grows around a channel of ten members.

use cotal_wire::Channel;

use super::{SHORT, product_round};
use crate::daemon::Daemon;
use crate::mesh::{Mesh, fresh_members};
use crate::report::{Case, Report};
use crate::setup::Setup;

/// Cost per copy may rise by 15 %.
const GOAL: f64 = 1.0 / 1.15;
/// Members of the channel.
const MEMBERS: usize = 10;
/// Posts a round.
const POSTS: usize = 900;
/// Members of each channel beside it.
const BESIDE: usize = 100;
/// Member rows in the space, by space.
const SIZES: [(&str, usize); 3] = [("rows100", 100), ("rows10k", 10_000), ("rows100k", 100_000)];

pub(crate) async fn run(setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
    let mesh = Mesh::start(&setup.broker, &SIZES.map(|(space, _)| space)).await?;
    let mut sides = Vec::new();
    for (space, rows) in SIZES {
        let ground = mesh.ground(space).await?;
        for n in 0..rows / BESIDE {
            let members = fresh_members(&format!("beside{n}"), BESIDE)?;
            ground.members(&Channel::parse(&format!("beside.c{n}"))?, &members).await?;
        }
        let daemon = Daemon::start(&setup.daemon, &mesh, space).await?;
        let raw = ground.raw()?;
        sides.push((ground, daemon, raw, Vec::new()));
    }
    for round in 0..=SHORT * setup.rounds {
        let channel = Channel::parse(&format!("bench.c{round}"))?;
        for (ground, _, raw, rates) in &mut sides {
            let members = fresh_members(&format!("m{round}"), MEMBERS)?;
            ground.acls(&members).await?;
            ground.members(&channel, &members).await?;
            ground.consumers(&members).await?;
            let got = product_round(ground, raw, &channel, &members, POSTS, round).await?;
            eprintln!("  growth {}, round {round}: {got:.0}/s", ground.space);
            if round > 0 {
                rates.push(1e6 / got);
            }
        }
    }
    let (smallest, larger) = sides.split_at(1);
    for ((_, _, _, costs), (_, rows)) in larger.iter().zip(&SIZES[1..]) {
        let name = format!("growth/{rows}");
        report.add(Case::cost(name, &smallest[0].3, costs, GOAL, "µs/copy"));
    }
    for (_, daemon, _, _) in sides {
        daemon.stop().await?;
    }
    mesh.stop().await
}
