//! How soon a daemon serves a large space, and what it weighs.

use std::time::Duration;

use cotal_wire::{Channel, Lifecycle};

use crate::daemon::Daemon;
use crate::mesh::{Mesh, fresh_members};
use crate::report::{Case, Report};
use crate::setup::Setup;

/// Members of the space, and on how many channels each is.
const MEMBERS: usize = 10_000;
const CHANNELS_EACH: usize = 10;
/// Members of a channel.
const IN_CHANNEL: usize = 100;
/// Seconds until it serves.
const READY_WITHIN: f64 = 2.0;
/// MiB at most, at any moment until it serves.
const LOADED: f64 = 120.0;
/// MiB when idle on an empty space.
const IDLE: f64 = 20.0;

const LARGE: &str = "large";
const EMPTY: &str = "empty";

pub(crate) async fn run(setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
    let mesh = Mesh::start(&setup.broker, &[LARGE, EMPTY]).await?;
    let ground = mesh.ground(LARGE).await?;
    let members = fresh_members("m", MEMBERS)?;
    ground.acls(&members).await?;
    let mut channel = 0;
    for _ in 0..CHANNELS_EACH {
        for group in members.chunks(IN_CHANNEL) {
            channel += 1;
            join(&ground, channel, group).await?;
        }
    }
    let (mut times, mut loaded, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..setup.rounds {
        let daemon = Daemon::start(&setup.daemon, &mesh, LARGE).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        times.push(daemon.took.as_secs_f64());
        loaded.push(daemon.memory("VmHWM")?);
        let rss = daemon.memory("VmRSS")?;
        daemon.stop().await?;
        let daemon = Daemon::start(&setup.daemon, &mesh, EMPTY).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        idle.push(daemon.memory("VmRSS")?);
        daemon.stop().await?;
        eprintln!(
            "  start round {round}: {:.2} s, {:.1} MiB at most, {rss:.1} MiB then, {:.1} MiB empty",
            times[round], loaded[round], idle[round]
        );
    }
    let goal = |bound: f64| vec![bound; setup.rounds];
    report.add(Case::cost("start/ready", &goal(READY_WITHIN), &times, 1.0, "s"));
    report.add(Case::cost("start/peak", &goal(LOADED), &loaded, 1.0, "MiB"));
    report.add(Case::cost("start/idle", &goal(IDLE), &idle, 1.0, "MiB"));
    mesh.stop().await
}

async fn join(
    ground: &crate::mesh::Ground,
    channel: usize,
    members: &[Lifecycle],
) -> anyhow::Result<()> {
    ground.members(&Channel::parse(&format!("team.c{channel}"))?, members).await
}
