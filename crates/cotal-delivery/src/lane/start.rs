//! The components of a lane, in the order in which they start.

use std::sync::Arc;

use tokio::sync::watch;

use super::context::LaneContext;
use super::error::LaneError;
use super::link::Renewals;
use super::options::LaneOptions;
use crate::census::Scanner;
use crate::control::components::{Components, Sidecars};
use crate::control::{self, rail::Rail};
use crate::credentials::{Identity, adoption};
use crate::feed;
use crate::lease::handle::LeaseState;
use crate::lease::progress_check;
use crate::pipeline;
use crate::registry;
use crate::role_requests;
use crate::sidecar::Health;
use crate::state::acl_changes::ChangedAcls;
use crate::state::{sequence_check, streams};
use crate::timers;

/// What the components need besides the context.
pub(super) struct Start {
    pub(super) options: LaneOptions,
    pub(super) identity: Identity,
    pub(super) changed_acls: ChangedAcls,
    pub(super) renewals: Renewals,
    /// Whether the broker has confirmed that this lane is ready (CRD-3).
    pub(super) has_started: watch::Receiver<bool>,
    pub(super) lease_state: watch::Receiver<LeaseState>,
    pub(super) lease_health: Health,
}

impl Start {
    /// Starts every component. A component starts before those that use it.
    pub(super) async fn all(self, context: LaneContext) -> Result<(), LaneError> {
        let Self { options, identity, changed_acls, renewals, has_started, .. } = self;
        let context = &context;
        let scanner = Scanner::spawn(context, &options, &identity.accounts);
        let read = || streams::streams(context);
        let streams = context.ask("cannot read the streams", read).await?;
        let correct = || sequence_check::correct(context, &streams);
        context.ask("cannot compare what is stored with its streams", correct).await?;
        context
            .spawn("the streams", streams.run(options.upkeep.streams_every, context.stop.clone()));
        let joins = registry::joins(context);
        let pipeline = pipeline::spawn(context, &joins.barrier, changed_acls).await?;
        let registry = registry::spawn(context, &pipeline, joins);
        let store = Arc::clone(&options.store);
        let renewal = adoption::spawn(context, store, identity.creds, renewals, has_started);
        let rail = Rail::new(context, renewal.moving());
        let requests =
            role_requests::start::spawn(context, &rail, &scanner, options.sweep_every).await?;
        progress_check::spawn(context, self.lease_state);
        let timers = timers::spawn(context);
        let feed = feed::spawn(context, &scanner, options.upkeep.feed_idle_every);
        let sidecars = Sidecars { timers, feed, lease: self.lease_health };
        let components = Components { registry, requests, renewal, scanner, pipeline, sidecars };
        control::spawn(context, rail, components).await
    }
}
