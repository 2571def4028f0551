//! The `ctl.delivery` service: requests of agents to the membership registry (MEM-5), and about
//! their own role requests (ANY-4).

use std::sync::Arc;

use cotal_wire::Principal;
use cotal_wire::anycast::{ListedRequests, PageArgs, SeqArgs, StatusReply};
use cotal_wire::control::{JoinArgs, LeaveArgs, Reply, Request, op};
use cotal_wire::names::DELIVERY;
use cotal_wire::posts::{FindPostArgs, Missed, MissedArgs};
use serde::Serialize;

use crate::control::components::Components;
use crate::control::find_post::find_post;
use crate::control::rail::{Rail, Service, args, done, unknown};
use crate::counters::Counters;
use crate::registry::RegistryError;

/// Everything the service needs.
pub(crate) struct AgentApi {
    pub(crate) rail: Rail,
    pub(crate) components: Arc<Components>,
    pub(crate) counters: Arc<Counters>,
}

impl Service for AgentApi {
    const NAME: &'static str = DELIVERY;

    fn rail(&self) -> &Rail {
        &self.rail
    }

    async fn perform(&self, caller: &Principal, request: Request) -> Reply {
        match request.op.as_str() {
            op::DURABLE_JOIN => match args::<JoinArgs>(request.args) {
                Ok(a) => {
                    reply(self.components.registry.join(caller, &a.channel, a.lifecycle_uid).await)
                }
                Err(refusal) => refusal,
            },
            op::DURABLE_LEAVE => match args::<LeaveArgs>(request.args) {
                Ok(LeaveArgs { channel, generation, lifecycle_uid }) => {
                    let left =
                        self.components.registry.leave(caller, &channel, generation, lifecycle_uid);
                    reply(left.await)
                }
                Err(refusal) => refusal,
            },
            op::LIST_MEMBERSHIPS => reply(self.components.registry.list(caller).await),
            op::ANYCAST_STATUS => match args::<SeqArgs>(request.args) {
                Ok(a) => reply(self.status(caller, a.seq).await),
                Err(refusal) => refusal,
            },
            op::ANYCAST_CANCEL => match args::<SeqArgs>(request.args) {
                Ok(a) => self.cancel(caller, a.seq).await.unwrap_or_else(|error| error.reply()),
                Err(refusal) => refusal,
            },
            op::ANYCAST_LIST => match args::<PageArgs>(request.args) {
                Ok(a) => reply(self.requests(caller, a.after).await),
                Err(refusal) => refusal,
            },
            op::MISSED_POSTS => match args::<MissedArgs>(request.args) {
                Ok(a) => reply(self.missed(caller, &a).await),
                Err(refusal) => refusal,
            },
            op::FIND_POST => match args::<FindPostArgs>(request.args) {
                Ok(a) => reply(find_post(&self.rail, caller, &a).await),
                Err(refusal) => refusal,
            },
            other => unknown(other, DELIVERY),
        }
    }
}

impl AgentApi {
    async fn missed(&self, caller: &Principal, args: &MissedArgs) -> Result<Missed, RegistryError> {
        let member = self.components.registry.lifecycle_now(caller, args.lifecycle_uid).await?;
        let mut episodes = self.counters.misses().owed(&member, &args.told);
        if episodes.iter().any(|episode| episode.to == u64::MAX) {
            // No missed post can be newer than the newest post.
            let last = self.rail.connection.last_seq(&self.rail.space.chat_stream()).await?;
            episodes.iter_mut().for_each(|episode| episode.to = episode.to.min(last));
        }
        Ok(Missed { episodes })
    }

    async fn status(&self, caller: &Principal, seq: u64) -> Result<StatusReply, RegistryError> {
        let member = self.components.registry.live_lifecycle(caller).await?;
        self.components.requests.status(&member, seq).await
    }

    async fn cancel(&self, caller: &Principal, seq: u64) -> Result<Reply, RegistryError> {
        let member = self.components.registry.live_lifecycle(caller).await?;
        self.components.requests.cancel(&member, seq).await
    }

    async fn requests(
        &self,
        caller: &Principal,
        after: u64,
    ) -> Result<ListedRequests, RegistryError> {
        let member = self.components.registry.live_lifecycle(caller).await?;
        Ok(self.components.requests.list(&member, after).await?)
    }
}

fn reply<T: Serialize>(outcome: Result<T, RegistryError>) -> Reply {
    match outcome {
        Ok(result) => done(&result),
        Err(error) => error.reply(),
    }
}
