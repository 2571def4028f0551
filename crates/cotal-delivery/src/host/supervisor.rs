//! The supervisor of one lane: opens it, checks that it makes progress, and reopens it when it has
//! ended.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cotal_nats::{ConnectError, NatsError};
use cotal_rules::lease::Failure;
use cotal_rules::reopen::{Cause, Reopen, ReopenPolicy};
use cotal_wire::Space;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::board::LaneState;
use super::shared::Shared;
use super::standby;
use crate::lane::Lane;
use crate::lane::error::LaneError;
use crate::lane::options::LaneOptions;
use crate::lane::stage::Stage;
use crate::lease::error::LeaseError;
use crate::loop_progress::Stalled;

/// How long the loops of a lane may take to show that they make progress.
const PROVEN_WITHIN: Duration = Duration::from_secs(20);

pub(super) struct Supervisor {
    space: Space,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// How one run of a lane ended.
enum Ended {
    /// It was told to stop.
    Stopped,
    /// By itself, or because it made no progress.
    Closed { why: Why, served: Duration },
}

/// Why a lane is closed.
enum Why {
    Ended(LaneError),
    Stalled(Stalled),
}

impl Supervisor {
    pub(super) fn new(space: Space, shared: Arc<Shared>, stop: CancellationToken) -> Self {
        Self { space, shared, stop }
    }

    /// Keeps the lane open until told to stop.
    pub(super) async fn run(self) {
        let mut policy = ReopenPolicy::default();
        self.note(LaneState::Opening, None);
        while self.stop.run_until_cancelled(self.shared.pace.turn()).await.is_some() {
            let Ended::Closed { why, served } = Box::pin(self.serve()).await else { break };
            let cause = cause(&why);
            let served = i64::try_from(served.as_millis()).unwrap_or(i64::MAX);
            let next = policy.ended(cause, served, random());
            self.report(&why, cause, next);
            if self.stop.run_until_cancelled(Box::pin(self.wait(next))).await.is_none() {
                break;
            }
        }
        self.note(LaneState::Closed, Some("the host closed it".to_owned()));
    }

    /// How the lane is run, one of as many as there are now.
    fn options(&self) -> LaneOptions {
        let Shared { options, store, lanes, .. } = &*self.shared;
        options.lane(&self.space, store, lanes.load(Ordering::Relaxed))
    }

    /// Runs the lane once.
    async fn serve(&self) -> Ended {
        let options = self.options();
        let mut lane = Lane::start(options);
        let mut stage = lane.stage();
        let progress = lane.progress();
        let mut ready_since: Option<Instant> = None;
        let served = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        loop {
            let now = *stage.borrow_and_update();
            match now {
                Stage::Starting | Stage::Ended { .. } => {}
                Stage::Claimed => {
                    self.note(LaneState::Claimed, None);
                }
                Stage::Ready => {
                    ready_since.get_or_insert_with(Instant::now);
                    self.note(LaneState::Serving, None);
                }
            }
            let proof = async {
                match now {
                    Stage::Ready => {
                        tokio::time::sleep(self.shared.options.prove_every).await;
                        progress.proven(PROVEN_WITHIN).await
                    }
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ended = lane.ended() => {
                    let ended = ended.err().unwrap_or_else(|| {
                        LaneError::Defect("it ended without a reason".to_owned())
                    });
                    return Ended::Closed { why: Why::Ended(ended), served: served(ready_since) };
                }
                () = self.stop.cancelled() => {
                    self.note(LaneState::Stopping, None);
                    self.close(lane).await;
                    return Ended::Stopped;
                }
                Ok(()) = stage.changed() => {}
                Err(stalled) = proof => {
                    self.close(lane).await;
                    let why = Why::Stalled(stalled);
                    return Ended::Closed { why, served: served(ready_since) };
                }
            }
        }
    }

    async fn close(&self, lane: Lane) {
        if let Err(error) = lane.close().await {
            warn!(space = %self.space, %error, "the lane did not close cleanly");
        }
    }

    /// Waits until the lane may be reopened.
    async fn wait(&self, next: Reopen) {
        let ask_every = match next {
            Reopen::After(ms) => return tokio::time::sleep(millis(ms)).await,
            Reopen::OnceTheRowIsGone { ask_every_ms } => millis(ask_every_ms),
        };
        let options = self.options();
        let held_by = |holder: &str| {
            let reason = format!("{holder} holds the lease");
            if self.note(LaneState::Standby, Some(reason)) {
                info!(space = %self.space, holder, "another daemon serves the space; standing by");
            }
        };
        match standby::until_free(&options, ask_every, held_by).await {
            Ok(()) => info!(space = %self.space, "the lease is free; opening the lane"),
            Err(error) => {
                // The next attempt to open the lane reports what is wrong with the broker or the
                // credential.
                warn!(space = %self.space, %error, "cannot watch the lease row; retrying");
                tokio::time::sleep(ask_every).await;
            }
        }
    }

    /// Logs once why the lane is closed, and what follows.
    fn report(&self, why: &Why, cause: Cause, next: Reopen) {
        let state = match cause {
            Cause::Held => LaneState::Standby,
            Cause::Refused => LaneState::Refused,
            Cause::BrokerAway | Cause::Failed => LaneState::Closed,
        };
        let reason = match why {
            Why::Ended(LaneError::Lease(
                LeaseError::Held { holder, .. } | LeaseError::Taken { holder, .. },
            )) => format!("{holder} holds the lease"),
            Why::Ended(error) => error.to_string(),
            Why::Stalled(stalled) => stalled.to_string(),
        };
        if !self.note(state, Some(reason)) {
            return;
        }
        let space = &self.space;
        let what = match why {
            Why::Ended(error) => error.to_string(),
            Why::Stalled(stalled) => stalled.to_string(),
        };
        match next {
            Reopen::OnceTheRowIsGone { .. } => info!(%space, "standing by: {what}"),
            Reopen::After(ms) => error!(
                %space,
                "✗ delivery: {what}; the lane is closed; the host reopens it in {ms} ms"
            ),
        }
    }

    fn note(&self, state: LaneState, reason: Option<String>) -> bool {
        self.shared.board.set(&self.space, state, reason)
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}

/// The hash of nothing, under a random seed of the standard library.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

fn cause(why: &Why) -> Cause {
    let error = match why {
        Why::Ended(error) => error,
        Why::Stalled(_) => return Cause::Failed,
    };
    match error {
        LaneError::Lease(LeaseError::Held { .. } | LeaseError::Taken { .. }) => Cause::Held,
        LaneError::Credential(_)
        | LaneError::NotRenewed
        | LaneError::Lease(
            LeaseError::Refused { source: Failure::Denied(_), .. }
            | LeaseError::NotReacquired { source: Failure::Denied(_), .. },
        ) => Cause::Refused,
        LaneError::Broker { source, .. } => cause_of(source),
        LaneError::BrokerGone | LaneError::BrokerGonePastBackstop => Cause::BrokerAway,
        LaneError::Lease(_)
        | LaneError::View(_)
        | LaneError::Stream(_)
        | LaneError::Pull(_)
        | LaneError::Defect(_)
        | LaneError::NoRuntime
        | LaneError::EndedBefore(_) => Cause::Failed,
    }
}

fn cause_of(error: &NatsError) -> Cause {
    match error {
        NatsError::Denied { .. }
        | NatsError::Connect(ConnectError::Rejected { .. } | ConnectError::Creds(_)) => {
            Cause::Refused
        }
        NatsError::Connect(_) | NatsError::Disconnected { .. } | NatsError::Closed => {
            Cause::BrokerAway
        }
        _ => Cause::Failed,
    }
}
