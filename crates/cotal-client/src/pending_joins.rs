//! The durable memberships that a caller asked for and that do not stand yet.
//!
//! Invariant: what was asked for and failed for a reason that passes is asked for again until it
//! stands, is refused for good, or is not pending_joins any more; and the caller is told which.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cotal_wire::Channel;
use cotal_wire::control::{JoinArgs, JoinShortfall, Joined, op};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::backstop::{Backstop, Shortfall};
use crate::control::Liveness;
use crate::daemon_rails::DaemonRails;
use crate::notice::Notice;
use crate::sink::Sink;

/// The first wait between two attempts. Each attempt begins with a probe that costs the broker one
/// message while nobody serves.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// A daemon that is back is found within this.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// The channels; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingJoins {
    /// The number of the last request, and each channel under that of its own, so that an attempt
    /// for an earlier one settles no later one.
    channels: Arc<Mutex<(u64, BTreeMap<Channel, u64>)>>,
    changed: Arc<Notify>,
}

impl PendingJoins {
    pub(crate) fn insert(&self, channel: &Channel) {
        let mut channels = self.channels();
        channels.0 += 1;
        let number = channels.0;
        channels.1.insert(channel.clone(), number);
        drop(channels);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, channel: &Channel) {
        self.channels().1.remove(channel);
    }

    /// Tries at once, because something changed that attempts failed on before.
    pub(crate) fn hurry(&self) {
        self.changed.notify_one();
    }

    fn all(&self) -> Vec<(Channel, u64)> {
        self.channels().1.iter().map(|(channel, number)| (channel.clone(), *number)).collect()
    }

    fn is_empty(&self) -> bool {
        self.channels().1.is_empty()
    }

    /// Takes a channel off, unless it was left, or asked for anew, meanwhile.
    fn settle(&self, channel: &Channel, number: u64) -> bool {
        let mut channels = self.channels();
        let stands = channels.1.get(channel) == Some(&number);
        if stands {
            channels.1.remove(channel);
        }
        stands
    }

    fn channels(&self) -> MutexGuard<'_, (u64, BTreeMap<Channel, u64>)> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the daemon for a durable membership.
pub(crate) async fn establish(plane: &DaemonRails, sink: &Sink, channel: &Channel) -> Backstop {
    let args =
        JoinArgs { channel: channel.clone(), lifecycle_uid: Some(plane.identity().lifecycle.uid) };
    let joined: Result<Joined, _> = plane.control(op::DURABLE_JOIN, &args).await;
    let why = match joined {
        Ok(Joined { durable: true, generation, .. }) => {
            sink.backed().insert(channel.clone());
            return Backstop::Durable { generation };
        }
        Ok(Joined { reason: Some(JoinShortfall::Evicted), .. }) => Shortfall::Evicted,
        Ok(Joined { reason: Some(JoinShortfall::Superseded), .. }) => Shortfall::Superseded,
        Ok(Joined { reason: None, .. }) => {
            Shortfall::Failed("the delivery daemon gave no reason".to_owned())
        }
        Err(error) => error.into(),
    };
    Backstop::Unestablished(why)
}

/// The task that asks for them again.
#[derive(Debug)]
pub(crate) struct Establisher {
    pub(crate) pending_joins: PendingJoins,
    pub(crate) plane: DaemonRails,
    pub(crate) sink: Sink,
}

impl Establisher {
    pub(crate) async fn run(self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.establish_all() => {}
        }
    }

    async fn establish_all(&self) {
        let mut wait = FIRST_WAIT;
        loop {
            if self.pending_joins.is_empty() {
                wait = FIRST_WAIT;
                self.pending_joins.changed.notified().await;
                continue;
            }
            // Woken early, it begins anew with the shortest wait: a daemon was just seen.
            let woken = timeout(wait, self.pending_joins.changed.notified()).await.is_ok();
            wait = if woken { FIRST_WAIT } else { (wait * 2).min(LONGEST_WAIT) };
            // A probe first: a join is answered only after what it has to copy, and a dead daemon
            // by nobody.
            if matches!(self.plane.liveness().await, Ok(Liveness::Bound)) {
                for (channel, number) in self.pending_joins.all() {
                    self.establish(&channel, number).await;
                }
            }
        }
    }

    async fn establish(&self, channel: &Channel, number: u64) {
        let channel = channel.clone();
        let notice = match establish(&self.plane, &self.sink, &channel).await {
            Backstop::Unestablished(why) if why.is_retried() => return,
            Backstop::Unestablished(why) => {
                Notice::BackstopRefused { channel: channel.clone(), why }
            }
            Backstop::Durable { generation } => {
                Notice::BackstopEstablished { channel: channel.clone(), generation }
            }
            Backstop::NotDurable => return,
        };
        if self.pending_joins.settle(&channel, number) {
            self.sink.notify(notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_settles_its_own_request_and_no_later_one() {
        let (pending_joins, channel) = (PendingJoins::default(), Channel::parse("a").unwrap());
        pending_joins.insert(&channel);
        let (_, first) = pending_joins.all().remove(0);
        pending_joins.remove(&channel);
        assert!(!pending_joins.settle(&channel, first), "it was left");
        pending_joins.insert(&Channel::parse("b").unwrap());
        pending_joins.insert(&channel);
        let (_, second) = pending_joins.all().remove(0);
        assert!(second != first && !pending_joins.settle(&channel, first), "it was asked for anew");
        assert!(pending_joins.settle(&channel, second) && pending_joins.all().len() == 1);
    }
}
