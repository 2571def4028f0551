//! What a space has lost since it was created: streams, buckets and consumers.
//!
//! A store that is missing is made again by `up`, empty. Whatever it held is gone for good by
//! then, and looks as if it had never been; so it is looked for, and told, before anything is made.

use std::collections::BTreeSet;

use cotal_nats::{Connection, NatsError};
use cotal_wire::accounts::Topology;
use cotal_wire::names::Bucket;
use cotal_wire::rows::AclRow;
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Lifecycle, Principal, Space};
use cotal_workspace::{FileStore, SecretKey, SecretKind, SecretStore as _, Segment};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::Agents;
use crate::authority::{Authority, BrokerAddress, Office};
use crate::error::{Doing, ManagerError};
use crate::provision::ensure_consumer;

/// Questions under way at once: a space may have thousands of agents, and the broker others to
/// serve.
const ASKED_AT_ONCE: usize = 64;
const CLOSE: std::time::Duration = std::time::Duration::from_secs(2);

/// A consumer of an agent that is not there.
#[derive(Debug, Clone, PartialEq)]
pub struct LostConsumer {
    /// Whose.
    pub agent: Principal,
    /// On which stream.
    pub stream: String,
    config: ConsumerConfig,
}

/// What is gone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Losses {
    /// Streams and buckets by name, with what that means.
    pub stores: Vec<(String, &'static str)>,
    /// Consumers of live agents.
    pub consumers: Vec<LostConsumer>,
}

/// Looks for what a space has lost; nothing, where it was never completely created.
///
/// # Errors
/// When the broker cannot be asked.
pub async fn find_losses(
    authority: &Authority,
    broker: &BrokerAddress,
) -> Result<Losses, ManagerError> {
    if !was_created(authority)? {
        return Ok(Losses::default());
    }
    let space = authority.space();
    let connection = authority.connect_told(Office::Operator, broker).await?;
    let topology = authority.account().topology();
    let stores = lost_stores(&connection, space, topology).await;
    connection.close(CLOSE).await;
    let stores = stores?;
    let is_lost = |name: &str| stores.iter().any(|(lost, _)| lost == name);
    let consumers = if is_lost(&space.kv_stream(Bucket::Acl)) {
        Vec::new()
    } else {
        let agents = Agents::connect(authority.root(), space, broker).await?;
        let consumers = agents.lost_consumers().await;
        agents.connection.close(CLOSE).await;
        consumers?
    };
    Ok(Losses { stores, consumers })
}

/// The daemon's credential is minted once all else of a space stands; while it is taken away its
/// key is kept.
fn was_created(authority: &Authority) -> Result<bool, ManagerError> {
    let (root, space) = (authority.root(), authority.space());
    let key = SecretKey::new(space, SecretKind::Delivery);
    let minted = FileStore::new(root.clone()).get(&key)?.is_some();
    Ok(minted || root.delivery_seed(&Segment::from(space)).exists())
}

async fn lost_stores(
    connection: &Connection,
    space: &Space,
    topology: Topology,
) -> Result<Vec<(String, &'static str)>, ManagerError> {
    let streams = space.stream_configs(0, false).into_iter().map(|config| config.name);
    // Presence lives in the account that agents may destroy; nothing of it is lost for good.
    let is_here = |bucket: &Bucket| *bucket != Bucket::Presence || topology == Topology::One;
    let buckets = Bucket::ALL.into_iter().filter(is_here).map(|bucket| space.kv_stream(bucket));
    let mut lost = Vec::new();
    for name in streams.chain(buckets) {
        match connection.stream_info(&name).await {
            Ok(_) => {}
            Err(NatsError::Absent { .. }) => {
                let meaning = meaning(space, &name);
                lost.push((name, meaning));
            }
            Err(error) => return Err(error).doing(|| format!("look at the stream {name}")),
        }
    }
    Ok(lost)
}

/// What is gone for good with a store.
fn meaning(space: &Space, name: &str) -> &'static str {
    let known = [
        (space.chat_stream(), "the history of its channels, and posts that were not yet delivered"),
        (space.dm_stream(), "direct messages, those that nobody had read included"),
        (space.task_stream(), "role requests that were not finished"),
        (space.inbox_stream(), "copies of posts on their way to members"),
        (space.dlv_stream(), "posts that members had not read"),
        (space.kv_stream(Bucket::Acl), "who may read what: retire and add every agent again"),
        (space.kv_stream(Bucket::Members), "durable memberships: everybody has to join again"),
        (space.kv_stream(Bucket::Channels), "the configuration of channels"),
        (space.kv_stream(Bucket::Dead), "entries that were parked or given up"),
    ];
    let known = known.into_iter().find(|(store, _)| store == name);
    known.map_or("what it recorded", |(_, meaning)| meaning)
}

impl Agents {
    /// The consumers that live agents should have and have not.
    async fn lost_consumers(&self) -> Result<Vec<LostConsumer>, ManagerError> {
        let rows = self.rows().await?;
        let mut wanted = Vec::new();
        let dm_last = self.connection.stream_info(&self.space().dm_stream()).await;
        let dm_last = dm_last.map_or(0, |info| info.state.last_seq);
        let mut roles = BTreeSet::new();
        for (lifecycle, row) in rows.live() {
            wanted.extend(self.consumers_of(lifecycle, row, dm_last));
            let creds = self.creds_of(lifecycle).ok().flatten();
            let role = creds.and_then(|creds| creds.claims.role());
            if let Some(role) = role.filter(|role| roles.insert(role.clone())) {
                wanted.push(LostConsumer {
                    agent: lifecycle.principal.clone(),
                    stream: self.space().task_stream(),
                    config: self.space().svc_config(&role),
                });
            }
        }
        let asked = stream::iter(wanted).map(async |one| {
            match self.connection.consumer_info(&one.stream, &one.config.name).await {
                Ok(_) => Ok(None),
                Err(NatsError::Absent { .. }) => Ok(Some(one)),
                Err(error) => Err(error)
                    .doing(|| format!("look at the consumer of {} on {}", one.agent, one.stream)),
            }
        });
        let lost: Vec<Option<LostConsumer>> = asked.buffered(ASKED_AT_ONCE).try_collect().await?;
        Ok(lost.into_iter().flatten().collect())
    }

    fn consumers_of(&self, lifecycle: &Lifecycle, row: &AclRow, dm_last: u64) -> [LostConsumer; 2] {
        let space = self.space();
        let of =
            |stream, config| LostConsumer { agent: lifecycle.principal.clone(), stream, config };
        // The numbers of a stream that was made anew begin again, below where the agent began.
        let began = row.activated.as_ref().map_or(0, |frontier| frontier.dm).min(dm_last);
        [
            of(space.dlv_stream(), space.dlv_config(lifecycle)),
            of(space.dm_stream(), space.dm_config(lifecycle, began)),
        ]
    }
}

/// Makes the consumers again that live agents have lost, on the streams as they stand now; tells
/// which.
///
/// # Errors
/// When the broker does not make one.
pub async fn restore_consumers(
    authority: &Authority,
    broker: &BrokerAddress,
) -> Result<Vec<LostConsumer>, ManagerError> {
    let agents = Agents::connect(authority.root(), authority.space(), broker).await?;
    let restored = async {
        let lost = agents.lost_consumers().await?;
        for one in &lost {
            ensure_consumer(&agents.connection, &one.stream, &one.config).await?;
        }
        Ok(lost)
    };
    let restored = restored.await;
    agents.connection.close(CLOSE).await;
    restored
}
