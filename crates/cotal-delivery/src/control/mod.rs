//! The request/reply services of a lane for agents and operators.

pub(crate) mod admin_api;
pub(crate) mod agent_api;
pub(crate) mod components;
pub(crate) mod fair_queue;
mod find_post;
pub(crate) mod rail;

use std::sync::Arc;

use cotal_wire::names::{DELIVERY, DELIVERY_ADMIN};

use crate::clock::now_ms;
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;
use admin_api::AdminApi;
use agent_api::AgentApi;
use components::Components;
use rail::Rail;

/// Binds every rail, then answers on them.
pub(crate) async fn spawn(
    context: &LaneContext,
    rail: Rail,
    components: Components,
) -> Result<(), LaneError> {
    let space = &context.space;
    let agents = rail.bind(context, space.ctl_all(DELIVERY), DELIVERY).await?;
    let admins = rail.bind(context, space.ctl_all(DELIVERY_ADMIN), DELIVERY_ADMIN).await?;
    let probes = rail.bind(context, space.live_all(DELIVERY), DELIVERY).await?;
    let components = Arc::new(components);
    let agent_api = AgentApi {
        rail: rail.clone(),
        components: Arc::clone(&components),
        counters: Arc::clone(&context.counters),
    };
    let admin_api = AdminApi {
        rail: rail.clone(),
        view: Arc::clone(&context.view),
        counters: Arc::clone(&context.counters),
        incarnation: context.incarnation.clone(),
        since: now_ms(),
        components,
    };
    let (reporter, stop) = (context.reporter("the control rail"), context.stop.clone());
    let agent_api = rail::serve_in_order(Arc::new(agent_api), agents, reporter, stop);
    context.spawn("the control rail", rail::failed(agent_api));
    let (reporter, stop) = (context.reporter("the admin rail"), context.stop.clone());
    context.spawn("the admin rail", rail::failed(admin_api.run(admins, reporter, stop)));
    let (reporter, stop) = (context.reporter("the probes"), context.stop.clone());
    context.spawn("the probes", rail::failed(rail.answer_probes(probes, reporter, stop)));
    Ok(())
}
