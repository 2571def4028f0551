//! The streams, buckets and first rows of a space.
//!
//! Invariant: repeatable. What is right stays untouched, what is missing is made, and what
//! contradicts the wire is updated in place; nothing is ever deleted to be made anew.

use std::time::Duration;

use cotal_nats::js::ConsumerAction;
use cotal_nats::{Bucket, Connection, NatsError};
use cotal_wire::Space;
use cotal_wire::accounts::Topology;
use cotal_wire::limits::PER_SUBJECT;
use cotal_wire::names;
use cotal_wire::rows::{ChannelConfig, DeliveryClass};
use cotal_wire::streams::{ConsumerConfig, StreamConfig};
use serde_json::{Map, Value, json};

use crate::authority::{Authority, BrokerAddress, Office};
use crate::error::{Doing, ManagerError};
use crate::repair::{self, SettingChange};

/// How long a connection may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Which part of a space an account holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Everything: the only account of a space that the delivery daemon serves.
    Whole,
    /// Everything but what agents may write: the durable account of a space of three.
    Durable,
    /// What agents may write, and mirrors of what they read: the shared account of a space of
    /// three.
    Shared,
    /// Without a daemon there is no backstop: only what live traffic and its history use (LIF-14).
    LiveOnly,
}

/// What provisioning did; an unchanged space gives an empty one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Provisioned {
    /// Streams, buckets, consumers and rows that were made.
    pub created: Vec<String>,
    /// Streams that were repaired, and how.
    pub repaired: Vec<(String, Vec<SettingChange>)>,
}

impl Provisioned {
    fn add(&mut self, other: Self) {
        self.created.extend(other.created);
        self.repaired.extend(other.repaired);
    }
}

/// Brings every account of a space to what the wire demands. A broker that does not know the
/// accounts is told of them.
///
/// # Errors
/// When the broker cannot be reached or does not do what it is asked; running it again continues.
pub async fn provision(
    authority: &Authority,
    broker: &BrokerAddress,
) -> Result<Provisioned, ManagerError> {
    let parts: &[(Office, Shape)] = match authority.account().topology() {
        Topology::One => &[(Office::Provisioner, Shape::Whole)],
        Topology::Three => {
            &[(Office::Provisioner, Shape::Durable), (Office::SharedProvisioner, Shape::Shared)]
        }
    };
    let mut done = Provisioned::default();
    for (office, shape) in parts {
        let connection = authority.connect_told(*office, broker).await?;
        let part = provision_space(&connection, authority.space(), *shape).await;
        connection.close(CLOSE_WITHIN).await;
        done.add(part?);
    }
    Ok(done)
}

/// Brings one account of a space to what the wire demands.
///
/// `connection` holds the permissions of the account's provisioner.
///
/// # Errors
/// When the broker does not do what it is asked; running it again continues.
pub async fn provision_space(
    connection: &Connection,
    space: &Space,
    shape: Shape,
) -> Result<Provisioned, ManagerError> {
    let mut done = Provisioned::default();
    for config in configs(connection, space, shape) {
        let is_new = ensure_stream(connection, &config, &mut done).await?;
        // A consumer that vanished from an old stream is the daemon's to miss: made anew here, it
        // would silently skip what was posted in between.
        if is_new && shape != Shape::Shared {
            ensure_consumers(connection, space, &config.name, &mut done).await?;
        }
    }
    if shape != Shape::Shared {
        ensure_defaults(connection, space, shape, &mut done).await?;
    }
    Ok(done)
}

fn configs(connection: &Connection, space: &Space, shape: Shape) -> Vec<StreamConfig> {
    let max_payload = connection.max_payload() as u64;
    // Fast ingest came with 2.14; the daemon does without it on an older broker.
    let batched = connection.server_at_least(2, 14, 0);
    let streams = space.stream_configs(max_payload, batched);
    let buckets = names::Bucket::ALL.map(|bucket| space.bucket_config(bucket));
    let all = streams.into_iter().chain(buckets);
    let presence = space.kv_stream(names::Bucket::Presence);
    match shape {
        Shape::Whole => all.collect(),
        Shape::Durable => all.filter(|config| config.name != presence).collect(),
        Shape::Shared => {
            let mirrors = names::Bucket::MIRRORED.map(|bucket| space.mirror_config(bucket));
            let mirrors = mirrors.into_iter().chain([space.chat_mirror_config()]);
            all.filter(|config| config.name == presence).chain(mirrors).collect()
        }
        // No daemon routes or trims here: CHAT keeps what history shows.
        Shape::LiveOnly => {
            let live = [
                space.chat_stream(),
                space.dm_stream(),
                space.task_stream(),
                presence,
                space.kv_stream(names::Bucket::Channels),
            ];
            let mut configs: Vec<_> = all.filter(|it| live.contains(&it.name)).collect();
            for config in configs.iter_mut().filter(|it| it.name == space.chat_stream()) {
                config.max_msgs_per_subject = PER_SUBJECT.cast_signed();
            }
            configs
        }
    }
}

