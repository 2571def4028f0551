//! Serving under a held lease: which components run, in which order they start, and how they end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::broker_watch::{BrokerWatch, Renewed};
use super::context::LaneContext;
use super::error::LaneError;
use super::options::LaneOptions;
use super::stage::Stage;
use super::tasks::Tasks;
use crate::census::Scanner;
use crate::control::{self, rail::Rail};
use crate::credentials::{Identity, adoption};
use crate::feed;
use crate::lease::keeper::Lease;
use crate::lease::witness;
use crate::pipeline;
use crate::registry;
use crate::role_requests;
use crate::state::changes::ChangedAcls;
use crate::state::view::{Feed, View};
use crate::timers;

/// How long what was taken in may take to finish at a stop.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// A lane that holds the lease.
pub(super) struct Serving<'a> {
    pub(super) options: &'a LaneOptions,
    pub(super) identity: Identity,
    pub(super) context: LaneContext,
    pub(super) components: Tasks,
    pub(super) stage: &'a watch::Sender<Stage>,
    pub(super) changed_acls: ChangedAcls,
}

impl Serving<'_> {
    /// Serves until told to stop or until a component ends; then lets all of them finish.
    pub(super) async fn run(
        self,
        lease: &mut Lease,
        stop: &CancellationToken,
    ) -> Result<(), LaneError> {
        let Self { options, identity, context, components, stage, changed_acls } = self;
        let (watchdog, renewed) =
            BrokerWatch::new(&context.space, &context.connection, options.windows);
        // The view is followed until the last component has finished, so it is none of them.
        let followers = follow(&context.view);
        let (started, has_started) = watch::channel(false);
        let start = Start { options, identity, changed_acls, renewed, has_started };
        let outcome = tokio::select! {
            () = stop.cancelled() => Ok(()),
            ended = followers.first_end() => Err(ended),
            ended = components.first_end() => Err(ended),
            gone = watchdog.run() => Err(gone),
            refused = async {
                context.view.scanned().await;
                if let Err(error) = start.all(&context).await {
                    return error;
                }
                stay_bound(&context, lease, stage, &started).await
            } => Err(refused),
        };
        context.stop.cancel();
        // Without a broker nothing can be finished.
        let gone = matches!(
            outcome,
            Err(LaneError::BrokerGone | LaneError::BrokerGonePastBackstop | LaneError::NotRenewed)
        );
        let within = if gone { Duration::ZERO } else { FINISH_WITHIN };
        if tokio::time::timeout(within, components.drained()).await.is_err() {
            warn!(space = %context.space, "not everything was finished in time; it comes again");
        }
        outcome
    }
}

fn follow(view: &Arc<View>) -> Tasks {
    let followers = Tasks::default();
    let spawner = followers.spawner();
    for feed in Feed::ALL {
        spawner.spawn("the view", Arc::clone(view).follow(feed));
    }
    followers
}

/// Says that everything is bound, again after each time that serving had to stop.
async fn stay_bound(
    context: &LaneContext,
    lease: &mut Lease,
    stage: &watch::Sender<Stage>,
    started: &watch::Sender<bool>,
) -> LaneError {
    loop {
        lease.granted().await;
        lease.bound().await;
        if !lease.confirmed().await {
            continue;
        }
        started.send_replace(true);
        stage.send_replace(Stage::Ready);
        info!(space = %context.space, "serving");
        lease.withdrawn().await;
        stage.send_replace(Stage::Claimed);
    }
}

/// What the components are given besides the context.
struct Start<'a> {
    options: &'a LaneOptions,
    identity: Identity,
    changed_acls: ChangedAcls,
    renewed: Renewed,
    /// Whether the broker has confirmed that this lane is ready (CRD-3).
    has_started: watch::Receiver<bool>,
}

impl Start<'_> {
    /// Starts every component. A component that others ask comes before those.
    async fn all(self, context: &LaneContext) -> Result<(), LaneError> {
        let Self { options, identity, changed_acls, renewed, has_started } = self;
        let scanner = Scanner::new(options, &identity.accounts);
        let joins = registry::joins(context);
        let pipeline = pipeline::spawn(context, &joins.barrier, changed_acls).await?;
        let registry = registry::spawn(context, &pipeline, joins);
        let store = Arc::clone(&options.store);
        let renewal = adoption::spawn(context, store, identity.creds, renewed, has_started);
        let rail = Rail::new(context, renewal.moving());
        let requests = role_requests::spawn(context, &rail, &scanner, options.sweep_every).await?;
        witness::spawn(context);
        let (timers, feed) = (timers::spawn(context), feed::spawn(context, &scanner));
        let beside = control::Beside { timers, feed };
        let asked = control::Asked { registry, requests, renewal, scanner, pipeline, beside };
        control::spawn(context, rail, asked).await
    }
}
