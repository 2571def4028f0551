//! Asks everything that `status` shows; what does not answer is noted and skipped.

use cotal_manager::launch::{running_broker, running_daemon, running_manager};
use cotal_manager::rows::AclRows;
use cotal_manager::{
    Authority, BrokerAddress, Gate, Liveness, Office, Rail, stalled, unfinished_agents,
};
use cotal_nats::{Bucket, Connection, NatsError};
use cotal_wire::Space;
use cotal_wire::accounts::Topology;
use cotal_wire::anycast::ListedRequests;
use cotal_wire::control::{DeliveryStatus, op};
use cotal_wire::names::{self, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use cotal_workspace::{HostFile, MeshFile, Mode, Root};
use serde_json::json;

use super::report::{BrokerStatus, Lease, SpaceStatus, Status, StreamStatus};
use crate::commands::doctor::{Certificate, Disk, Listener};
use crate::context::tls_of;
use crate::output::told;

/// Collects the status of a root.
pub(super) async fn status(root: &Root, mesh: &MeshFile) -> anyhow::Result<Status> {
    let pid = running_broker(root)?.map(|broker| broker.pid());
    let listener = Listener::of(root, mesh).await?;
    let error = listener.problem().map(str::to_owned);
    let version = match listener {
        Listener::Own(version) => Some(version),
        _ => None,
    };
    let answers = version.is_some();
    let mut spaces = Vec::new();
    for space in &mesh.spaces {
        spaces.push(space_status(root, mesh, space, answers).await?);
    }
    Ok(Status {
        root: root.dir().to_owned(),
        mode: mesh.mode,
        durability: mesh.durability,
        disk: Disk::of(root),
        certificate: Certificate::of(root, mesh),
        broker: BrokerStatus { server: mesh.server.clone(), pid, version, error },
        spaces,
        host: HostFile::load(root)?.flatten(),
    })
}

async fn space_status(
    root: &Root,
    mesh: &MeshFile,
    space: &Space,
    broker_answers: bool,
) -> anyhow::Result<SpaceStatus> {
    let mut status = SpaceStatus {
        space: space.clone(),
        delivery: (mesh.mode == Mode::Auth).then_some("unknown"),
        pid: running_daemon(root, space)?.map(|daemon| daemon.pid()),
        manager: running_manager(root, space)?.map(|manager| manager.pid()),
        isolated: is_isolated(root, mesh, space),
        gate: Gate::of(root, space).frozen()?.map(|frozen| frozen.reason),
        lease: None,
        agents: None,
        streams: None,
        counters: None,
        requests: None,
        errors: Vec::new(),
    };
    if broker_answers && mesh.mode == Mode::Auth {
        let asked = ask(root, mesh, &mut status).await;
        if let Err(error) = asked {
            status.errors.push(told(&error));
        }
    }
    Ok(status)
}

fn is_isolated(root: &Root, mesh: &MeshFile, space: &Space) -> Option<bool> {
    let authority =
        (mesh.mode == Mode::Auth).then(|| Authority::open(root, space).ok()).flatten()?;
    let account = authority.account();
    Some(account.topology() == Topology::Three && !account.is_moving())
}

async fn ask(root: &Root, mesh: &MeshFile, status: &mut SpaceStatus) -> anyhow::Result<()> {
    let space = status.space.clone();
    let authority = Authority::open(root, &space)?;
    for agent in unfinished_agents(&authority)? {
        status.errors.push(format!("{}: {}", agent.agent, agent.what));
    }
    let address = BrokerAddress { url: mesh.server.clone(), tls: tls_of(mesh) };
    let (own, connection) = authority.connect(Office::Operator, &address).await?;
    let rail = Rail::new(&connection, &space, &own);
    let probed = match status.pid {
        Some(pid) => rail.probe_process(pid).await,
        None => rail.probe().await,
    };
    status.delivery = Some(match probed {
        Liveness::Bound => "bound",
        Liveness::Elsewhere(holder) => {
            status.errors.push(format!(
                "delivery daemon {} runs on this root and does not serve: another one does, and holds \
                 the lease as {holder}",
                status.pid.unwrap_or_default()
            ));
            "bound"
        }
        Liveness::Unbound | Liveness::Quiet => "unbound",
        Liveness::Unknown(why) | Liveness::Denied(why) => {
            status.errors.push(why);
            "unknown"
        }
    });
    let is_served = status.delivery == Some("bound");
    status.errors.extend(stalled(&connection, &space, is_served).await?);
    status.lease = Some(lease(&connection, &space).await?);
    status.agents = Some(AclRows::read(&connection, &space).await?.live().count());
    status.streams = Some(streams(&connection, &space).await?);
    if status.delivery == Some("bound") {
        let (own, connection) = authority.connect(Office::Supervisor, &address).await?;
        let rail = Rail::new(&connection, &space, &own);
        let counters = rail.admin(op::DELIVERY_STATUS, json!({})).await?;
        status.counters = Some(serde_json::from_value::<DeliveryStatus>(counters)?);
        let requests = rail.admin(op::STANDING_REQUESTS, json!({})).await?;
        let requests = serde_json::from_value::<ListedRequests>(requests)?;
        status.requests = Some(requests.requests);
    }
    Ok(())
}

async fn lease(connection: &Connection, space: &Space) -> anyhow::Result<Option<Lease>> {
    let bucket = Bucket::new(connection, &space.bucket(names::Bucket::Delivery));
    let Some(entry) = bucket.get(LEASE_KEY).await? else {
        return Ok(None);
    };
    let Some(value) = entry.live() else {
        return Ok(None);
    };
    let row = LeaseRow::parse(value)?;
    Ok(Some(Lease { holder: row.holder.to_string(), since: row.since, ready: row.ready }))
}

async fn streams(connection: &Connection, space: &Space) -> Result<Vec<StreamStatus>, NatsError> {
    let mut streams = Vec::new();
    for config in space.stream_configs(0, false) {
        let state = connection.stream_state(&config.name).await?;
        streams.push(StreamStatus {
            name: config.name,
            messages: state.messages,
            bytes: state.bytes,
            last_seq: state.last_seq,
            consumers: state.consumer_count,
        });
    }
    Ok(streams)
}
