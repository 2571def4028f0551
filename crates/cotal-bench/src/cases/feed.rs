//! What the daemon spends on showing who reads what: a thousand agents, ten changes a second.

use std::time::{Duration, Instant};

use anyhow::bail;
use cotal_nats::{Bucket as Kv, Connection, Subscription};
use cotal_wire::names::{Bucket, FEED_KEY};
use cotal_wire::{ChannelPattern, Lifecycle};
use futures_util::{StreamExt as _, TryStreamExt as _};

use crate::daemon::Daemon;
use crate::mesh::{Ground, Mesh, fresh_members};
use crate::report::{Case, Report};
use crate::setup::Setup;

/// Connected agents.
const AGENTS: usize = 1_000;
/// Between two of them that leave or come.
const CHANGE_EVERY: Duration = Duration::from_millis(100);
/// Percent of a core, of the whole daemon.
const GOAL: f64 = 5.0;
/// Agents that connect at once.
const CONNECT_AT_ONCE: usize = 16;
/// Within this the daemon shows everybody; only then it is measured.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

const SPACE: &str = "feed";

/// An agent with its live subscriptions.
struct Agent {
    who: Lifecycle,
    online: Option<(Connection, Vec<Subscription>)>,
}

pub(crate) async fn run(setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
    let mesh = Mesh::start(&setup.broker, &[SPACE]).await?;
    let ground = mesh.ground(SPACE).await?;
    let members = fresh_members("m", AGENTS)?;
    ground.acls(&members).await?;
    let daemon = Daemon::start(&setup.daemon, &mesh, SPACE).await?;
    let connecting = futures_util::stream::iter(members).map(|who| connected(&ground, who));
    let connecting = connecting.buffer_unordered(CONNECT_AT_ONCE);
    let mut agents: Vec<Agent> = connecting.try_collect().await?;
    everybody_is_shown(&ground).await?;
    let window = Duration::from_secs(if setup.quick { 15 } else { 30 });
    let mut spent = Vec::new();
    for round in 0..setup.rounds {
        let (cpu, begin) = (daemon.cpu()?, Instant::now());
        let changes = change(&ground, &mut agents, window).await? as f64;
        let seconds = begin.elapsed().as_secs_f64();
        let percent = (daemon.cpu()? - cpu) / seconds * 100.0;
        let rate = changes / seconds;
        eprintln!("  feed round {round}: {percent:.2} % of a core at {rate:.1} changes a second");
        spent.push(percent);
    }
    report.add(Case::cost("feed/cpu", &vec![GOAL; setup.rounds], &spent, 1.0, "% core"));
    daemon.stop().await?;
    mesh.stop().await
}

async fn connected(ground: &Ground, who: Lifecycle) -> anyhow::Result<Agent> {
    let mut agent = Agent { who, online: None };
    agent.come(ground).await?;
    Ok(agent)
}

/// Waits until the feed has a row of each agent, with what it reads.
async fn everybody_is_shown(ground: &Ground) -> anyhow::Result<()> {
    let feed = Kv::new(&ground.connection, &ground.space.bucket(Bucket::Membership));
    let begin = Instant::now();
    loop {
        let rows = feed.keys().await?.iter().filter(|key| *key != FEED_KEY).count();
        if rows >= AGENTS {
            return Ok(());
        }
        if begin.elapsed() > SHOWN_WITHIN {
            bail!("the feed shows {rows} of {AGENTS} agents after {SHOWN_WITHIN:?}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// One agent leaves and another one comes, over and over; tells how many did.
async fn change(ground: &Ground, agents: &mut [Agent], window: Duration) -> anyhow::Result<usize> {
    let end = Instant::now() + window;
    let mut tick = tokio::time::interval(CHANGE_EVERY);
    let mut changes = 0;
    loop {
        tick.tick().await;
        if Instant::now() >= end {
            return Ok(changes);
        }
        let at = changes / 2 % agents.len();
        match agents[at].online.take() {
            Some((connection, _)) => connection.close(Duration::from_secs(1)).await,
            None => agents[at].come(ground).await?,
        }
        changes += 1;
    }
}

impl Agent {
    async fn come(&mut self, ground: &Ground) -> anyhow::Result<()> {
        let reads = ["team.backend", "team.ops.>", "ops"].map(ChannelPattern::parse);
        let reads = reads.into_iter().collect::<Result<Vec<_>, _>>()?;
        let connection = ground.agent(&self.who, &reads).await?;
        let mut subscriptions = Vec::new();
        for pattern in &reads {
            let subject = ground.space.chat_channel(pattern);
            subscriptions.push(connection.subscribe(subject, None).await?);
        }
        self.online = Some((connection, subscriptions));
        Ok(())
    }
}
