//! The request/reply services of a lane for agents and operators.

pub(crate) mod admin_api;
pub(crate) mod agent_api;
pub(crate) mod fair_queue;
mod find_post;
pub(crate) mod rail;

use std::sync::Arc;

use cotal_wire::names::{DELIVERY, DELIVERY_ADMIN};

use crate::census::Scanner;
use crate::clock::now_ms;
use crate::credentials::adoption::Renewal;
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use crate::pipeline::Pipeline;
use crate::registry::Registry;
use crate::role_requests::RequestKeeper;
use admin_api::{AdminApi, Beside};
use agent_api::AgentApi;
use rail::Rail;

/// What the services need.
pub(crate) struct Asked {
    pub(crate) registry: Arc<Registry>,
    pub(crate) requests: Arc<RequestKeeper>,
    pub(crate) renewal: Arc<Renewal>,
    pub(crate) scanner: Scanner,
    pub(crate) pipeline: Pipeline,
    pub(crate) beside: Beside,
}

/// Binds every rail, then answers on them.
pub(crate) async fn spawn(
    context: &LaneContext,
    rail: Rail,
    asked: Asked,
) -> Result<(), LaneError> {
    let space = &context.space;
    let agents = rail.bind(context, space.ctl_all(DELIVERY), DELIVERY).await?;
    let admins = rail.bind(context, space.ctl_all(DELIVERY_ADMIN), DELIVERY_ADMIN).await?;
    let probes = rail.bind(context, space.live_all(DELIVERY), DELIVERY).await?;
    let Asked { registry, requests, renewal, scanner, pipeline, beside } = asked;
    let agent_api = AgentApi {
        rail: rail.clone(),
        registry: Arc::clone(&registry),
        keeper: Arc::clone(&requests),
        counters: Arc::clone(&context.counters),
    };
    let admin_api = AdminApi {
        rail: rail.clone(),
        view: Arc::clone(&context.view),
        registry,
        counters: Arc::clone(&context.counters),
        beside,
        incarnation: context.incarnation.clone(),
        since: now_ms(),
        scanner,
        waiting: pipeline.waiting,
        stores: [
            ("the copies into INBOX", pipeline.inbox),
            ("the hand-off into DLV", pipeline.dlv),
        ],
        renewal,
        keeper: requests,
        recaller: pipeline.recaller,
    };
    let (reporter, stop) = (context.reporter("the control rail"), context.stop.clone());
    context.spawn("the control rail", rail::failed(agent_api.run(agents, reporter, stop)));
    let (reporter, stop) = (context.reporter("the admin rail"), context.stop.clone());
    context.spawn("the admin rail", rail::failed(admin_api.run(admins, reporter, stop)));
    let (reporter, stop) = (context.reporter("the probes"), context.stop.clone());
    context.spawn("the probes", rail::failed(rail.answer_probes(probes, reporter, stop)));
    Ok(())
}