/// Makes or repairs a stream; tells whether it is new.
async fn ensure_stream(
    connection: &Connection,
    want: &StreamConfig,
    done: &mut Provisioned,
) -> Result<bool, ManagerError> {
    let name = &want.name;
    let have = match connection.stream_info(name).await {
        Ok(info) => info.config,
        Err(NatsError::Absent { .. }) => {
            let mut made = connection.create_stream(name, want).await.map(drop);
            if made.as_ref().is_err_and(has_no_room) && want.max_bytes > 0 {
                let uncapped = StreamConfig { max_bytes: -1, ..want.clone() };
                made = connection.create_stream(name, &uncapped).await.map(drop);
            }
            made.doing(|| format!("create the stream {name}"))?;
            done.created.push(name.clone());
            return Ok(true);
        }
        Err(error) => return Err(error).doing(|| format!("look at the stream {name}")),
    };
    let have = match serde_json::to_value(&have) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let mut changes = repair::changes(&have, want);
    while !changes.is_empty() {
        let fields: Vec<_> = changes.iter().map(|change| change.field).collect();
        let updated = connection.update_stream(name, &repair::repaired(&have, &changes)).await;
        let is_capped = fields.contains(&repair::MAX_BYTES);
        if is_capped && updated.as_ref().is_err_and(has_no_room) {
            changes.retain(|change| change.field != repair::MAX_BYTES);
            continue;
        }
        updated.doing(|| format!("repair {} of the stream {name}", fields.join(", ")))?;
        done.repaired.push((name.clone(), changes));
        break;
    }
    Ok(false)
}

/// Whether a broker cannot set aside the room that a cap reserves. A space on it works without the
/// cap, and `space usage` tells which streams have none.
fn has_no_room(error: &NatsError) -> bool {
    const NO_ROOM: [u32; 2] = [10_047, 10_023];
    matches!(error, NatsError::Refused { err_code, .. } if NO_ROOM.contains(err_code))
}

async fn ensure_consumers(
    connection: &Connection,
    space: &Space,
    stream: &str,
    done: &mut Provisioned,
) -> Result<(), ManagerError> {
    let standing = [
        (space.chat_stream(), space.fanout_config(None)),
        (space.inbox_stream(), space.reader_config()),
        (space.ept_req_stream(), space.timer_writer_config()),
    ];
    for (on, config) in standing {
        if on == stream {
            ensure_consumer(connection, stream, &config).await?;
            done.created.push(format!("{stream}/{}", config.name));
        }
    }
    Ok(())
}

/// Makes a consumer unless one of that name is there.
pub(crate) async fn ensure_consumer(
    connection: &Connection,
    stream: &str,
    config: &ConsumerConfig,
) -> Result<(), ManagerError> {
    let (name, filter) = (&config.name, config.filter_subject.as_deref());
    let made =
        connection.create_consumer(stream, name, filter, config, ConsumerAction::Create).await;
    match made {
        // The name binds owner, incarnation or role, so whoever has it is the one that is meant.
        Ok(_) | Err(NatsError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error).doing(|| format!("create the consumer {name} on {stream}")),
    }
}

/// Writes the deployment's class, unless the space has its defaults already.
async fn ensure_defaults(
    connection: &Connection,
    space: &Space,
    shape: Shape,
    done: &mut Provisioned,
) -> Result<(), ManagerError> {
    let class = match shape {
        Shape::LiveOnly => DeliveryClass::Live,
        _ => DeliveryClass::Durable,
    };
    let config = ChannelConfig { delivery_class: Some(class), ..ChannelConfig::default() };
    let bucket = Bucket::new(connection, &space.bucket(names::Bucket::Channels));
    let value = json!(config).to_string().into();
    // Revision 0 means "never written": a default that was changed or removed stays so. The
    // provisioner may not read rows, and need not.
    match bucket.update(names::DEFAULTS_KEY, value, 0).await {
        Ok(_) => {
            done.created.push(format!("{}/{}", bucket.name(), names::DEFAULTS_KEY));
            Ok(())
        }
        Err(NatsError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error).doing(|| format!("write the defaults of space {space}")),
    }
}
