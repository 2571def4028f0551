//! Waits for a lease that another daemon holds (STB-1, STB-2).
//!
//! It uses one connection and one watch on the lease row, and nothing else of the space: no
//! consumer of its streams, no rail. It never writes the row; only a lane claims it.

use std::time::Duration;

use cotal_nats::{
    Bucket as Kv, ConnectOptions, Connection, Entry, NatsError, PullOptions, WatchEvent,
    WatchOptions,
};
use cotal_wire::Space;
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::LeaseRow;
use tokio::time::MissedTickBehavior;

use crate::credentials;
use crate::lane::error::{LaneError, broker};
use crate::lane::options::LaneOptions;

/// Closing this connection has nothing to finish.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// A stalled watch is noticed by its missing heartbeat. Until then the read every few seconds shows
/// changes as well, so the heartbeat may be slow.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Returns once the broker shows no lease row, because the holder released it or it expired.
/// `held_by` is called with the holder, at the start and whenever the row is read.
pub(super) async fn until_free(
    options: &LaneOptions,
    ask_every: Duration,
    held_by: impl Fn(&str),
) -> Result<(), LaneError> {
    let identity = credentials::load_blocking(&options.store, &options.space).await?;
    let name = format!("cotal-delivery {} standby", options.space);
    let connect = ConnectOptions::new(options.server.as_str(), name, identity.source)
        .tls(options.tls.clone());
    let connection = Connection::connect(connect).await.map_err(broker("cannot connect"))?;
    let waited = wait(&connection, &options.space, ask_every, held_by).await;
    connection.close(CLOSE_WITHIN).await;
    waited.map_err(broker("cannot read the lease"))
}

async fn wait(
    connection: &Connection,
    space: &Space,
    ask_every: Duration,
    held_by: impl Fn(&str),
) -> Result<(), NatsError> {
    let kv = Kv::new(connection, &space.bucket(Bucket::Delivery));
    let options = WatchOptions {
        filter: LEASE_KEY.to_owned(),
        pull: PullOptions { idle_heartbeat: HEARTBEAT, ..WatchOptions::default().pull },
        ..WatchOptions::default()
    };
    let mut watch = kv.watch(options).await?;
    let mut ask = tokio::time::interval(ask_every);
    ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = watch.next() => match event? {
                WatchEvent::Put { key, value, .. } if key.as_str() == LEASE_KEY => {
                    told(&held_by, &value);
                }
                // Another daemon may have claimed it by now; the claim that follows will tell.
                WatchEvent::Delete { key, .. } if key.as_str() == LEASE_KEY => return Ok(()),
                _ => {}
            },
            _ = ask.tick() => match kv.get(LEASE_KEY).await?.as_ref().and_then(Entry::live) {
                Some(value) => told(&held_by, value),
                None => return Ok(()),
            },
        }
    }
}

/// A garbled row has no holder; it expires like any other.
fn told(held_by: &impl Fn(&str), value: &[u8]) {
    match LeaseRow::parse(value) {
        Ok(row) => held_by(row.holder.as_str()),
        Err(_) => held_by("a row that cannot be parsed"),
    }
}
