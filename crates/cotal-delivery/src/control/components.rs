//! The components that the services use.

use std::sync::Arc;

use crate::census::Scanner;
use crate::credentials::adoption::Renewal;
use crate::feed::FeedHandle;
use crate::pipeline::Pipeline;
use crate::registry::Registry;
use crate::role_requests::RequestKeeper;
use crate::sidecar::Health;

/// Components beside delivery, whose state is shown here and whose credentials are renewed.
pub(crate) struct Sidecars {
    pub(crate) timers: Health,
    pub(crate) feed: FeedHandle,
    /// Whether the broker stores the lease's row.
    pub(crate) lease: Health,
}

/// The components that the services use.
pub(crate) struct Components {
    pub(crate) registry: Arc<Registry>,
    pub(crate) requests: Arc<RequestKeeper>,
    pub(crate) renewal: Arc<Renewal>,
    pub(crate) scanner: Scanner,
    pub(crate) pipeline: Pipeline,
    pub(crate) sidecars: Sidecars,
}
