//! Keeps what the shared account of a space holds: presence and the mirrors.
//!
//! An agent can make the broker destroy these, and nothing else (`wire.md` §11). Nothing durable is
//! in them, but agents find each other by presence, so they are made again at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cotal_trust::UserKey;
use cotal_wire::accounts::Topology;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::authority::{Authority, BrokerAddress, MOVE_WITHIN, ONE_SHOT, Office};
use crate::error::ManagerError;
use crate::provision::{Shape, provision_space};

/// How often the broker is asked for each of them; so long agents are without presence at most.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Between a failure and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Half the life of the credential that this runs on.
const RENEW_EVERY: Duration = Duration::from_secs(ONE_SHOT.unsigned_abs() / 2);
const OFFICE: Office = Office::SharedProvisioner;

/// Makes what is missing again until told to stop, and tells of it.
pub(super) async fn keep(
    authority: Arc<Authority>,
    broker: BrokerAddress,
    stop: CancellationToken,
) {
    if authority.account().topology() == Topology::One {
        return;
    }
    loop {
        // Boxed: its many steps make a large future.
        match stop.run_until_cancelled(Box::pin(look(&authority, &broker))).await {
            None => return,
            Some(Err(error)) => {
                warn!(space = %authority.space(), %error, "the shared account is not kept in order");
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(RETRY_AFTER)).await.is_none() {
            return;
        }
    }
}

async fn look(authority: &Authority, broker: &BrokerAddress) -> Result<Infallible, ManagerError> {
    let space = authority.space();
    let key = UserKey::generate();
    let (_, connection) = authority.connect_as(&key, OFFICE, broker).await?;
    let mut ask = interval_at(Instant::now(), ASK_EVERY);
    ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renew = interval_at(Instant::now() + RENEW_EVERY, RENEW_EVERY);
    loop {
        tokio::select! {
            _ = ask.tick() => {
                for made in provision_space(&connection, space, Shape::Shared).await?.created {
                    warn!(%space, made, "it was missing from the shared account and was created again");
                }
            }
            _ = renew.tick() => {
                let (_, creds) = authority.one_shot_of(&key, OFFICE)?;
                if let Err(error) = connection.adopt(creds, MOVE_WITHIN).await {
                    // The client presents it at its next dial.
                    warn!(%space, %error, "the keeper of the shared account runs on a credential that was not renewed");
                }
            }
        }
    }
}
