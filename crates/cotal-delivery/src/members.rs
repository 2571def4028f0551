//! The `ctl.delivery` service: what agents ask of the membership registry (MEM-5).

use std::sync::Arc;

use cotal_nats::{Message, NatsError, Subscription};
use cotal_wire::control::{JoinArgs, LeaveArgs, Reply, Request, op};
use cotal_wire::names::DELIVERY;
use cotal_wire::{Principal, Space};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::rail::{Rail, args, done, unknown};
use crate::registry::{Registry, RegistryError};
use crate::view::View;

/// Requests that are worked on at once; more wait in the subscription.
const AT_ONCE: usize = 64;

/// Everything the service needs.
pub(crate) struct Members {
    pub(crate) rail: Rail,
    pub(crate) view: Arc<View>,
    pub(crate) registry: Arc<Registry>,
}

impl Members {
    /// Answers until told to stop; what is being worked on is finished.
    pub(crate) async fn run(
        self,
        mut requests: Subscription,
        stop: CancellationToken,
    ) -> Result<(), NatsError> {
        let service = Arc::new(self);
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut working = JoinSet::new();
        working.spawn(Arc::clone(&service).resume_joins(stop.clone()));
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = working.join_next(), if !working.is_empty() => {}
                taken = next_with_room(&mut requests, &room) => {
                    let (request, permit) = taken?;
                    let service = Arc::clone(&service);
                    working.spawn(async move {
                        service.answer(&request).await;
                        drop(permit);
                    });
                }
            }
        }
        while working.join_next().await.is_some() {}
        Ok(())
    }

    /// Finishes the joins that a daemon before this one left half done.
    async fn resume_joins(self: Arc<Self>, stop: CancellationToken) {
        let half_joined = self.view.directory().half_joined();
        for (channel, member) in half_joined {
            let resumed = tokio::select! {
                () = stop.cancelled() => return,
                resumed = self.registry.resume(&channel, &member) => resumed,
            };
            if let Err(error) = resumed {
                let space = &self.rail.space;
                warn!(%space, %error, "a half-done join waits for the member to join again");
            }
        }
    }

    async fn answer(&self, message: &Message) {
        let parse = |space: &Space, subject: &str| space.parse_ctl(DELIVERY, subject);
        let Some(call) = self.rail.call(message, parse) else { return };
        let reply = match self.rail.read(message, &call.caller) {
            Ok(request) => self.perform(&call.caller, request).await,
            Err(refusal) => refusal,
        };
        self.rail.send(call.reply_to, &reply).await;
    }

    async fn perform(&self, caller: &Principal, request: Request) -> Reply {
        match request.op.as_str() {
            op::DURABLE_JOIN => match args::<JoinArgs>(request.args) {
                Ok(a) => reply(self.registry.join(caller, &a.channel, a.lifecycle_uid).await),
                Err(refusal) => refusal,
            },
            op::DURABLE_LEAVE => match args::<LeaveArgs>(request.args) {
                Ok(LeaveArgs { channel, generation, lifecycle_uid }) => {
                    let left = self.registry.leave(caller, &channel, generation, lifecycle_uid);
                    reply(left.await)
                }
                Err(refusal) => refusal,
            },
            op::LIST_MEMBERSHIPS => reply(self.registry.list(caller).await),
            other => unknown(other, DELIVERY),
        }
    }
}

async fn next_with_room(
    requests: &mut Subscription,
    room: &Arc<Semaphore>,
) -> Result<(Message, OwnedSemaphorePermit), NatsError> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(|_| NatsError::Closed)?;
    Ok((requests.next().await?, permit))
}

fn reply<T: Serialize>(outcome: Result<T, RegistryError>) -> Reply {
    match outcome {
        Ok(result) => done(&result),
        Err(error) => error.reply(),
    }
}
