//! Starts the keeper of role requests.

use std::sync::Arc;
use std::time::Duration;

use cotal_wire::names::ANYCAST_TAKE;

use super::RequestKeeper;
use super::take::Takes;
use crate::census::Scanner;
use crate::control::rail::{self, Rail};
use crate::lane::context::LaneContext;
use crate::lane::error::LaneError;

/// Starts the keeper of role requests, and answers on the rail of takes. Records are swept at the
/// interval `every`.
pub(crate) async fn spawn(
    context: &LaneContext,
    rail: &Rail,
    scanner: &Scanner,
    every: Duration,
) -> Result<Arc<RequestKeeper>, LaneError> {
    let keeper = Arc::new(RequestKeeper::new(context, scanner));
    let takes = rail.bind(context, context.space.ctl_all(ANYCAST_TAKE), ANYCAST_TAKE).await?;
    let service = Arc::new(Takes { rail: rail.clone(), keeper: Arc::clone(&keeper) });
    let (reporter, stop) = (context.reporter("the rail of takes"), context.stop.clone());
    context.spawn("the rail of takes", rail::failed(rail::serve(service, takes, reporter, stop)));
    let (kept, stop) = (Arc::clone(&keeper), context.stop.clone());
    // Boxed: it is by far the largest of the tasks.
    context.spawn("the role requests", Box::pin(kept.run(every, stop)));
    Ok(keeper)
}
