//! The `ctl.delivery-admin` service: what the manager asks of the daemon.
//!
//! Requests are answered one at a time in the order they arrive; an inventory alone is answered
//! without waiting for the others, so that many retirements do not queue behind evictions (ADM-1,
//! INV-1).

use std::sync::Arc;

use cotal_nats::{Message, NatsError, Subscription};
use cotal_wire::control::{Inventory, InventoryArgs, Reply, Request, op};
use cotal_wire::names::DELIVERY_ADMIN;
use cotal_wire::{Lifecycle, Space};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::counters::Counters;
use crate::rail::{Rail, args, done, unknown};
use crate::registry::Registry;
use crate::view::View;

/// Everything the service needs.
pub(crate) struct Admin {
    pub(crate) rail: Rail,
    pub(crate) view: Arc<View>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) incarnation: String,
    pub(crate) since: i64,
}

impl Admin {
    /// Answers until told to stop; what is being worked on is finished.
    pub(crate) async fn run(
        self,
        mut requests: Subscription,
        stop: CancellationToken,
    ) -> Result<(), NatsError> {
        let service = Arc::new(self);
        let mut inventories = JoinSet::new();
        loop {
            let message = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = inventories.join_next(), if !inventories.is_empty() => continue,
                message = requests.next() => message?,
            };
            if is_inventory(&message) {
                let service = Arc::clone(&service);
                inventories.spawn(async move { service.answer(&message).await });
            } else {
                service.answer(&message).await;
            }
        }
        while inventories.join_next().await.is_some() {}
        Ok(())
    }

    async fn answer(&self, message: &Message) {
        let parse = |space: &Space, subject: &str| space.parse_ctl(DELIVERY_ADMIN, subject);
        let Some(call) = self.rail.call(message, parse) else { return };
        let reply = match self.rail.read(message, &call.caller) {
            Ok(request) => self.perform(request).await,
            Err(refusal) => refusal,
        };
        self.rail.send(call.reply_to, &reply).await;
    }

    async fn perform(&self, request: Request) -> Reply {
        match request.op.as_str() {
            op::DELIVERY_STATUS => self.status(),
            op::LIFECYCLE_MEMBERSHIPS => match args::<InventoryArgs>(request.args) {
                Ok(a) => self.inventory(&Lifecycle::new(a.principal, a.lifecycle_uid)).await,
                Err(refusal) => refusal,
            },
            other => unknown(other, DELIVERY_ADMIN),
        }
    }

    fn status(&self) -> Reply {
        let garbled = self.view.directory().garbled();
        done(&self.counters.status(&self.incarnation, self.since, garbled))
    }

    async fn inventory(&self, member: &Lifecycle) -> Reply {
        match self.registry.inventory(member).await {
            Ok(channels) => done(&Inventory { channels }),
            Err(error) => error.reply(),
        }
    }
}

/// Whether a message asks for an inventory; everything else about it is judged when it is answered.
fn is_inventory(message: &Message) -> bool {
    Request::parse(&message.payload).is_ok_and(|request| request.op == op::LIFECYCLE_MEMBERSHIPS)
}
