//! Posts to a durable channel until every copy stands in DLV.

use cotal_wire::Channel;

use super::{SHORT, limit_round, product_round};
use crate::daemon::Daemon;
use crate::mesh::{Ground, Mesh, fresh_members};
use crate::report::{Case, Report};
use crate::setup::Setup;

/// The ratio that is demanded.
const GOAL: f64 = 0.7;
/// Members, and posts a round: enough copies for about a second, and never more posts than a
/// subject of CHAT keeps.
const SIZES: [(usize, usize); 3] = [(10, 900), (100, 300), (1_000, 40)];

const LIMIT: &str = "limit";
const PRODUCT: &str = "product";

pub(crate) async fn run(setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
    let mesh = Mesh::start(&setup.broker, &[LIMIT, PRODUCT]).await?;
    let daemon = Daemon::start(&setup.daemon, &mesh, PRODUCT).await?;
    let (mut limit, mut product) = (mesh.ground(LIMIT).await?, mesh.ground(PRODUCT).await?);
    (limit.trace, product.trace) = (setup.trace, setup.trace);
    let mut pair = (limit.raw_as_daemon()?, limit.raw_as_daemon()?);
    let mut poster = product.raw()?;
    let mut round = 0;
    let wanted =
        |size: &(usize, usize)| setup.members.is_empty() || setup.members.contains(&size.0);
    for (members, posts) in SIZES.into_iter().filter(wanted) {
        let (mut limits, mut products) = (Vec::new(), Vec::new());
        // The first round warms both up and is not counted.
        for counted in 0..=SHORT * setup.rounds {
            round += 1;
            let channel = Channel::parse(&format!("bench.c{round}"))?;
            let members = fresh_members(&format!("m{round}"), members)?;
            ready(&limit, &channel, &members).await?;
            let copies = (posts * members.len()) as f64;
            let per_copy = |from: f64, to: f64| (to - from) * 1e6 / copies;
            let broker = mesh.broker_cpu()?;
            let reached = limit_round(&limit, &mut pair, &channel, &members, posts, round).await?;
            let limit_cpu = per_copy(broker, mesh.broker_cpu()?);
            limit.drop_consumers(&members).await?;
            ready(&product, &channel, &members).await?;
            let (cpu, broker) = (daemon.cpu()?, mesh.broker_cpu()?);
            let got =
                product_round(&product, &mut poster, &channel, &members, posts, round).await?;
            let cpu = per_copy(cpu, daemon.cpu()?);
            let product_cpu = per_copy(broker, mesh.broker_cpu()?);
            product.drop_consumers(&members).await?;
            eprintln!(
                "  fanout {} members, round {counted}: limit {reached:.0}/s, product {got:.0}/s; µs of \
                 CPU a copy: broker {limit_cpu:.1} and {product_cpu:.1}, daemon {cpu:.1}",
                members.len()
            );
            if counted > 0 {
                limits.push(reached);
                products.push(got);
            }
        }
        let name = format!("fanout/{members}");
        report.add(Case::rate(name, &limits, &products, GOAL, "copies/s"));
    }
    daemon.stop().await?;
    mesh.stop().await
}

/// Both sides get the same rows and consumers, so that the broker carries the same on both.
async fn ready(
    ground: &Ground,
    channel: &Channel,
    members: &[cotal_wire::Lifecycle],
) -> anyhow::Result<()> {
    ground.acls(members).await?;
    ground.members(channel, members).await?;
    ground.consumers(members).await
}
