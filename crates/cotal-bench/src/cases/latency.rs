//! From a post until a member has it, at a gentle rate.
//!
//! The limit is one JetStream publish that is consumed twice over: publish, pull, publish, pull.

use std::time::Duration;

use anyhow::Context as _;
use cotal_nats::{Connection, PullConsumer, PullOptions};
use cotal_wire::{Channel, Lifecycle, Principal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{POST, POSTER, post_id};
use crate::daemon::Daemon;
use crate::mesh::{Ground, Mesh, fresh_members, post_body, unix_nanos};
use crate::report::{Case, Report, quantile};
use crate::setup::Setup;

/// Members of the channel.
const MEMBERS: usize = 10;
/// Between two posts: 20 a second.
const EVERY: Duration = Duration::from_millis(50);
/// Nothing that is waited for takes longer.
const DELIVERED_WITHIN: Duration = Duration::from_secs(30);
/// The median may be this much over the limit, for ten copies instead of one and the decisions.
const GOAL: f64 = 0.25;
/// The hundredth worst of a few hundred on a shared machine moves by half from run to run, so its
/// own bound is wider.
const TAIL_GOAL: f64 = 0.15;

const LIMIT: &str = "limit";
const PRODUCT: &str = "product";

pub(crate) async fn run(setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
    let mesh = Mesh::start(&setup.broker, &[LIMIT, PRODUCT]).await?;
    let daemon = Daemon::start(&setup.daemon, &mesh, PRODUCT).await?;
    let (limit, product) = (mesh.ground(LIMIT).await?, mesh.ground(PRODUCT).await?);
    let posts = if setup.quick { 40 } else { 100 };
    let mut of_limit = (Vec::new(), Vec::new());
    let mut of_product = (Vec::new(), Vec::new());
    for round in 0..=setup.rounds {
        let limits = twice_over(&limit, round, posts).await?;
        let products = surfaced(&product, round, posts).await?;
        let told = |values: &[f64]| (quantile(values, 0.5), quantile(values, 0.99));
        let (l, p) = (told(&limits), told(&products));
        eprintln!(
            "  latency round {round}: limit p50 {:.2} p99 {:.2} ms, product p50 {:.2} p99 {:.2} ms",
            l.0, l.1, p.0, p.1
        );
        if round > 0 {
            of_limit.0.push(l.0);
            of_limit.1.push(l.1);
            of_product.0.push(p.0);
            of_product.1.push(p.1);
        }
    }
    report.add(Case::cost("latency/p50", &of_limit.0, &of_product.0, GOAL, "ms"));
    report.add(Case::cost("latency/p99", &of_limit.1, &of_product.1, TAIL_GOAL, "ms"));
    daemon.stop().await?;
    mesh.stop().await
}

async fn open(ground: &Ground, stream: &str, consumer: &str) -> anyhow::Result<PullConsumer> {
    let options = PullOptions { batch: 100, ..PullOptions::default() };
    Ok(PullConsumer::open(&ground.connection, stream, consumer, options).await?)
}

/// Publishes, pulls, publishes on, pulls: in milliseconds each.
async fn twice_over(ground: &Ground, round: usize, posts: usize) -> anyhow::Result<Vec<f64>> {
    let member = fresh_members(&format!("l{round}"), 1)?.remove(0);
    ground.consumers(std::slice::from_ref(&member)).await?;
    let space = &ground.space;
    let mut first = open(ground, &space.inbox_stream(), cotal_wire::names::READER).await?;
    let mut second = open(ground, &space.dlv_stream(), &space.dlv_consumer(&member)).await?;
    let (inbox, dlv) = (space.dinbox(&member), space.dlv(&member));
    let relay = ground.connection.clone();
    let mut took = Vec::with_capacity(posts);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let body = vec![b'x'; POST];
    for n in 0..posts {
        ticks.tick().await;
        let id = post_id(round, n);
        let begin = unix_nanos();
        let stored = confirmed(&ground.connection, &inbox, body.clone(), format!("{id}:inbox"));
        let handed = async {
            let entry =
                first.next_batch(1, DELIVERED_WITHIN).await?.pop().context("no entry came")?;
            confirmed(&relay, &dlv, entry.payload.to_vec(), format!("{id}:dlv")).await?;
            entry.ack().await?;
            anyhow::Ok(())
        };
        let surfaced = async {
            let copy =
                second.next_batch(1, DELIVERED_WITHIN).await?.pop().context("no copy came")?;
            let at = unix_nanos();
            copy.ack().await?;
            anyhow::Ok(at)
        };
        let ((), (), at) = tokio::try_join!(stored, handed, surfaced)?;
        took.push(millis(begin, at));
    }
    first.close().await;
    second.close().await;
    Ok(took)
}

async fn confirmed(
    connection: &Connection,
    subject: &str,
    body: Vec<u8>,
    id: String,
) -> anyhow::Result<()> {
    connection.publish_confirmed(subject.to_owned(), None, body.into(), Some(&id)).await?;
    Ok(())
}

/// Posts, and waits until all members have each post: in milliseconds each.
async fn surfaced(ground: &Ground, round: usize, posts: usize) -> anyhow::Result<Vec<f64>> {
    let channel = Channel::parse(&format!("bench.l{round}"))?;
    let members = fresh_members(&format!("l{round}"), MEMBERS)?;
    ground.acls(&members).await?;
    ground.members(&channel, &members).await?;
    ground.consumers(&members).await?;
    let (tell, mut told) = mpsc::channel(MEMBERS * posts);
    let mut pulls = JoinSet::new();
    for member in &members {
        let space = &ground.space;
        let pull = open(ground, &space.dlv_stream(), &space.dlv_consumer(member)).await?;
        pulls.spawn(receive(pull, posts, tell.clone()));
    }
    ground.connection.round_trip().await?;
    let subject = ground.space.chat(&Principal::parse(POSTER)?, &channel);
    let mut begun = Vec::with_capacity(posts);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for n in 0..posts {
        ticks.tick().await;
        let id = post_id(round, n);
        let body = post_body(&ground.space, POSTER, &channel, &id, POST);
        begun.push(unix_nanos());
        ground.connection.publish_confirmed(subject.clone(), None, body.into(), Some(&id)).await?;
    }
    let mut took = Vec::with_capacity(MEMBERS * posts);
    while took.len() < MEMBERS * posts {
        let (n, at): (usize, u128) =
            timeout(DELIVERED_WITHIN, told.recv()).await?.context("a member stopped reading")?;
        took.push(millis(begun[n], at));
    }
    while let Some(ended) = pulls.join_next().await {
        ended??;
    }
    forget(ground, &members).await?;
    Ok(took)
}

async fn forget(ground: &Ground, members: &[Lifecycle]) -> anyhow::Result<()> {
    ground.drop_consumers(members).await
}

/// Tells when each copy came: a member's copies come in the order of the posts.
async fn receive(
    mut pull: PullConsumer,
    posts: usize,
    tell: mpsc::Sender<(usize, u128)>,
) -> anyhow::Result<()> {
    let mut seen = 0;
    while seen < posts {
        let batch = pull.next_batch(posts, DELIVERED_WITHIN).await?;
        let at = unix_nanos();
        anyhow::ensure!(!batch.is_empty(), "only {seen} of {posts} posts came");
        for copy in batch {
            tell.send((seen, at)).await?;
            seen += 1;
            copy.ack().await?;
        }
    }
    pull.close().await;
    Ok(())
}

fn millis(begin: u128, end: u128) -> f64 {
    end.saturating_sub(begin) as f64 / 1e6
}
